"""One gang, or one gang per node: names, and what the nodes' reports imply."""

from __future__ import annotations

import pytest
from tests.support.reference_cluster import gang, topologies
from tests.support.reference_plan import plan_of

from orchestrator.gang.steps.standing import LastRun, runs_in, stands_as_replicas
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.model.chosen import chosen_gangs, concerned, replicas_of, split
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.planning.build import PlanFacts, build_plan
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.staging import Asked
from orchestrator.protocol.verbs import ReportAnswer


def some(name: str, nodes: int) -> GangSpec:
    return GangSpec(
        name=name,
        nodes=tuple(
            NodeSpec(name=f"{name}n{rank}", gang=name, node_rank=rank, reach=Reach(host="h")) for rank in range(nodes)
        ),
    )


def test_each_node_leads_a_replica_of_its_own() -> None:
    its = replicas_of(some("a", 3))
    assert [(one.name, one.replica_of, one.leader.gang, one.leader.node_rank) for one in its] == [
        (f"a-{rank}", "a", f"a-{rank}", 0) for rank in range(3)
    ]
    assert replicas_of(some("b", 1)) == (some("b", 1),)


def test_the_gangs_name_means_all_of_its_replicas() -> None:
    inventory = split(Inventory(path="i", gangs=(some("a", 2), some("b", 2))), ["a"])
    assert [one.name for one in inventory.gangs] == ["a-0", "a-1", "b"]
    assert [one.name for one in chosen_gangs(inventory, ["a"])] == ["a-0", "a-1"]
    assert [one.name for one in chosen_gangs(inventory, ["a-1", "b"])] == ["a-1", "b"]
    assert concerned(some("a", 2), ["a-1"]) and concerned(some("a", 2), ()) and not concerned(some("a", 2), ["a-2"])


def test_a_replica_with_another_gangs_name_is_refused() -> None:
    with pytest.raises(InputError, match="both be called a-1"):
        split(Inventory(path="i", gangs=(some("a", 2), some("a-1", 1))), ["a"])


@pytest.mark.parametrize(
    ("runs", "replicas"),
    [
        ([], False),
        ([LastRun(False, "20261122-100000-aa", "a"), LastRun(False, "20261122-110000-bb", "a-1")], True),
        ([LastRun(False, "20261122-120000-aa", "a"), LastRun(False, "20261122-110000-bb", "a-1")], False),
        ([LastRun(True, "20261122-100000-aa", "a"), LastRun(False, "20261122-110000-bb", "a-1")], False),
        ([LastRun(True, "20261122-100000-aa", "a-0"), LastRun(False, "20261122-110000-bb", "a")], True),
        ([LastRun(True, "20261122-100000-aa", "router"), LastRun(True, "20261122-100000-aa", "a-7")], False),
    ],
)
def test_what_lives_or_was_started_last_stands(runs: list[LastRun], replicas: bool) -> None:
    assert stands_as_replicas(some("a", 2), runs) is replicas


def test_reports_that_can_not_be_read_still_say_whose_they_are() -> None:
    raw = {"gang": "a-0", "run_id": "r", "alive": True, "state": "of another release"}
    assert list(runs_in(ReportAnswer(now=0.0, reports=(raw, "nonsense")))) == [LastRun(True, "r", "a-0")]


def test_minimax_m2_is_planned_on_each_node_in_the_layout_that_its_profile_names() -> None:
    its = replicas_of(gang())
    profile, known = load_profile("MiniMax-M2"), PlanFacts(topologies=topologies(gang()))
    plan = build_plan(its, profile, load_stack("sglang-0.5.23"), Asked(model=profile.name), known)
    assert [one.name for one in plan.gangs] == [f"{gang().name}-{rank}" for rank in range(4)]
    assert {(one.layout.tensor_parallel, one.layout.pipeline_parallel, one.layout.nnodes) for one in plan.gangs} == {
        (4, 2, 1)
    }
    assert len({one.service_url for one in plan.gangs}) == 4


def test_a_replica_takes_the_degrees_that_were_asked_for() -> None:
    (first, *_) = replicas_of(gang())
    plan = plan_of(first, "MiniMax-M2", tp=8, ep=2)
    assert (plan.gangs[0].layout.tensor_parallel, plan.gangs[0].layout.expert_parallel) == (8, 2)
