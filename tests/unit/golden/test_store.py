"""Baselines are replaced as a whole; a broken one says which file it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.golden.store import any_baseline, baseline_file, read_baseline
from orchestrator.model.errors import InputError
from orchestrator.records.documents import write_document


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
