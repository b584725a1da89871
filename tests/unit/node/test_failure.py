"""Errors of the operating system become a message, a kind and a fix."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from orchestrator.node.failure import Failure, os_failures


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, "no-space"),
        (errno.EDQUOT, "no-space"),
        (errno.EACCES, "unreadable"),
        (errno.EIO, "io"),
        (errno.ESTALE, "io"),
    ],
)
def test_kinds(number: int, kind: str) -> None:
    with pytest.raises(Failure) as told, os_failures("/models/M"):
        raise OSError(number, os.strerror(number))
    assert (told.value.kind, told.value.where) == (kind, "/models/M")
    assert os.strerror(number) in told.value.what
    assert told.value.fix


def test_the_file_that_the_error_names_is_the_place(tmp_path: Path) -> None:
    with pytest.raises(Failure) as told, os_failures("/models/M"):
        (tmp_path / "not-there").read_bytes()
    assert told.value.where == f"{tmp_path}/not-there"


def test_a_reader_that_went_away_is_no_failure() -> None:
    with pytest.raises(BrokenPipeError), os_failures("/models/M"):
        raise BrokenPipeError
