"""Before an older plan starts again: what its nodes no longer have is listed, node by node."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from tests.support.reference_cluster import topology

from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.steps.doctor import Examination
from orchestrator.gang.steps import checks
from orchestrator.gang.steps.checks import against_on_nodes, against_starts, say_gone
from orchestrator.gang.steps.replay import Staged
from orchestrator.model.inventory import GangSpec, NodeSpec, Reach
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.planned import NodeNetwork, Transport
from orchestrator.protocol.staging import Endpoint, StagingRequest
from orchestrator.protocol.verbs import CheckAnswer

NODES = ("node0", "node1", "node2")


@dataclass
class Told:
    steps: list[tuple[str, str]] = field(default_factory=list)

    def step(self, gang: str, words: str) -> None:
        self.steps.append((gang, words))


def staged() -> Staged:
    request = StagingRequest(
        gang="gang0",
        run_id="r",
        node="any",
        node_rank=0,
        nnodes=2,
        leader=Endpoint(port=7700),
        gpus=tuple(range(8)),
        network=NodeNetwork(transport=Transport.RDMA, hca="=mlx5_0:1,mlx5_1:1"),
    )
    nodes = tuple(
        NodeSpec(name=name, gang="gang0", node_rank=rank, reach=Reach(host=name)) for rank, name in enumerate(NODES)
    )
    return Staged(gang=GangSpec(name="gang0", nodes=nodes), requests=dict.fromkeys(NODES, request))


def test_each_node_that_lacks_something_is_named_with_the_way_to_a_new_plan() -> None:
    was = topology()
    told = Told()
    now = {"node0": was, "node1": replace(was, gpus=was.gpus[1:], rdma=was.rdma[1:])}
    say_gone(staged(), now, told)  # type: ignore[arg-type]
    ((gang, words),) = told.steps
    assert gang == "gang0"
    assert words.startswith("node1 no longer has what its plan needs: GPU 0, RDMA port mlx5_0:1; ")
    assert "plan --diff" in words


def test_a_node_that_could_not_be_looked_at_is_not_judged() -> None:
    told = Told()
    say_gone(staged(), {}, told)  # type: ignore[arg-type]
    assert told.steps == []


def test_a_node_without_any_port_is_against_a_start_by_a_plan_that_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    was, told, plan = topology(), Told(), staged()
    needs = replace(plan.requests["node1"], plan_id="p")
    plan = replace(plan, requests=dict.fromkeys(NODES, needs))
    nodes = {"node0": was, "node1": was, "node2": was}
    seen = Examination(Cluster(topologies=nodes, snapshots={}, specs={}), (), (), {})
    monkeypatch.setattr(checks, "examine", lambda *_: seen)
    fleet = SimpleNamespace(on_every=lambda *_, only: PerNode(values={}, failures={}))
    assert against_starts(fleet, [plan], told) is None  # type: ignore[arg-type]
    nodes["node1"] = replace(was, rdma=tuple(replace(port, state="DOWN") for port in was.rdma))
    against = against_starts(fleet, [plan], told)  # type: ignore[arg-type]
    assert against is not None and against.outdated and against.nodes == ()
    assert against.error.where == "node1" and "l40s-deploy up --model" in against.error.fix


def test_gangs_with_other_checkpoints_are_compared_each_with_itself() -> None:
    """One of two gangs has an index file, the other none."""
    plan = staged()
    other = GangSpec(name="gang1", nodes=tuple(replace(one, name=f"{one.name}b") for one in plan.gang.nodes))
    request = plan.requests["node1"]
    plans = [plan, Staged(gang=other, requests={node.name: request for node in other.nodes})]
    files = {"config.json": "a", "model.safetensors.index.json": "b"}
    told = {name: CheckAnswer(checkpoint=files) for name in NODES} | {
        node.name: CheckAnswer(checkpoint={"config.json": "c"}) for node in other.nodes
    }
    fleet = SimpleNamespace(on_every=lambda *_, only: PerNode(values={n: told[n] for n in only}, failures={}))
    assert against_on_nodes(fleet, plans) is None  # type: ignore[arg-type]
    told["node2b"] = CheckAnswer(checkpoint={"config.json": "a"})
    against = against_on_nodes(fleet, plans)  # type: ignore[arg-type]
    assert against is not None and against.error.where.startswith("node2b: ")
