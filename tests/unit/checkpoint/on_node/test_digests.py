"""Digests are cached only for exactly the file that they were computed from."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from orchestrator.checkpoint.on_node.digests import Digests
from orchestrator.protocol.errors import DeployError


def test_a_digest_is_read_once_and_again_after_any_change(tmp_path: Path) -> None:
    counts: list[int] = []
    file = tmp_path / "file"
    file.write_bytes(b"one")
    digests = Digests(str(tmp_path / "state"))
    first = digests.of(file, counts.append)
    assert counts == [3]
    assert first == hashlib.sha256(b"one").hexdigest()
    assert Digests(str(tmp_path / "state")).known(file.stat()) == first
    before = file.stat()
    with file.open("r+b") as open_file:
        open_file.write(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert digests.known(file.stat()) is None, "the mtime was set back, the ctime can't be"
    assert digests.of(file, counts.append) == hashlib.sha256(b"two").hexdigest()


def test_fresh_reads_what_is_remembered(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one")
    digests = Digests(str(tmp_path / "state"))
    digests.keep(file.stat(), "wrong")
    assert digests.of(file, lambda _: None) == "wrong"
    assert digests.of(file, lambda _: None, fresh=True) == hashlib.sha256(b"one").hexdigest()


def test_a_file_that_changes_while_it_is_read_has_no_digest(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one")

    def meddle(_: int) -> None:
        file.write_bytes(b"more")

    with pytest.raises(DeployError, match="changed"):
        Digests(str(tmp_path / "state")).of(file, meddle)
