"""Which GPUs a library holds code for: of libraries that nvcc 13.0 made for known architectures (tests/recorded)."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.tuning.gpu_code import Code, Holds, arch_of, fatbins, holds, listed

RECORDED = Path(__file__).parents[2] / "recorded" / "gpu-code"


def library(name: str) -> bytes:
    """One of those that nvcc made."""
    return gzip.decompress((RECORDED / f"{name}.so.gz").read_bytes())


@pytest.mark.parametrize(
    ("name", "code", "found"),
    [
        ("own", ["sm_89"], {75: Holds.NONE, 86: Holds.NONE, 89: Holds.OWN, 90: Holds.NONE}),
        ("older", ["sm_80"], {80: Holds.OWN, 86: Holds.OLDER, 89: Holds.OLDER, 90: Holds.NONE}),
        ("hopper", ["sm_90a"], {89: Holds.NONE, 90: Holds.OWN, 100: Holds.NONE}),
        ("only-ptx", ["compute_75"], {70: Holds.NONE, 75: Holds.PTX, 89: Holds.PTX}),
        ("ptx", ["compute_80", "sm_80", "sm_90a"], {89: Holds.OLDER, 90: Holds.OWN, 100: Holds.PTX}),
        ("none", [], {89: Holds.NO_CODE}),
    ],
)
def test_what_nvcc_was_told_to_make_is_found(name: str, code: list[str], found: dict[int, Holds]) -> None:
    read = fatbins(library(name))
    assert sorted({str(one) for fatbin in read for one in fatbin}) == code
    assert {arch: holds(read, arch) for arch in found} == found


def test_kernels_for_other_gpus_beside_those_that_run_are_some_only() -> None:
    own, hopper = fatbins(library("own")), fatbins(library("hopper"))
    assert holds((*own, *hopper), 89) is Holds.PARTLY
    assert holds((*own, frozenset()), 89) is Holds.OWN


@pytest.mark.parametrize("content", [b"", b"MZ", b"\x7fELF\x01\x01" + bytes(90), library("own")[:9000]])
def test_what_is_no_whole_library_is_unknown(content: bytes) -> None:
    try:
        read = fatbins(content)
    except ValueError:
        return
    assert read == ()  # cut before its first fat binary


def test_a_fat_binary_of_another_format_is_unknown() -> None:
    other = library("own").replace(b"\x50\xed\x55\xba\x01\x00\x10\x00", b"\x50\xed\x55\xba\x02\x00\x10\x00")
    with pytest.raises(ValueError, match="another format"):
        fatbins(other)
    content = library("own")
    place = content.index(b"\x50\xed\x55\xba\x01\x00\x10\x00") + 16
    with pytest.raises(ValueError, match=r"not known \(77\)"):
        fatbins(content[:place] + b"\x4d" + content[place + 1 :])


@given(st.integers(0, 18000), st.binary(min_size=1, max_size=16))
def test_a_damaged_library_is_read_or_refused(place: int, damage: bytes) -> None:
    content = bytearray(library("ptx"))
    content[place : place + len(damage)] = damage
    try:
        fatbins(bytes(content))
    except ValueError as error:
        assert str(error)


def test_what_cuobjdump_lists_is_understood() -> None:
    text = "ELF file    1: libx.1.sm_80.cubin\nELF file    2: libx.2.sm_90a.cubin\nPTX file    1: libx.1.sm_75.ptx\n"
    assert listed(text) == (frozenset({Code(80), Code(90, only_here=True), Code(75, "compute")}),)
    assert listed("cuobjdump info    : File contains no device code\n") == ()


@pytest.mark.parametrize("word", ["sm_89", "89", "8.9", "sm_8.9"])
def test_an_architecture_has_several_names(word: str) -> None:
    assert arch_of(word) == 89 and arch_of("sm_100") == 100


@pytest.mark.parametrize("word", ["", "ada", "sm_", "compute_89", "8.9.1"])
def test_another_word_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="compute capability"):
        arch_of(word)
