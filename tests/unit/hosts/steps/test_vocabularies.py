"""Vocabularies: only with the digests that the tokenizers expect."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from orchestrator.hosts.steps import vocabularies
from orchestrator.model.errors import InputError, VerificationDiffers


def test_a_folder_s_files_are_taken_when_they_are_the_right_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabularies, "KNOWN", {"a.tiktoken": hashlib.sha256(b"IQ== 0\n").hexdigest()})
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir()
    folder.mkdir()
    (source / "a.tiktoken").write_bytes(b"IQ== 0\n")
    (source / "unknown").write_bytes(b"")
    vocabularies.bring(folder, source=str(source), deadline_s=1)
    assert [file.name for file in folder.iterdir()] == ["a.tiktoken"]


def test_another_content_is_refused_and_not_taken(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir()
    folder.mkdir()
    (source / "o200k_base.tiktoken").write_bytes(b"IQ== 0\n")
    with pytest.raises(VerificationDiffers) as caught:
        vocabularies.bring(folder, source=str(source), deadline_s=1)
    assert "446a9538" in caught.value.what and caught.value.where == str(source / "o200k_base.tiktoken")
    assert list(folder.iterdir()) == []


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        vocabularies.bring(tmp_path, source=str(tmp_path / "no"), deadline_s=1)
    assert caught.value.where == str(tmp_path / "no" / "o200k_base.tiktoken")
