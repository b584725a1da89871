"""The configs that a tuning run tries."""

from __future__ import annotations

import json

import pytest
from tests.support.reference_cluster import gang

from orchestrator.engines.registry import engine_of
from orchestrator.engines.tuned_validity import flaws, shared_memory
from orchestrator.engines.tuned_wanted import wanted_files
from orchestrator.loading.profiles import load_profile
from orchestrator.loading.stacks import load_stack
from orchestrator.model.finding import Severity
from orchestrator.protocol.layout import Layout
from orchestrator.tuning.messages import TuneJob, TuneLine, TunersOrder
from orchestrator.tuning.search import BATCHES, candidates, config_text, jobs_of

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
    assert (moe.e, moe.n, moe.k, moe.top_k, moe.dtype, moe.block) == (257, 64, 7168, 8, "fp8_w8a8", (64, 64))
    assert any((job.n, job.k) == (2112, 7168) for job in found if job.kernel == "linear")


def test_an_order_and_a_line_are_read_as_they_were_written() -> None:
    order = TunersOrder(device="cuda", gpus=8, spaces={L40S: candidates(L40S, most=3)}, jobs=jobs(1, 32))
    assert TunersOrder.read(json.loads(json.dumps(order.as_json()))) == order
    line = TuneLine(job="a", gpu=1, config={"BLOCK_SIZE_M": 16}, us=1.5, unfit={"OutOfResources": 3})
    assert TuneLine.read(json.loads(json.dumps(line.as_json()))) == line


def test_a_files_text_is_judged_as_any_other() -> None:
    tile = {**candidates(L40S, most=1)[0], "BLOCK_SIZE_K": 128}
    assert [flaw.severity for flaw in flaws(L40S, config_text({1: tile, 4096: tile}))] == [Severity.STOP]
