"""Locks with hashes: ours have one for every package, and pip accepts only those files."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.wheels import PACKAGES, small_stack, wheel

from orchestrator.hosts.steps import locks, wheelhouse
from orchestrator.hosts.steps.locks import refuse_without, wheels, with_brought
from orchestrator.loading.resources import data_dir
from orchestrator.loading.stacks import load_stack
from orchestrator.model.errors import InputError

OURS = (
    *sorted(data_dir("inventory").glob("stacks/*.lock")),
    *sorted(data_dir("playbooks").glob("roles/router_env/files/*.lock")),
)
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
LOCK = "# why\none==1.0\nTwo_.x[a]==2.0+cpu\nthree==3 ; sys_platform == 'win32'\n"
A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize("lock", OURS, ids=lambda path: path.stem)
def test_every_package_of_our_locks_has_a_hash(lock: Path) -> None:
    assert locks.lacking(lock.read_text()) == (), "run scripts/lock_hashes.py"


def test_hashes_are_put_in_replaced_and_taken_out() -> None:
    first = locks.hashed(LOCK, {"one": [B], "two-x": [B, A]})
    assert first == (
        f"# why\n--require-hashes\none==1.0 \\\n    --hash=sha256:{B}\n"
        f"Two_.x[a]==2.0+cpu \\\n    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n"
        "three==3 ; sys_platform == 'win32'\n"
    )
    assert locks.bare(first) == LOCK
    assert locks.hashed(first, {"one": [A]}) == locks.hashed(LOCK, {"one": [A]})
    assert locks.lacking(first) == ("three==3 ; sys_platform == 'win32'",)
    assert locks.lacking(LOCK)[0] == locks.REQUIRE
    assert [pin["version"] for pin in locks.pins(first)] == ["1.0", "2.0+cpu", "3"]


def pinned(folder: Path) -> Path:
    """A stack of small wheels whose lock knows them by their hashes."""
    stack = small_stack(folder, PYTHON)
    lock = stack.with_suffix(".lock")
    lock.write_text(locks.hashed(lock.read_text(), digests(folder)))
    return stack


def digests(folder: Path) -> dict[str, list[str]]:
    return {
        locks.plain(path.name.split("-")[0]): [hashlib.sha256(path.read_bytes()).hexdigest()]
        for path in (folder / "wheels").iterdir()
    }


@pytest.fixture(autouse=True)
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def bring(stack: Path, folder: Path) -> None:
    folder.mkdir()
    wheelhouse.download(
        stack.with_suffix(".lock").read_text(),
        folder,
        python=PYTHON,
        find_links=str(stack.parent / "wheels"),
        deadline_s=60,
        progress=lambda _: None,
    )


def test_a_bundle_takes_the_locked_wheels_and_refuses_a_changed_one(tmp_path: Path) -> None:
    stack = pinned(tmp_path / "stack")
    bring(stack, tmp_path / "first")
    assert len(list((tmp_path / "first").iterdir())) == len(PACKAGES)
    name, version = next(iter(PACKAGES.items()))
    wheel(stack.parent / "wheels", name, version, {"evil.py": "import os"})
    with pytest.raises(InputError, match="DO NOT MATCH THE HASHES") as refused:
        bring(stack, tmp_path / "second")
    assert "who changed that package" in refused.value.fix


def test_a_lock_of_ours_that_lacks_one_hash_is_not_installed_at_all(tmp_path: Path) -> None:
    stack = pinned(tmp_path / "stack")
    with stack.with_suffix(".lock").open("a") as lock:
        lock.write("l40s-slipped-in==1.0\n")
    wheel(stack.parent / "wheels", "l40s-slipped-in", "1.0")
    with pytest.raises(InputError, match="Hashes are required"):
        bring(stack, tmp_path / "there")


def test_the_script_writes_what_pip_takes_and_finds_what_lacks(tmp_path: Path) -> None:
    stack = small_stack(tmp_path / "stack", PYTHON)
    lock = stack.with_suffix(".lock")
    script = [sys.executable, str(Path(__file__).parents[4] / "scripts/lock_hashes.py"), str(lock)]
    words = [*script, "--python", PYTHON, "--find-links", str(stack.parent / "wheels")]
    assert subprocess.run([*script, "--check"], capture_output=True, timeout=60, check=False).returncode == 1
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert lock.read_text() == locks.hashed(locks.bare(lock.read_text()), digests(stack.parent))
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


@pytest.mark.parametrize("folder", ["", "https://example.org/wheels"])
def test_what_is_missing_is_named_with_where_it_can_be_had(folder: str) -> None:
    with pytest.raises(InputError) as caught:
        wheels(STACK, folder)
    assert caught.value.what == f"{PIN} is on no package index"
    assert "github.com/sgl-project/sglang" in caught.value.fix and "--find-links DIR" in caught.value.fix


def test_a_folder_without_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no sgl_kernel-0\.0\.5\.post4-"):
        wheels(STACK, str(tmp_path))


def test_of_two_wheels_nobody_chooses(tmp_path: Path) -> None:
    for tag in ("cp39-abi3-linux_x86_64", "cp310-cp310-linux_x86_64"):
        (tmp_path / f"sgl_kernel-0.0.5.post4-{tag}.whl").touch()
    with pytest.raises(InputError, match="several wheels"):
        wheels(STACK, str(tmp_path))


def test_an_index_alone_does_not_do_and_is_not_tried() -> None:
    with pytest.raises(InputError, match="on no package index"):
        refuse_without(STACK)
    refuse_without(replace(STACK, bring=()))
