"""Usable configs, and every way in which one can be unusable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.tuned_validity import TILE, flaws, read_name, shared_memory
from orchestrator.model.gpu_facts import SHARED_MEMORY
from orchestrator.protocol.severity import Severity

RECORDED = Path(__file__).parents[2] / "recorded" / "triton-3.6.0-sm89-shared-memory.json"
MOE = "E=257,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"
BF16 = "E=8,N=3584,device_name=NVIDIA_L40S.json"
GOOD = {
    "BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 32, "num_warps": 4, "num_stages": 3,
}  # fmt: skip


def text(**changed: Any) -> str:
    return json.dumps({str(size): GOOD | changed for size in (1, 64, 4096)})


def stops(name: str, config: str) -> list[str]:
    return [flaw.text for flaw in flaws(name, config) if flaw.severity is Severity.STOP]


def test_a_good_one() -> None:
    assert flaws(MOE, text()) == ()
    assert flaws(BF16, text(BLOCK_SIZE_K=32)) == ()


def test_a_tile_too_shallow_for_8_bit_numbers_does_not_compile() -> None:
    (only,) = stops(MOE, text(BLOCK_SIZE_K=16))
    assert "BLOCK_SIZE_K is 16" in only and "at least 32" in only
    assert not stops(BF16, text(BLOCK_SIZE_K=16))


@pytest.mark.parametrize("depth", [32, 64])
def test_tiles_that_divide_the_block_are_right(depth: int) -> None:
    assert not stops(MOE, text(BLOCK_SIZE_K=depth))


def test_a_tile_larger_than_the_block_would_give_wrong_text() -> None:
    (only,) = stops(MOE, text(BLOCK_SIZE_K=128))
    assert "the quantisation block 64 is not divisible by BLOCK_SIZE_K 128" in only
    assert "wrong text" in only
    assert only.endswith("(and at 2 more batch sizes)")


def test_tiles_of_a_larger_gpu_do_not_fit() -> None:
    (only,) = stops(BF16, text(BLOCK_SIZE_M=128, BLOCK_SIZE_N=256, num_stages=4))
    assert f"at least {3 * (128 * 64 + 64 * 256) * 2} bytes" in only
    assert "NVIDIA_L40S has 101376" in only
    assert not stops(BF16.replace("L40S", "H100_80GB_HBM3"), text(BLOCK_SIZE_M=128, BLOCK_SIZE_N=256, num_stages=4))
    (only,) = stops(BF16.replace("L40S", "A100-SXM4-80GB"), text(BLOCK_SIZE_M=256, BLOCK_SIZE_N=256, num_stages=4))
    assert "NVIDIA_A100-SXM4-80GB has 166912" in only


@pytest.mark.parametrize(
    ("tile", "stages", "measured"),
    [
        ((64, 64, 64), 3, 16384), ((64, 128, 64), 3, 25088), ((128, 128, 64), 4, 49152), ((16, 64, 64), 5, 20480),
        ((64, 64, 64), 2, 8192), ((128, 256, 64), 4, 74752), ((128, 256, 128), 3, 99328), ((64, 128, 128), 5, 98816),
    ],
)  # fmt: skip
def test_the_estimate_is_what_triton_takes_less_a_kilobyte(
    tile: tuple[int, int, int], stages: int, measured: int
) -> None:
    """measured: Triton 3.9.0's metadata of 0.5.23's _w8a8_block_fp8_matmul, compiled for sm_89."""
    config = dict(zip(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), tile, strict=True)) | {"num_stages": stages}
    assert 0 <= measured - shared_memory(config, element=1) <= 1024


def test_the_estimate_is_never_above_what_triton_takes_on_an_l40s() -> None:
    rows = json.loads(RECORDED.read_text())["rows"]
    refused = 0
    for kernel, *tile, stages, measured in rows:
        config = dict(zip(TILE, tile, strict=True)) | {"num_stages": stages}
        least = shared_memory(config, element=1)
        assert least <= measured, (kernel, config)
        refused += least > SHARED_MEMORY[89]
    too_large = sum(row[-1] > SHARED_MEMORY[89] for row in rows)
    assert 0 < refused <= too_large
    assert too_large - refused <= too_large // 10, "a refusal that is missed by much is no help"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "not a JSON object"),
        ('{"1": {}, "1": {}}', "a key is duplicated"),
        ("[" * 100_000, "not JSON"),
        (json.dumps({"one": GOOD}), "'one' is not a batch size"),
        (json.dumps({"0": GOOD}), "'0' is not a batch size"),
        (json.dumps({"-4": GOOD}), "'-4' is not a batch size"),
        (json.dumps({"1": None}), "found None"),
        (json.dumps({"1": {key: GOOD[key] for key in GOOD if key != "GROUP_SIZE_M"}}), "GROUP_SIZE_M is missing"),
        (text(BLOCK_SIZE_M="64"), "'64', wanted an integer"),
        (text(BLOCK_SIZE_M=True), "True, wanted an integer"),
        (text(BLOCK_SIZE_N=96), "only powers of two"),
        (text(num_warps=3), "only powers of two"),
        (text(num_stages=0), "wanted an integer"),
        (text(BLOCK_SIZE=64), "unknown key 'BLOCK_SIZE'"),
        (" " * (1 << 21), "a config has"),
    ],
)
def test_what_is_no_config(config: str, words: str) -> None:
    assert any(words in flaw for flaw in stops(MOE, config)), flaws(MOE, config)


@pytest.mark.parametrize(
    "name",
    ["config.json", "E=1,K=2,device_name=X.json", "N=1,N=2,device_name=X.json", "../" + MOE, MOE + ".bak", MOE + "\n",
     "E=1,N=2,device_name=a/b.json", "E=8,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8_channelwise.json"],
)  # fmt: skip
def test_names_that_no_engine_looks_for(name: str) -> None:
    assert read_name(name) is None
    assert stops(name, text())


def test_a_name_taken_apart() -> None:
    said = read_name("E=257,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True_down.json")
    assert said is not None
    assert (said.kernel, said.device, said.dtype, said.block) == ("moe", "NVIDIA_L40S", "int8_w8a8", (0, 0))


def test_a_gemm_by_channel_has_tiles_of_its_own() -> None:
    name = "N=4096,K=4096,device_name=NVIDIA_L40S,dtype=fp8_w8a8_channelwise.json"
    tile = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 1024, "num_warps": 4, "num_stages": 1}
    assert not stops(name, json.dumps({"1": tile, "512": None}))
    assert stops(name, json.dumps({"1": {**tile, "num_stages": 4}})), "shared memory"


def test_few_batch_sizes_are_worth_knowing_and_no_more() -> None:
    (high,) = flaws(MOE, json.dumps({"2048": GOOD, "4096": GOOD}))
    assert (high.severity, "smallest batch size is 2048" in high.text) == (Severity.NOTE, True)
    (low,) = flaws(MOE, json.dumps({"4": GOOD, "8": GOOD}))
    assert (low.severity, "largest batch size is 8" in low.text) == (Severity.NOTE, True)


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


@given(DOCUMENTS)
def test_any_json_is_judged_without_an_error(document: Any) -> None:
    assert stops(MOE, json.dumps(document))
