"""The target is refused if writing could do harm, resumed after a kill at every step, and complete only at the end."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoint.on_node import shard
from orchestrator.checkpoint.on_node.directory import JOURNAL
from orchestrator.checkpoint.on_node.reblock import plan, reblock
from orchestrator.checkpoint.on_node.target import check_space, target_failures, write_file
from orchestrator.checkpoint.on_node.verify_reblocked import verify
from orchestrator.protocol.errors import DeployError

from .conftest import digest_of, make, silent, write


def refusal(source: Path, target: Path, block: int = 64) -> DeployError:
    with pytest.raises(DeployError) as refused:
        make(source, target, block)
    assert refused.value.fix
    return refused.value


@pytest.mark.parametrize("target", ["a/.", "a/inside", "a/inside/deeper", "a/..", "other", "other/new"])
def test_source_and_target_in_one_another_by_whatever_name(source: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "other").symlink_to(source)
    before = digest_of(source)
    assert refusal(source, tmp_path / target).kind == "same-directory"
    assert digest_of(source) == before


@pytest.mark.parametrize(("place", "kind"), [("b", "target"), ("b/thesis.tex", "target-exists")])
def test_what_is_somebody_elses_is_left_alone(source: Path, tmp_path: Path, place: str, kind: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("mine")
    assert refusal(source, tmp_path / "b").kind == kind
    assert (tmp_path / place).read_text() == "mine" and sum(1 for _ in (tmp_path / "b").rglob("*")) == place.count("/")


def test_a_finished_target_that_was_damaged_is_not_mended_in_silence(source: Path, tmp_path: Path) -> None:
    make(source, tmp_path / "b")
    shard = min((tmp_path / "b").glob("*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 1)
    failure = refusal(source, tmp_path / "b")
    assert failure.kind == "target-exists"
    assert shard.name in failure.what


def test_a_hard_link_to_the_source_is_replaced_and_not_written(source: Path, tmp_path: Path) -> None:
    interrupted(source, tmp_path / "b")
    before = digest_of(source)
    name = "model-00001-of-000002.safetensors"
    (tmp_path / "b" / name).unlink(missing_ok=True)
    os.link(source / name, tmp_path / "b" / name)
    make(source, tmp_path / "b")
    assert digest_of(source) == before
    verify(plan(source, 64), tmp_path / "b", jobs=1, report=silent)


def interrupted(source: Path, target: Path) -> None:
    """A target that a killed run left: the journal and one shard."""
    make(source, target)
    request = {
        "format": 1,
        "source": str(source),
        "block": [64, 64],
        "files": {
            str(path.relative_to(source)): [path.stat().st_size, path.stat().st_mtime_ns]
            for path in source.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        },
    }
    (target / JOURNAL).write_text(json.dumps(request))
    (target / "config.json").unlink()
    (target / "model.safetensors.index.json").unlink()
    (target / "model-00002-of-000002.safetensors").unlink()


def test_a_resumed_run_keeps_what_was_whole(source: Path, tmp_path: Path) -> None:
    interrupted(source, tmp_path / "b")
    kept = (tmp_path / "b/model-00001-of-000002.safetensors").stat()
    done = make(source, tmp_path / "b")
    assert done.resumed == kept.st_size
    assert (tmp_path / "b/model-00001-of-000002.safetensors").stat().st_ino == kept.st_ino
    verify(plan(source, 64), tmp_path / "b", jobs=1, report=silent)


def test_the_unfinished_target_of_another_request(source: Path, tmp_path: Path) -> None:
    interrupted(source, tmp_path / "b")
    failure = refusal(source, tmp_path / "b", block=32)
    assert failure.kind == "other-run"
    assert "[64, 64]" in failure.what


def test_a_source_that_changed_between_two_runs(source: Path, tmp_path: Path) -> None:
    interrupted(source, tmp_path / "b")
    os.utime(source / "model-00001-of-000002.safetensors", (1, 1))
    failure = refusal(source, tmp_path / "b")
    assert failure.kind == "other-run"
    assert "changed" in failure.what


def test_a_journal_that_was_never_finished(source: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / JOURNAL).write_text('{"format": 1, "blo')
    make(source, tmp_path / "b")
    assert not (tmp_path / "b" / JOURNAL).exists()


def test_two_runs_at_a_time(source: Path, tmp_path: Path) -> None:
    interrupted(source, tmp_path / "b")
    with (tmp_path / "b" / JOURNAL).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert refusal(source, tmp_path / "b").kind == "lock-held"


KILLED_AT = textwrap.dedent(
    """
    import os, pathlib, signal, sys, threading
    left, lock = int(sys.argv[3]), threading.Lock()

    def counted(function):
        def call(*args, **kwargs):
            global left
            with lock:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)
        return call

    for name in ("pwrite", "ftruncate", "fsync", "copy_file_range", "write"):
        setattr(os, name, counted(getattr(os, name)))
    for name in ("replace", "unlink", "mkdir"):
        setattr(pathlib.Path, name, counted(getattr(pathlib.Path, name)))
    from orchestrator.checkpoint.on_node.reblock import plan, reblock
    job = plan(pathlib.Path(sys.argv[1]), 64)
    reblock(job, pathlib.Path(sys.argv[2]), jobs=2, report=lambda now: None)
    print(left)
    """
)


def run_killed_at(step: int, source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """A run in its own process that kills itself (SIGKILL) before its step-th change of the disk."""
    command = [sys.executable, "-c", KILLED_AT, str(source), str(target), str(step)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_killed_at_every_change_of_the_disk_and_resumed(source: Path, tmp_path: Path) -> None:
    never = 10**6
    whole = run_killed_at(never, source, tmp_path / "whole")
    steps = never - int(whole.stdout)
    assert steps > 30
    before = digest_of(source)
    for step in [*range(1, steps - 12, 3), *range(steps - 12, steps + 1)]:
        target = tmp_path / f"b{step}"
        run = run_killed_at(step, source, target)
        assert run.returncode == -9, run.stderr
        if (target / "config.json").exists():
            verify(plan(source, 64), target, jobs=1, report=silent)
        make(source, target)
        assert not any(path.name.startswith(".") for path in target.rglob("*")), step
        verify(plan(source, 64), target, jobs=1, report=silent)
        shutil.rmtree(target)
    assert digest_of(source) == before


def test_space_is_looked_at_first(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((*real[:3], real[3], 7, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    failure = refusal(source, tmp_path / "b")
    assert failure.kind == "no-space"
    assert "is needed" in failure.what
    assert not list((tmp_path / "b").glob("*.safetensors"))


def test_a_file_system_that_does_not_know_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255)))
    check_space(tmp_path, 10**15, 0)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, "no-space"),
        (errno.EDQUOT, "no-space"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "read-only"),
        (errno.EIO, "io"),
    ],
)
def test_what_the_disk_says_is_told_in_words(tmp_path: Path, code: int, kind: str) -> None:
    with pytest.raises(DeployError) as failed, target_failures(tmp_path):
        raise OSError(code, os.strerror(code), str(tmp_path / "x"))
    assert failed.value.kind == kind
    assert failed.value.fix


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Any]:
    """Mounts for the duration of a test."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    done: list[Path] = []

    def mount(*options: str, at: str) -> Path:
        point = tmp_path / at
        point.mkdir(exist_ok=True)
        refused = subprocess.run(["mount", *options, str(point)], capture_output=True, text=True, check=False)
        if refused.returncode:
            pytest.skip(f"cannot mount here: {refused.stderr.strip()}")
        done.append(point)
        return point

    yield mount
    for point in reversed(done):
        subprocess.run(["umount", str(point)], check=True)


