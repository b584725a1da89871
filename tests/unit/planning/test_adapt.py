"""The layout of a gang on fewer nodes than planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.reference_cluster import gang, topologies

from orchestrator.loading.profiles import load_profile
from orchestrator.loading.stacks import load_stack
from orchestrator.model.errors import InputError
from orchestrator.model.plan import GangPlan
from orchestrator.model.profile import ModelProfile, NamedLayout
from orchestrator.model.survivors import part
from orchestrator.planning.build import build_plan
from orchestrator.planning.options import PlanOptions

FINE = load_profile("DeepSeek-V3-0324-Block64x64")
INT8 = load_profile("DeepSeek-R1-Channel-INT8")
TINY = load_profile("tiny-deepseek-v3")


def planned(
    profile: ModelProfile, left: tuple[str, ...], *, stack: str = "sglang-0.5.23", gpus: int = 8, **options: Any
) -> GangPlan:
    spec = part(gang(4, gpus=gpus), left)
    facts = topologies(spec)
    return build_plan([spec], profile, load_stack(stack), facts, PlanOptions(adapt=True, **options)).gangs[0]


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
    assert degrees(planned(FINE, ("node0", "node1", "node2"), pipeline_parallel=6, tensor_parallel=4)) == (6, 4)
    with pytest.raises(InputError, match="it needs 32 GPUs"):
        planned(FINE, ("node0", "node1", "node2"), tensor_parallel=32)


def test_the_old_stack_has_no_pipelines_and_says_what_would_work() -> None:
    with pytest.raises(InputError) as caught:
        planned(FINE, ("node0", "node1", "node2"), stack="sglang-0.4.4-l40s")
    assert "TP24 does not work" in caught.value.what
    assert "PP3 x TP8 (--layout pp3,tp8)" in caught.value.fix
    assert "needs a stack with SGLang 0.5" in caught.value.fix


def test_weights_that_do_not_fit_two_nodes_are_refused() -> None:
    with pytest.raises(InputError):
        planned(FINE, ("node0", "node1"))
