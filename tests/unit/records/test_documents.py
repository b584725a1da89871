"""The findings that a watch keeps; a damaged file does not count as a look."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.model.errors import InputError
from orchestrator.records.documents import (
    any_baseline,
    baseline_file,
    keep_look,
    last_look,
    looks_file,
    read_baseline,
    write_document,
)

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


def test_a_baseline_is_replaced_as_a_whole_and_read_again(tmp_path: Path) -> None:
    file = baseline_file("a", root=tmp_path / "golden")
    assert read_baseline(file) is None
    assert not any_baseline(root=file.parent)
    write_document(file, {"text": "Paris 巴黎"})
    write_document(file, {"text": "other"})
    assert read_baseline(file) == {"text": "other"}
    assert [path.name for path in file.parent.iterdir()] == ["a.json"]
    assert any_baseline(root=file.parent)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\xff"])
def test_a_broken_file_names_itself_and_the_fix(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text, "latin-1")
    with pytest.raises(InputError) as told:
        read_baseline(file)
    assert told.value.where == str(file)
    assert "golden accept" in told.value.fix
