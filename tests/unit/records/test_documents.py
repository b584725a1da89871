"""What this machine keeps: the findings of a watch, the audit log, the runs."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.node.bounded_log import append_line
from orchestrator.protocol.errors import InputError
from orchestrator.records import documents
from orchestrator.records.documents import (
    KEPT,
    RunRecord,
    expect_writable,
    keep_least_free,
    keep_look,
    last_look,
    least_free,
    looks_file,
)

FOUND = {"id": "A", "severity": "slow", "node": "node0", "devices": [], "title": "no \udcff", "fix": "f"}


def test_what_is_kept_comes_back() -> None:
    file = looks_file("hosts.yml")
    assert last_look(file) is None and file != looks_file("other.yml")
    keep_look(file, 5.0, [FOUND])
    assert last_look(file) == (5.0, [FOUND])


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("none/x.html", "its folder does not exist"),
        ("folder", "is a folder"),
        ("old/x", "can't be written|its folder does not exist"),
        ("x" * 300, "can't be written: File name too long"),
        ("/proc/x.html", "can't be written"),
    ],
)
def test_where_nothing_can_be_written_is_said_before_hours_are_measured_for_it(
    name: str, what: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "old").write_text("mine")
    with pytest.raises(InputError, match=what) as told:
        expect_writable(tmp_path / name, "name another file")
    assert "name another file" in told.value.fix


def test_what_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("mine")
    expect_writable(old, "")
    expect_writable(tmp_path / "new", "", new=True)
    with pytest.raises(InputError, match="exists already"):
        expect_writable(old, "", new=True)
    assert [*tmp_path.iterdir()] == [old] and old.read_text() == "mine"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1, "at": 1, "findings": [{"id": 3}]}', '{"format": 2}'])
def test_a_damaged_file_is_no_look(tmp_path: Path, text: str) -> None:
    file = tmp_path / "look.json"
    file.write_text(text)
    assert last_look(file) is None


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "l40s-deploy"


def test_a_line_an_action_readable_by_its_owner_only() -> None:
    file = documents.audit_file()
    holder = {"who": "ops", "host": "desk", "pid": 1, "command": "l40s-deploy down", "token": "secret"}
    documents.note("begins", gang="gang0", holder=holder)
    documents.note("ends", gang="gang0", holder=holder, why="because")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["action"], line["who"], line["why"]) for line in lines] == [
        ("begins", "ops", ""),
        ("ends", "ops", "because"),
    ]
    assert "secret" not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_place_that_takes_no_line_keeps_nobody_from_working(state: Path) -> None:
    state.write_text("")
    documents.note("begins", gang="gang0", holder={})


def test_the_log_is_bounded_and_keeps_one_predecessor(tmp_path: Path) -> None:
    """Several processes write; no line within the kept part is lost, and none is torn."""
    path = str(tmp_path / "audit.jsonl")

    def write(writer: int) -> None:
        for number in range(100):
            append_line(path, json.dumps([writer, number, "x" * 80]), limit=30_000)

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


def test_the_controllers_log_is_bounded(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_line, "__kwdefaults__", {"limit": 1000})
    for _ in range(50):
        documents.note("begins", gang="gang0", holder={})
    assert sum(one.stat().st_size for one in state.iterdir()) <= 2000


def test_a_run_keeps_its_plan_and_its_events(state: Path) -> None:
    record = RunRecord.open("r1", {"plan_id": "p"})
    record.event("go", nodes=("a", "b"))
    record.event("done")
    assert json.loads((state / "runs/r1/plan.json").read_text()) == {"plan_id": "p"}
    events = [json.loads(line) for line in (state / "runs/r1/events.jsonl").read_text().splitlines()]
    assert [(event["event"], event.get("nodes")) for event in events] == [("go", ["a", "b"]), ("done", None)]
    assert record.trouble == ""


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(state: Path) -> None:
    state.touch()
    record = RunRecord.open("r1", {})
    record.event("go")
    assert "Not a directory" in record.trouble


def test_the_newest_runs_are_kept_and_nothing_that_is_not_ours_goes(state: Path) -> None:
    (state / "runs/notes").mkdir(parents=True)
    for number in range(KEPT + 20):
        RunRecord.open(f"r{number}", {})
        os.utime(state / f"runs/r{number}", (number, number))
    kept = {path.name for path in (state / "runs").iterdir()}
    assert kept == {"notes", *(f"r{number}" for number in range(20, KEPT + 20))}


def test_the_least_free_memory_of_a_plan_is_kept_and_never_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert least_free("gang0", "p1") is None
    for free in (7, 5, 6):
        keep_least_free("gang0", "p1", free)
    assert least_free("gang0", "p1") == 5
    assert least_free("gang0", "p2") is None and least_free("gang1", "p1") is None
    next((tmp_path / "l40s-deploy/least-free").iterdir()).write_text("[]")
    assert least_free("gang0", "p1") is None
