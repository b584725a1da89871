"""What nodes report: a gang as defined by its newest run's nodes, and their releases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.local_gang import LocalGang
from tests.support.reference_cluster import gang, node

from orchestrator import __version__
from orchestrator.gang.steps.status.history import versions
from orchestrator.gang.steps.status.reports import as_it_runs, views_of
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.protocol.report import AgentState, Report
from orchestrator.protocol.verbs import ReportAnswer

FOUR = replace(gang(4), spares=(node("spare0", 4, spare=True),))


@pytest.mark.parametrize(
    ("members", "nodes"),
    [
        ((), "node0 node1 node2 node3"),
        (("node0", "node1", "node2", "node3"), "node0 node1 node2 node3"),
        (("node0", "node1", "spare0", "node3"), "node0 node1 spare0 node3"),
        (("node1", "node2", "node3"), "node1 node2 node3"),
        (("node0", "renamed", "node3"), "node0 node3"),
    ],
)
def test_its_members_in_their_order_and_no_spare_that_waits(members: tuple[str, ...], nodes: str) -> None:
    runs = as_it_runs(FOUR, GangView(name="gang0", state=GangState.READY, members=members))
    assert [one.name for one in runs.nodes] == nodes.split() and not runs.spares
    assert [one.node_rank for one in runs.nodes] == list(range(len(runs.nodes)))


def test_an_address_that_leads_to_another_node_of_the_gang_is_that_nodes_trouble() -> None:
    first, second = gang(2).nodes
    told = Report(
        run_id="r",
        gang="gang0",
        node=second.name,
        node_rank=1,
        nnodes=2,
        members=(first.name, second.name),
        state=AgentState.READY,
        alive=True,
    )
    answers = {node.name: ReportAnswer(now=1.0, reports=(told.as_json(),)) for node in (first, second)}
    (seen,) = views_of([gang(2)], answers, {})
    lost, runs = seen.nodes
    assert lost.state is NodeState.UNKNOWN and lost.error is not None
    assert second.name in lost.error.what and "ansible_host" in lost.error.fix
    assert runs.state is NodeState.READY and runs.error is None


@pytest.mark.processes
def test_versions_of_a_gang(local: Callable[..., LocalGang]) -> None:
    gang = local()
    assert [(one.state, one.agent) for one in versions(gang.inventory)] == [("absent", "")] * 2
    gang.up()
    told = versions(gang.inventory)
    assert [(one.node, one.state, one.agent, one.stack) for one in told] == [
        (gang.name(rank), "ready", __version__, told[0].stack) for rank in (0, 1)
    ]
