"""The findings that a watch keeps; a damaged file does not count as a look."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.records.documents import keep_look, last_look, looks_file

KEPT = {"id": "A", "severity": "slow", "node": "node0", "devices": [], "title": "t", "fix": "f"}


def test_what_is_kept_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = looks_file("hosts.yml")
    assert last_look(file) is None and file != looks_file("other.yml")
    keep_look(file, 5.0, [KEPT])
    assert last_look(file) == (5.0, [KEPT])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1, "at": 1, "findings": [{"id": 3}]}', '{"format": 2}'])
def test_a_damaged_file_is_no_look(tmp_path: Path, text: str) -> None:
    file = tmp_path / "look.json"
    file.write_text(text)
    assert last_look(file) is None
