"""One way for all that brings a checkpoint: whose the directory is while it grows, and how it gets its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.sources import PRODUCT

from orchestrator.checkpoint.on_node import download
from orchestrator.checkpoint.on_node.push import target as push
from orchestrator.checkpoint.on_node.unfinished import Unfinished
from orchestrator.protocol.errors import DeployError

JOURNAL = ".journal"
WAYS = pytest.mark.parametrize("beside", ["", push.PARTIAL, download.PARTIAL])


@WAYS
def test_it_grows_under_a_lock_and_gets_its_name_without_the_journal(tmp_path: Path, beside: str) -> None:
    unfinished = Unfinished(tmp_path / "above" / "it", JOURNAL, beside=beside)
    descriptor = unfinished.take("run")
    (unfinished.folder / "config.json").write_text("{}")
    with pytest.raises(DeployError, match="another push is writing to it") as refused:
        unfinished.take("push")
    assert (refused.value.kind, refused.value.where) == ("lock-held", str(unfinished.folder))
    unfinished.finish()
    os.close(descriptor)
    assert [path.name for path in (tmp_path / "above").rglob("*")] == ["it", "config.json"]


@WAYS
def test_its_lock_is_back_when_the_run_has_ended_and_nothing_is_lost(tmp_path: Path, beside: str) -> None:
    unfinished = Unfinished(tmp_path / "it", JOURNAL, beside=beside)
    os.close(unfinished.take("run"))
    (unfinished.folder / "part").write_text("so far")
    os.close(unfinished.take("run"))
    assert (unfinished.folder / "part").read_text() == "so far"


@WAYS
def test_a_journal_that_is_a_link_is_not_written_through(tmp_path: Path, beside: str) -> None:
    unfinished = Unfinished(tmp_path / "it", JOURNAL, beside=beside)
    unfinished.folder.mkdir()
    (unfinished.folder / JOURNAL).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        unfinished.take("run")
    assert not (tmp_path / "elsewhere").exists()


def test_a_journal_that_a_killed_run_left_in_its_place_is_forgotten(tmp_path: Path) -> None:
    unfinished = Unfinished(tmp_path, JOURNAL, beside=".part")
    (tmp_path / JOURNAL).touch()
    unfinished.forget()
    unfinished.forget()
    assert list(tmp_path.iterdir()) == []


def test_nobody_else_renames_or_locks_a_checkpoint() -> None:
    """push, download and reblock: all by `Unfinished`."""
    room = PRODUCT / "checkpoint/on_node"
    texts = {path.relative_to(room).as_posix(): path.read_text() for path in room.rglob("*.py")}
    others = [name for name, text in texts.items() if "flock(" in text or "os.rename(" in text or ".rename(" in text]
    assert others == ["unfinished.py"]
