"""Layouts with a name, and models that a stack can't serve on some GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.reference_cluster import gang, topologies
from tests.support.reference_plan import plan_of

from orchestrator.loading.profiles import load_profile, load_stack, profile_names
from orchestrator.model.chosen import part
from orchestrator.model.errors import InputError
from orchestrator.model.plan import GangPlan
from orchestrator.model.profile import ModelProfile, ModelRefusal, NamedLayout
from orchestrator.model.topology import Gpu
from orchestrator.planning.layout import laid_out, refusal
from orchestrator.planning.offers import offer

NEW, OLD, CPU = (load_stack(name) for name in ("sglang-0.5.23", "sglang-0.4.4-l40s", "sglang-0.5.23-cpu"))
STOCK = load_profile("DeepSeek-V3-0324")
SPARSE = load_profile("DeepSeek-V3.2")


def gpu(name: str = "NVIDIA L40S", sm: int = 0) -> Gpu:
    found = next(iter(next(iter(topologies(gang()).values())).gpus))
    return replace(found, name=name, sm=sm)


def test_a_layout_brings_its_degrees_flags_and_environment() -> None:
    plan = plan_of(model=STOCK, layout="node-stages-pcie-ipc").gangs[0]
    assert (plan.layout.tensor_parallel, plan.layout.pipeline_parallel) == (8, 4)
    assert dict(plan.nodes[0].env)["SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"] == "1"
    assert dict(plan.nodes[0].sources)["SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"] == "profile DeepSeek-V3-0324"
    assert plan.nodes[0].argv[plan.nodes[0].argv.index("--pp-max-micro-batch-size") + 1] == "32"


@pytest.mark.parametrize(
    ("degrees", "hidden", "tuned"),
    [((8, 4), 7168, True), ((8, 4), 3072, False), ((4, 8), 7168, False), ((4, 8), 4096, True)],
)
def test_a_plan_says_where_the_all_reduce_over_pcie_is_not_tuned(
    degrees: tuple[int, int], hidden: int, tuned: bool
) -> None:
    env = (("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "1"),)
    mine = NamedLayout(name="mine", tensor_parallel=degrees[0], pipeline_parallel=degrees[1], env=env)
    profile = replace(STOCK, layouts=(mine,), dimensions=replace(STOCK.dimensions, hidden_size=hidden))
    for layouts, wanted in (((mine,), not tuned), ((replace(mine, env=()),), False)):
        made = plan_of(model=replace(profile, layouts=layouts), layout="mine")
        assert ("PCIE-IPC-UNTUNED" in {one.id for one in made.findings}) is wanted


def test_a_layout_says_how_many_requests_a_stage_takes() -> None:
    mine = NamedLayout(
        name="mine", tensor_parallel=8, pipeline_parallel=4, micro_batch=7, flags=(("--log-level", "info"),)
    )
    made = plan_of(model=replace(STOCK, layouts=(mine,)), layout="mine")
    argv = made.gangs[0].nodes[0].argv
    assert argv[argv.index("--pp-max-micro-batch-size") + 1] == "7"
    assert "--log-level" in argv


@pytest.mark.parametrize(
    ("name", "stack", "words"),
    [
        ("nope", NEW, "no layout 'nope'"),
        ("node-stages", OLD, "needs SGLang 0.5"),
    ],
)
def test_a_layout_that_can_not_be_is_refused(name: str, stack: object, words: str) -> None:
    with pytest.raises(InputError) as caught:
        laid_out(STOCK, name, stack)  # type: ignore[arg-type]
    assert words in caught.value.what
    assert "--layout" in caught.value.where


@pytest.mark.parametrize(
    ("gpus", "refused"),
    [
        ((), True),
        ((gpu(),), True),
        ((gpu("NVIDIA H200", 90),), False),
        ((gpu("NVIDIA H100 80GB HBM3"),), False),
        ((gpu("NVIDIA H200", 90), gpu()), True),
        ((gpu("Somebody's GPU"),), True),
    ],
)
def test_the_weakest_gpu_decides(gpus: tuple[Gpu, ...], refused: bool) -> None:
    assert (refusal(SPARSE, NEW, gpus) is not None) is refused


def test_kernels_of_gpus_are_no_matter_on_a_cpu() -> None:
    assert refusal(SPARSE, CPU) is None


def test_a_version_that_lacks_the_model_is_refused_on_every_gpu() -> None:
    profile = replace(STOCK, refused=(ModelRefusal(versions="0.4", below=0, reason="why", source="where"),))
    assert refusal(profile, OLD, [gpu("NVIDIA H200", 90)]) is not None
    assert refusal(profile, NEW) is None


def test_a_plan_of_a_refused_model_names_the_reason_and_what_to_do() -> None:
    with pytest.raises(InputError) as caught:
        plan_of(model=SPARSE)
    assert "sparse attention" in caught.value.what
    assert "compute capability 9 or newer" in caught.value.fix


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_model_is_offered_on_the_reference_cluster_or_refused_with_a_reason(name: str) -> None:
    made = offer(load_profile(name), NEW if not name.startswith("tiny") else CPU, gang())
    assert made.fits or made.refusal
    assert not (made.fits and "kernels" in made.refusal)


@pytest.mark.parametrize("name", profile_names())
def test_named_layouts_of_shipped_models_work(name: str) -> None:
    profile = load_profile(name)
    for each in profile.layouts:
        spec = gang(each.tensor_parallel * each.pipeline_parallel // 8)
        plan = plan_of(spec, profile, layout=each.name)
        assert plan.gangs[0].memory.kv_tokens
        assert each.note


def test_multi_token_prediction_is_offered_by_name_with_its_budget() -> None:
    profile, spec = load_profile("DeepSeek-V3-0324-Block64x64"), gang()
    drafted, plain = (plan_of(spec, profile, layout=name).gangs[0] for name in ("mtp", ""))
    argv = drafted.nodes[0].argv
    assert argv[argv.index("--speculative-algorithm") + 1] == "EAGLE"
    assert drafted.memory.kv_tokens and plain.memory.kv_tokens and drafted.memory.kv_tokens < plain.memory.kv_tokens
    assert "--speculative-algorithm" not in plain.nodes[0].argv
    assert [fit.name for fit in offer(profile, NEW, spec).fits if str(fit.layout) == "TP32"] == [""]


FINE = load_profile("DeepSeek-V3-0324-Block64x64")
INT8 = load_profile("DeepSeek-R1-Channel-INT8")
TINY = load_profile("tiny-deepseek-v3")


def planned(
    profile: ModelProfile, left: tuple[str, ...], *, stack: str = "sglang-0.5.23", gpus: int = 8, **options: Any
) -> GangPlan:
    spec = part(gang(4, gpus=gpus), left)
    return plan_of(spec, profile, stack, adapt=True, **options).gangs[0]


def degrees(plan: GangPlan) -> tuple[int, int]:
    return plan.layout.pipeline_parallel, plan.layout.tensor_parallel


@pytest.mark.parametrize("profile", [FINE, INT8], ids=["64x64", "int8"])
@pytest.mark.parametrize("lost", range(4))
def test_three_nodes_serve_as_stages_whoever_is_lost(profile: ModelProfile, lost: int) -> None:
    left = tuple(f"node{rank}" for rank in range(4) if rank != lost)
    plan = planned(profile, left)
    assert degrees(plan) == (3, 8)
    assert [node.name for node in plan.nodes] == list(left)
    assert [node.node_rank for node in plan.nodes] == [0, 1, 2]
    assert plan.service_url.startswith(f"http://{plan.nodes[0].address}:")
    assert plan.memory.kv_tokens and plan.memory.kv_tokens > 200_000


def test_the_usual_layout_stays_where_it_works() -> None:
    assert degrees(planned(FINE, ("node0", "node1", "node2", "node3"))) == (1, 32)
    assert degrees(planned(TINY, ("node0", "node1"), gpus=4)) == (1, 8)


def test_a_layout_of_the_profiles_list_comes_before_what_arithmetic_finds() -> None:
    named = NamedLayout(
        name="three", tensor_parallel=4, pipeline_parallel=6, versions="0.5", flags=(("--chunked-prefill-size", "64"),)
    )
    other = replace(named, name="of another version", tensor_parallel=2, pipeline_parallel=12, versions="0.4")
    plan = planned(replace(FINE, layouts=(other, named)), ("node0", "node1", "node3"))
    assert degrees(plan) == (6, 4)
    assert "--chunked-prefill-size" in plan.nodes[0].argv


def test_what_is_pinned_is_not_changed() -> None:
    assert degrees(planned(FINE, ("node0", "node1", "node2"), pins={"pipeline_parallel": 6, "tensor_parallel": 4})) == (
        6,
        4,
    )
    with pytest.raises(InputError, match="it needs 32 GPUs"):
        planned(FINE, ("node0", "node1", "node2"), pins={"tensor_parallel": 32})


def test_the_old_stack_has_no_pipelines_and_says_what_would_work() -> None:
    with pytest.raises(InputError) as caught:
        planned(FINE, ("node0", "node1", "node2"), stack="sglang-0.4.4-l40s")
    assert "TP24 does not work" in caught.value.what
    assert "PP3 x TP8 (--layout pp3,tp8)" in caught.value.fix
    assert "needs a stack with SGLang 0.5" in caught.value.fix


def test_weights_that_do_not_fit_two_nodes_are_refused() -> None:
    with pytest.raises(InputError):
        planned(FINE, ("node0", "node1"))
