"""Wheels that no index has: found in the operator's folder, pinned by digest; missing ones are named."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.host_setup.local_wheels import refuse_without, wheels, with_brought
from orchestrator.loading.stacks import load_stack
from orchestrator.model.errors import InputError

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