def test_a_disk_that_fills_up_and_is_given_room(source: Path, mounted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_of(source)
    disk = mounted("-t", "tmpfs", "-o", "size=512k", "tmpfs", at="disk")
    assert refusal(source, disk / "b").kind == "no-space"
    monkeypatch.setattr("orchestrator.checkpoint.on_node.target.check_space", lambda *_: None)
    failure = refusal(source, disk / "b")
    assert failure.kind == "no-space"
    assert "full" in failure.what
    assert not (disk / "b/config.json").exists()
    assert not list((disk / "b").glob("*.part"))
    subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
    make(source, disk / "b")
    verify(plan(source, 64), disk / "b", jobs=1, report=silent)
    assert digest_of(source) == before


def test_a_read_only_target(source: Path, mounted: Any) -> None:
    disk = mounted("-t", "tmpfs", "-o", "ro,size=8m", "tmpfs", at="disk")
    failure = refusal(source, disk / "b")
    assert failure.kind == "read-only"
    assert str(disk) in failure.where


@pytest.mark.parametrize("kind", ["btrfs", "xfs"])
def test_blocks_are_shared_where_the_file_system_can(real_shapes: Any, tmp_path: Path, mounted: Any, kind: str) -> None:
    tool = shutil.which(f"mkfs.{kind}")
    if tool is None:
        pytest.skip(f"no mkfs.{kind} here")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(600 * 2**20)
    subprocess.run([tool, "-q", str(image)], check=True, capture_output=True)
    disk = mounted("-o", "loop", str(image), at="disk")
    source = write(disk / "a", real_shapes)
    job = plan(source, 64)
    os.sync()
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    done = make(source, disk / "b")
    os.sync()
    taken = free - os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    assert done.shared == sum(layout.shareable for layout in job.layouts.values()) > 0.97 * done.total
    assert taken < 0.1 * done.total
    verify(job, disk / "b", jobs=2, report=silent)


@pytest.mark.parametrize("answer", [None, errno.ENOSYS, errno.EXDEV, 0], ids=["works", "no call", "no way", "nothing"])
def test_every_way_of_copying_gives_the_same_bytes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int | None
) -> None:
    """By the kernel, and where it refuses, or moves nothing and would be asked for ever."""

    def call(*_: object) -> int:
        if answer:
            raise OSError(answer, os.strerror(answer))
        return 0

    monkeypatch.setattr(shard, "STEP_BYTES", 1000)
    if answer is not None:
        monkeypatch.setattr(os, "copy_file_range", call)
    make(source, tmp_path / "b")
    verify(plan(source, 64), tmp_path / "b", jobs=1, report=silent)


def test_a_disk_error_is_no_reason_to_try_another_way(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "copy_file_range", broken)
    assert refusal(source, tmp_path / "b").kind == "io"
    assert not list((tmp_path / "b").glob(".*.part"))


def test_an_error_of_the_sources_disk_names_the_source(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """copy_file_range does not say which file its error is about: the source is read to find out."""
    job = plan(source, 64)
    shard = job.checkpoint.shards[0]
    bad = (source / shard.name).stat().st_ino
    beyond = shard.header.data_start + 100
    pread = os.pread

    def broken_copy(*_: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def broken_read(descriptor: int, length: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino == bad and offset + length > beyond:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, length, offset)

    monkeypatch.setattr(os, "copy_file_range", broken_copy)
    monkeypatch.setattr(os, "pread", broken_read)
    with pytest.raises(DeployError) as told:
        reblock(job, tmp_path / "target", jobs=1, report=lambda _: None)
    assert told.value.kind == "unreadable"
    assert told.value.where == str(source / shard.name)


def test_a_small_file_that_could_be_written_in_part_only_gets_no_name(tmp_path: Path) -> None:
    """Where files may not grow any more, write(2) writes a part, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_file(tmp_path / "index", b"x" * 4097)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
