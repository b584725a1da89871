"""The complete list of a checkpoint's files, or a refusal that names the one file that is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.checkpoint.on_node.files import files_below
from orchestrator.checkpoint.on_node.push.offer import listed
from orchestrator.node.failure import Failure


def test_regular_files_and_links_to_them_and_nothing_hidden(tmp_path: Path) -> None:
    for name in ("a", "below/b", ".hidden", ".cache/c", "lost+found/d", "e.bin"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    assert list(files_below(tmp_path, lambda path: not path.endswith(".bin"))) == ["a", "link", "below/b"]


def test_a_link_to_nothing_is_refused_where_the_file_matters(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").symlink_to("../blobs/gone")
    assert not list(files_below(tmp_path, lambda _: False))
    with pytest.raises(Failure, match="which does not exist") as told:
        list(files_below(tmp_path))
    assert (told.value.kind, told.value.where) == ("unfinished", f"{tmp_path}/tokenizer.json")


def test_a_link_to_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "code").symlink_to(tmp_path)
    with pytest.raises(Failure, match="link to a directory") as told:
        list(files_below(tmp_path))
    assert told.value.kind == "far-link"


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(Failure) as told:
            list(files_below(directory))
        assert told.value.kind == "unreadable"


def test_a_directory_without_files_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    with pytest.raises(Failure, match="contains no files") as told:
        listed(tmp_path)
    assert told.value.kind == "no-checkpoint"
