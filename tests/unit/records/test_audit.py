"""The audit log."""

from __future__ import annotations

import json
from pathlib import Path

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
