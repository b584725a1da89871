"""Errors of the operating system become a message, a kind and a fix."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from orchestrator.node.files import state_failures
from orchestrator.node.os_errors import failure_of, os_failures, used_up
from orchestrator.protocol.errors import DeployError


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, "no-space"),
        (errno.EDQUOT, "no-space"),
        (errno.EACCES, "unreadable"),
        (errno.EROFS, "read-only"),
        (errno.EMFILE, "no-descriptors"),
        (errno.ENFILE, "no-descriptors"),
        (errno.EAGAIN, "no-processes"),
        (errno.ENOMEM, "no-memory"),
        (errno.EIO, "io"),
        (errno.ESTALE, "io"),
    ],
)
def test_kinds(number: int, kind: str) -> None:
    with pytest.raises(DeployError) as told, os_failures("/models/M"):
        raise OSError(number, os.strerror(number))
    assert (told.value.kind, told.value.where) == (kind, "/models/M")
    assert os.strerror(number) in told.value.what
    assert told.value.fix


def test_the_file_that_the_error_names_is_the_place(tmp_path: Path) -> None:
    with pytest.raises(DeployError) as told, os_failures("/models/M"):
        (tmp_path / "not-there").read_bytes()
    assert told.value.where == f"{tmp_path}/not-there"


def test_a_reader_that_went_away_is_no_failure() -> None:
    with pytest.raises(BrokenPipeError), os_failures("/models/M"):
        raise BrokenPipeError


ROOM = os.statvfs_result((4096, 4096, 100, 50, 50, 1000, 10, 0, 0, 255))
"""Half of its bytes are free, and no inode."""


@pytest.mark.parametrize("turn", [os_failures, state_failures])
def test_a_file_system_without_inodes_is_not_full(
    turn: Callable[[str], AbstractContextManager[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that shows it is of a folder that exists."""
    monkeypatch.setattr(os, "statvfs", lambda _: ROOM)
    missing = f"{tmp_path}/gangs/g/run.json.7.new"
    with pytest.raises(DeployError, match="no inode is left") as told, turn(str(tmp_path)):
        raise OSError(errno.ENOSPC, "No space left on device", missing)
    assert told.value.kind == "no-space" and f"df -i {tmp_path}`" in told.value.fix


def test_a_read_only_file_system_is_nobodys_rights(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="mounted read-only") as told, state_failures(str(tmp_path)):
        raise OSError(errno.EROFS, "Read-only file system", f"{tmp_path}/x/y")
    assert "remount,rw" in told.value.fix and f"-T {tmp_path})" in told.value.fix


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (RuntimeError("can't start new thread"), "no-processes"),
        (MemoryError(), "no-memory"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "no-processes"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/models/M/a"), "no-descriptors"),
    ],
)
def test_what_the_machine_had_not_to_give_is_no_defect(wrong: Exception, kind: str) -> None:
    lack = used_up(wrong, "/models/M")
    assert lack is not None and lack.kind == kind and "report" not in lack.fix
    assert failure_of(wrong, "/models/M", "push-receive").kind == kind


@pytest.mark.parametrize("wrong", [RuntimeError("dictionary changed size"), FileNotFoundError(errno.ENOENT, "no", "a")])
def test_a_defect_stays_one(wrong: Exception) -> None:
    assert used_up(wrong, "/models/M") is None
