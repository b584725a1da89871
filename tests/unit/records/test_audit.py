"""The audit log."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.node import files
from orchestrator.records import audit


def test_a_line_an_action_readable_by_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "state" / audit.FILE
    holder = {"who": "ops", "host": "desk", "pid": 1, "command": "l40s-deploy down", "token": "secret"}
    audit.note("begins", gang="gang0", holder=holder, file=file)
    audit.note("ends", gang="gang0", holder=holder, why="because", file=file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["action"], line["who"], line["why"]) for line in lines] == [
        ("begins", "ops", ""),
        ("ends", "ops", "because"),
    ]
    assert "secret" not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_place_that_takes_no_line_keeps_nobody_from_working(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    audit.note("begins", gang="gang0", holder={}, file=tmp_path / "file" / "audit")


def test_the_log_is_bounded_and_keeps_one_predecessor(tmp_path: Path) -> None:
    """Several processes write; no line within the kept part is lost, and none is torn."""
    path = str(tmp_path / "audit.jsonl")

    def write(writer: int) -> None:
        for number in range(100):
            files.append_line(path, json.dumps([writer, number, "x" * 80]), limit=30_000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["audit.jsonl", "audit.jsonl.1"]
    kept = []
    for name in ("audit.jsonl.1", "audit.jsonl"):
        assert (tmp_path / name).stat().st_size <= 30_000
        kept += [json.loads(line)[:2] for line in (tmp_path / name).read_text().splitlines()]
    for writer in range(4):
        numbers = [number for by, number in kept if by == writer]
        assert numbers == list(range(numbers[0], 100))


def test_the_controllers_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.append_line, "__kwdefaults__", {"limit": 1000})
    for _ in range(50):
        audit.note("begins", gang="gang0", holder={}, file=tmp_path / audit.FILE)
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= 2000
