"""Bundles: written completely, read back the same, refused when damaged or with foreign entries."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.wheels import small_stack

from orchestrator.hosts.steps.bundle import StackBundle, copy_part, read_bundle, write_bundle
from orchestrator.loading.stacks import load_stack
from orchestrator.model.errors import InputError, VerificationDiffers


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    return small_stack(tmp_path / "stack", "3.11")


def built(stack: Path, path: Path) -> StackBundle:
    return write_bundle(
        path,
        load_stack(str(stack)),
        python="3.11",
        lock=stack.with_suffix(".lock").read_text(),
        wheels=stack.parent / "wheels",
    )


def test_what_was_written_is_read(stack: Path, tmp_path: Path) -> None:
    written = built(stack, tmp_path / "b")
    assert read_bundle(tmp_path / "b") == written
    assert (written.stack, written.python, written.packages) == ("small", "3.11", 2)
    first, second = written.lock.splitlines()
    assert first.startswith("l40s-probe.one==1.0 --hash=sha256:")
    assert second.startswith("l40s_probe_two==2.0+cpu --hash=sha256:")


def test_debian_packages_and_vocabularies_come_along_and_can_be_taken_out(stack: Path, tmp_path: Path) -> None:
    for kind, name in (("debs", "rsync_3.2.7-1+b1_amd64.deb"), ("debs", "Packages"), ("words", "a.tiktoken")):
        (tmp_path / kind).mkdir(exist_ok=True)
        (tmp_path / kind / name).write_text(name)
    made = write_bundle(
        tmp_path / "b",
        load_stack(str(stack)),
        python="3.11",
        lock=stack.with_suffix(".lock").read_text(),
        wheels=stack.parent / "wheels",
        debs=tmp_path / "debs",
        debian="debian bookworm amd64",
        vocabularies=tmp_path / "words",
    )
    assert read_bundle(tmp_path / "b") == made
    assert (made.packages, made.debian, made.vocabularies) == (2, "debian bookworm amd64", ("a.tiktoken",))
    copy_part(made, "debs", tmp_path / "debs.tar")
    with tarfile.open(tmp_path / "debs.tar") as tar:
        assert tar.getnames() == ["debs/Packages", "debs/rsync_3.2.7-1+b1_amd64.deb"]


def test_the_same_parts_give_the_same_bytes(stack: Path, tmp_path: Path) -> None:
    built(stack, tmp_path / "one")
    for wheel in (stack.parent / "wheels").iterdir():
        wheel.touch()
    built(stack, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_lock_s_package_without_a_wheel_is_named_and_nothing_is_left(stack: Path, tmp_path: Path) -> None:
    lock = stack.with_suffix(".lock")
    lock.write_text(lock.read_text() + "missing==3.0\nelsewhere==1.0 ; sys_platform == 'win32'\n")
    with pytest.raises(InputError, match=r"the wheel of missing==3\.0 is missing"):
        built(stack, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["stack"]


def test_one_flipped_bit_is_found(stack: Path, tmp_path: Path) -> None:
    path = tmp_path / "b"
    built(stack, path)
    content = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        place = tar.getmember("wheels/l40s_probe_one-1.0-py3-none-any.whl").offset_data + 7
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(VerificationDiffers, match="l40s_probe_one"):
        read_bundle(path)


def test_every_shorter_file_is_refused(stack: Path, tmp_path: Path) -> None:
    path = tmp_path / "b"
    built(stack, path)
    with tarfile.open(path) as tar:
        end = max(entry.offset_data + entry.size for entry in tar)
    content = path.read_bytes()
    for length in range(0, end, 257):
        path.write_bytes(content[:length])
        with pytest.raises((InputError, VerificationDiffers)):
            read_bundle(path)


def rewritten(path: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]) -> None:
    with tarfile.open(path) as tar:
        entries = [(entry, (tar.extractfile(entry) or io.BytesIO()).read()) for entry in tar]
    change(entries)
    with tarfile.open(path, "w") as tar:
        for entry, content in entries:
            entry.size = len(content) if entry.isreg() else 0
            tar.addfile(entry, io.BytesIO(content))


def foreign(name: str, kind: bytes = tarfile.REGTYPE) -> Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]:
    """Another entry, which the manifest claims too."""

    def change(entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, "/etc/passwd"
        manifest = json.loads(entries[0][1])
        manifest["files"][name] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        entries[0] = (entries[0][0], json.dumps(manifest).encode())
        entries.append((entry, b""))

    return change


@pytest.mark.parametrize(
    "change",
    [
        foreign("../../etc/cron.d/evil"),
        foreign("/etc/cron.d/evil"),
        foreign("wheels/../../evil.whl"),
        foreign("wheels/link.whl", tarfile.SYMTYPE),
        foreign("wheels/fifo.whl", tarfile.FIFOTYPE),
        lambda entries: entries.pop(),
        lambda entries: entries.append((tarfile.TarInfo("wheels/extra.whl"), b"")),
        lambda entries: entries.append(entries[1]),
        lambda entries: entries.reverse(),
        lambda entries: entries.clear(),
        lambda entries: entries.__setitem__(0, (entries[0][0], b'{"format": 2}')),
        lambda entries: entries.__setitem__(0, (entries[0][0], b"[]")),
        lambda entries: entries.__setitem__(0, (entries[0][0], b"[" * 60_000)),
        lambda entries: entries.__setitem__(0, (entries[0][0], entries[0][1].replace(b"3.11", b"3.11; rm"))),
    ],
    ids=[
        "out of it", "absolute", "through wheels", "a link", "a pipe", "a part less", "a part more", "a part twice",
        "another order", "nothing", "a later format", "no manifest", "a deep one", "another Python",
    ],
)  # fmt: skip
def test_what_is_no_bundle_is_refused_before_it_reaches_a_node(
    stack: Path, tmp_path: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]
) -> None:
    path = tmp_path / "b"
    built(stack, path)
    rewritten(path, change)
    with pytest.raises(InputError) as caught:
        read_bundle(path)
    assert "stack build" in caught.value.fix


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_bundle(tmp_path / "none")
