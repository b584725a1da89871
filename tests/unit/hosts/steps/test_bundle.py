"""Bundles: written completely, read back the same, refused when damaged or with foreign entries."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.wheels import PACKAGES, small_stack, wheel
from tests.unit.hosts.steps.test_parts import OURS as PYTHON
from tests.unit.hosts.steps.test_parts import bring

from orchestrator.hosts.steps import bundle
from orchestrator.hosts.steps.bundle import (
    StackBundle,
    copy_part,
    read_bundle,
    refuse_without,
    wheels,
    with_brought,
    write_bundle,
)
from orchestrator.loading.profiles import load_stack
from orchestrator.loading.resources import data_dir
from orchestrator.model.packages import pins, plain
from orchestrator.protocol.errors import InputError, VerificationDiffers


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    return small_stack(tmp_path / "stack", "3.11")


def built(stack: Path, path: Path) -> StackBundle:
    return write_bundle(
        path,
        load_stack(str(stack)),
        python="3.11",
        lock=stack.with_suffix(".lock").read_text(),
        folders={"wheels": stack.parent / "wheels"},
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
        folders={"wheels": stack.parent / "wheels", "debs": tmp_path / "debs", "vocabularies": tmp_path / "words"},
        debian="debian bookworm amd64",
    )
    assert read_bundle(tmp_path / "b") == made
    assert (made.packages, made.debian, made.vocabularies) == (2, "debian bookworm amd64", ("a.tiktoken",))
    copy_part(made, "debs", tmp_path / "debs.tar")
    with tarfile.open(tmp_path / "debs.tar") as tar:
        assert tar.getnames() == ["debs/Packages", "debs/rsync_3.2.7-1+b1_amd64.deb"]


def test_the_same_parts_give_the_same_bytes(stack: Path, tmp_path: Path) -> None:
    built(stack, tmp_path / "one")
    for file in (stack.parent / "wheels").iterdir():
        file.touch()
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


OURS = (
    *sorted(data_dir("inventory").glob("stacks/*.lock")),
    *sorted(data_dir("playbooks").glob("roles/router_env/files/*.lock")),
)
LOCK = "# why\none==1.0\nTwo_.x[a]==2.0+cpu\nthree==3 ; sys_platform == 'win32'\n"
A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize("lock", OURS, ids=lambda path: path.stem)
def test_every_package_of_our_locks_has_a_hash(lock: Path) -> None:
    assert bundle.lacking(lock.read_text()) == (), "run scripts/lock_hashes.py"


def test_hashes_are_put_in_replaced_and_taken_out() -> None:
    first = bundle.hashed(LOCK, {"one": [B], "two-x": [B, A]})
    assert first == (
        f"# why\n--require-hashes\none==1.0 \\\n    --hash=sha256:{B}\n"
        f"Two_.x[a]==2.0+cpu \\\n    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n"
        "three==3 ; sys_platform == 'win32'\n"
    )
    assert bundle.bare(first) == LOCK
    assert bundle.hashed(first, {"one": [A]}) == bundle.hashed(LOCK, {"one": [A]})
    assert bundle.lacking(first) == ("three==3 ; sys_platform == 'win32'",)
    assert bundle.lacking(LOCK)[0] == bundle.REQUIRE
    assert [pin["version"] for pin in pins(first)] == ["1.0", "2.0+cpu", "3"]


def pinned(folder: Path) -> Path:
    """A stack of small wheels whose lock knows them by their hashes."""
    stack = small_stack(folder, PYTHON)
    lock = stack.with_suffix(".lock")
    lock.write_text(bundle.hashed(lock.read_text(), digests(folder)))
    return stack


def digests(folder: Path) -> dict[str, list[str]]:
    return {
        plain(path.name.split("-")[0]): [hashlib.sha256(path.read_bytes()).hexdigest()]
        for path in (folder / "wheels").iterdir()
    }


def test_a_bundle_takes_the_locked_wheels_and_refuses_a_changed_one(tmp_path: Path) -> None:
    stack = pinned(tmp_path / "stack")
    lock, place, there = stack.with_suffix(".lock").read_text(), stack.parent / "wheels", tmp_path / "there"
    there.mkdir()
    bring(lock, there, place)
    assert len(list(there.iterdir())) == len(PACKAGES)
    name, version = next(iter(PACKAGES.items()))
    wheel(place, name, version, {"evil.py": "import os"})
    with pytest.raises(InputError, match="DO NOT MATCH THE HASHES") as refused:
        bring(lock, tmp_path, place)
    assert "who changed that package" in refused.value.fix


def test_the_script_writes_what_pip_takes_and_finds_what_lacks(tmp_path: Path) -> None:
    stack = small_stack(tmp_path / "stack", PYTHON)
    lock = stack.with_suffix(".lock")
    script = [sys.executable, str(Path(__file__).parents[4] / "scripts/lock_hashes.py"), str(lock)]
    words = [*script, "--python", PYTHON, "--find-links", str(stack.parent / "wheels")]
    assert subprocess.run([*script, "--check"], capture_output=True, timeout=60, check=False).returncode == 1
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert lock.read_text() == bundle.hashed(bundle.bare(lock.read_text()), digests(stack.parent))
    assert subprocess.run([*script, "--check"], capture_output=True, timeout=60, check=False).returncode == 0


STACK = load_stack("sglang-0.4.4-l40s")
PIN = "sgl-kernel==0.0.5.post4"
WHEEL = "sgl_kernel-0.0.5.post4-cp39-abi3-manylinux2014_x86_64.whl"


def test_a_wheel_is_pinned_by_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / WHEEL).write_bytes(b"kernels")
    (tmp_path / "sgl_kernel-0.0.5.post40-cp39-abi3-manylinux2014_x86_64.whl").write_bytes(b"another version")
    found = wheels(STACK, str(tmp_path))
    assert found == {PIN: tmp_path / WHEEL}
    digest = hashlib.sha256(b"kernels").hexdigest()
    assert with_brought("a==1\n", found) == f"a==1\n{PIN}\n"
    pinned = with_brought("--require-hashes\na==1", found)
    assert pinned == f"--require-hashes\na==1\n{PIN} --hash=sha256:{digest}\n"


@pytest.mark.parametrize(
    ("folder", "tags", "says"),
    [
        ("", (), f"{PIN} is on no package index$"),
        ("https://example.org/wheels", (), f"{PIN} is on no package index$"),
        ("here", (), r"no sgl_kernel-0\.0\.5\.post4-"),
        ("here", ("cp39-abi3-linux_x86_64", "cp310-cp310-linux_x86_64"), "several wheels"),
    ],
)
def test_a_wheel_that_is_missing_or_there_twice_is_named_with_what_to_do(
    tmp_path: Path, folder: str, tags: tuple[str, ...], says: str
) -> None:
    for tag in tags:
        (tmp_path / f"sgl_kernel-0.0.5.post4-{tag}.whl").touch()
    with pytest.raises(InputError) as caught:
        wheels(STACK, str(tmp_path) if folder == "here" else folder)
    assert re.search(says, caught.value.what)
    assert tags or ("github.com/sgl-project/sglang" in caught.value.fix and "--find-links DIR" in caught.value.fix)


def test_an_index_alone_does_not_do_and_is_not_tried() -> None:
    with pytest.raises(InputError, match="on no package index"):
        refuse_without(STACK)
    refuse_without(replace(STACK, bring=()))
