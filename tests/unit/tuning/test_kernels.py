"""Which kernels a plan's check runs, and what it makes of what a node says.

The orders in tests/golden/kernels/ are what templates/kernels.py reads, for an L40S: UPDATE_GOLDEN=1 rewrites them.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.reference_cluster import gang

from orchestrator.engines.registry import engine_of
from orchestrator.engines.tuned_validity import flaws, shared_memory
from orchestrator.engines.tuned_wanted import wanted_files
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.protocol.message import parsed
from orchestrator.protocol.planned import Layout
from orchestrator.tuning.kernels import (
    BATCHES,
    KernelVerdict,
    candidates,
    config_text,
    dtype_words,
    gravest,
    jobs_of,
    judged,
    kernels_of,
    shape_words,
    wrong_words,
)
from orchestrator.tuning.messages import KernelCase, KernelLine, KernelsOrder, TuneJob

GOLDEN = Path(__file__).parents[2] / "golden/kernels"
PLANS = {
    "fp8-block64": ("DeepSeek-V3-0324-Block64x64", "sglang-0.5.23", 32, 1),
    "fp8-block128": ("DeepSeek-V3-0324", "sglang-0.5.23", 8, 4),
    "int8": ("DeepSeek-R1-Channel-INT8", "sglang-0.4.4-l40s", 32, 1),
}
CAUSES = engine_of(load_stack("sglang-0.5.23")).watched.causes


def cases(name: str) -> tuple[KernelCase, ...]:
    model, stack, tensor, pipeline = PLANS[name]
    layout = Layout(tensor_parallel=tensor, pipeline_parallel=pipeline, nnodes=len(gang().nodes), gpus_per_node=8)
    return kernels_of(load_profile(model), layout, engine_of(load_stack(stack)).tuned, gpu="NVIDIA L40S")


@pytest.mark.parametrize("name", PLANS)
def test_the_order_for_a_plan_is_the_recorded_one(name: str) -> None:
    order = KernelsOrder(device="cuda", sm=89, shared=101376, case_s=120.0, cases=cases(name))
    file = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        head = json.dumps({**order.as_json(), "cases": 0})
        rows = ",\n  ".join(json.dumps(case.as_json()) for case in order.cases)
        file.write_text(head.replace('"cases": 0', f'"cases": [\n  {rows}\n]') + "\n")
    assert KernelsOrder.read(parsed(file.read_text())) == order


def test_shapes_are_those_of_one_gpu_of_the_layout() -> None:
    found = {(case.name, shape_words(case), dtype_words(case)) for case in cases("fp8-block64")}
    assert {
        ("extend attention", "M=384 heads=4 KV heads=4 qk=192 v=128", "bf16"),
        ("extend attention", "M=384 heads=4 KV heads=1 qk=576 v=512 cached", "bf16"),
        ("decode attention", "M=2 heads=4 KV heads=1 qk=576 v=512 cached", "bf16"),
        ("MLA absorb", "M=32 N=512 K=128 heads=4", "fp8"),
        ("FP8 block GEMM", "M=1024 N=1152 K=7168", "fp8 64x64"),
        ("fused MoE", "M=32 E=257 N=64 K=7168 top=9", "fp8 64x64"),
        ("fused MoE, built-in tiles", "M=32 E=257 N=64 K=7168 top=9", "fp8 64x64"),
    } <= found
    assert ("INT8 scaled GEMM", "int8") in {(case.name, dtype_words(case)) for case in cases("int8")}


@pytest.mark.parametrize(
    ("model", "words"), [("MiniMax-M2", {"attention (gqa)"}), ("gpt-oss-120b", {"GEMM (mxfp4)", "fused MoE (mxfp4)"})]
)
def test_what_this_check_can_not_run_is_among_the_kernels(model: str, words: set[str]) -> None:
    layout = Layout(tensor_parallel=4, nnodes=1, gpus_per_node=8)
    found = kernels_of(load_profile(model), layout, engine_of(load_stack("sglang-0.5.23")).tuned, gpu="NVIDIA L40S")
    assert words <= {case.name for case in found if case.kernel == "unknown"}


def line(**words: Any) -> KernelLine:
    return KernelLine(kernel=0, **words)


TOO_MUCH = "OutOfResources: out of resource: shared memory, Required: 102400, Hardware limit: 101376"
COMPILED = line(verdict="fails", shared=102400, text=f"{TOO_MUCH} (compiled for sm_89)")


@pytest.mark.parametrize(
    ("lines", "verdict", "cause", "text"),
    [
        ([line(verdict="right", error=0.003, us=12.0)], "right", None, ""),
        ([line(verdict="right", error=0.003), line(shared=71680)], "right", None, "71680 of 101376 bytes"),
        ([line(verdict="right", error=0.003), COMPILED], "fails", "SM89-TRITON-TILES", "102400"),
        ([line(verdict="not-run", text="no GPU"), COMPILED], "fails", "SM89-TRITON-TILES", "102400"),
        ([line(verdict="not-run", text="no GPU"), line(shared=9)], "not-run", None, "no GPU; compiled"),
        ([line(verdict="wrong", error=0.4)], "wrong", None, ""),
        ([line(verdict="wrong", error=-1.0)], "wrong", None, ""),
        ([line(verdict="fails", text="RuntimeError: gemm executioin failed")], "fails", "SM89-INT8-GEMM", "gemm"),
        ([line(verdict="fails", text="its process was killed by signal 11")], "fails", None, "signal 11"),
        ([line(verdict="perfect")], "not-run", None, ""),
        ([], "not-run", None, "said nothing"),
    ],
)
def test_what_a_node_says_of_a_kernel_is_one_verdict(
    lines: list[KernelLine], verdict: str, cause: str | None, text: str
) -> None:
    case = KernelCase(id=0, name="k", kernel="extend")
    (found,) = judged([case], [*lines, KernelLine(kernel=7, verdict="fails")], CAUSES, limit=101376)
    assert (found.verdict.value, found.cause and found.cause.id) == (verdict, cause)
    assert text in found.text
    document = found.as_json()
    assert {"name", "shape", "dtype", "verdict", "error", "us", "cause"} <= document.keys()
    assert document["error"] is None or document["error"] >= 0
    what, fix = wrong_words({"node0": [found]})
    assert bool(what) is bool(fix) is (verdict in ("wrong", "fails"))


def test_what_was_not_run_is_never_fine() -> None:
    (right,) = judged([KernelCase(id=0, name="k", kernel="extend")], [line(verdict="right")], CAUSES)
    unknown = replace(right, verdict=KernelVerdict.NOT_RUN)
    assert gravest([right, unknown]) is KernelVerdict.NOT_RUN is gravest([])
    assert gravest([unknown, replace(right, verdict=KernelVerdict.WRONG)]) is KernelVerdict.WRONG


L40S = "N=128,K=128,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"


def test_no_candidate_crosses_a_scale_or_the_gpus_shared_memory() -> None:
    tiles = candidates(L40S)
    assert {tile["BLOCK_SIZE_K"] for tile in tiles} == {32, 64}
    assert max(shared_memory(tile, element=1) for tile in tiles) <= 101376
    assert all(not flaws(L40S, config_text({1: tile, 4096: tile})) for tile in tiles)
    wide = candidates(L40S.replace("[64, 64]", "[128, 128]").replace("NVIDIA_L40S", "NVIDIA_H200"))
    assert {tile["BLOCK_SIZE_K"] for tile in wide} == {32, 64, 128} and len(wide) > len(tiles)


def test_a_shorter_search_is_spread_over_the_space() -> None:
    every, few = candidates(L40S), candidates(L40S, most=20)
    assert len(few) == 20 and set(map(str, few)) <= set(map(str, every))
    assert len(set(map(str, few))) == 20
    for name in every[0]:
        assert {tile[name] for tile in few} == {tile[name] for tile in every}, name


def test_a_name_that_no_engine_looks_for_has_no_candidates() -> None:
    with pytest.raises(ValueError, match="no engine"):
        candidates("README.json")


def jobs(*batches: int) -> tuple[TuneJob, ...]:
    profile, stack = load_profile("DeepSeek-V3-0324-Block64x64"), load_stack("sglang-0.5.23")
    layout = Layout(tensor_parallel=32, pipeline_parallel=1, nnodes=len(gang().nodes), gpus_per_node=8)
    wanted = wanted_files(profile, layout, engine_of(stack).tuned, gpu="NVIDIA L40S", triton="3.9.0")
    return jobs_of(profile, wanted, batches or BATCHES)


def test_jobs_are_every_shape_at_every_batch_size_the_largest_first() -> None:
    found = jobs()
    assert len({job.id for job in found}) == len(found) == len(BATCHES) * len({job.space for job in found})
    assert [job.batch for job in found] == sorted((job.batch for job in found), reverse=True)
    (moe,) = [job for job in found if job.kernel == "moe" and job.batch == 1]
    assert (moe.e, moe.n, moe.k, moe.top_k, moe.dtype, moe.block) == (257, 64, 7168, 9, "fp8_w8a8", (64, 64))
    assert {job.fused for job in found if job.kernel == "moe"} == {True}, "every token goes to the shared expert"
    assert not any(job.fused for job in found if job.kernel == "linear")
    assert any((job.n, job.k) == (2112, 7168) for job in found if job.kernel == "linear")
