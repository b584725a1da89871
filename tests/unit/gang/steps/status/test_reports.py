"""What nodes report: a gang as defined by its newest run's nodes, and their releases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.advice import commands, refused
from tests.support.commands import versions
from tests.support.local_gang import LocalGang
from tests.support.reference_cluster import gang, node

from orchestrator import __version__
from orchestrator.gang.steps.status.reports import _without_files, as_it_runs, views_of
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import GangSpec, Reach
from orchestrator.protocol.errors import NodeError, RunsElsewhere
from orchestrator.protocol.report import AgentState, Report
from orchestrator.protocol.verbs import OtherAgent, ReportAnswer

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


FIRST, SECOND = gang(2), replace(gang(2), name="gang1")
SECOND = replace(
    SECOND,
    nodes=tuple(replace(machine, name=f"other{rank}", gang="gang1") for rank, machine in enumerate(SECOND.nodes)),
)


def runs(spec: GangSpec) -> dict[str, ReportAnswer]:
    """What its nodes report, by their names."""
    members = tuple(machine.name for machine in spec.nodes)
    told = {
        name: Report(
            run_id=spec.name,
            gang=spec.name,
            node=name,
            node_rank=rank,
            members=members,
            state=AgentState.READY,
            alive=True,
        )
        for rank, name in enumerate(members)
    }
    return {name: ReportAnswer(now=1.0, reports=(report.as_json(),)) for name, report in told.items()}


def exchanged(first: int, second: int) -> tuple[GangSpec, GangSpec]:
    """One node of each gang, given to the other one."""
    ours, theirs = list(FIRST.nodes), list(SECOND.nodes)
    ours[first], theirs[second] = (
        replace(SECOND.nodes[second], gang="gang0", node_rank=first),
        replace(FIRST.nodes[first], gang="gang1", node_rank=second),
    )
    return replace(FIRST, nodes=tuple(ours)), replace(SECOND, nodes=tuple(theirs))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("second", [0, 1])
def test_a_node_that_was_given_to_another_gang_while_its_own_serves(first: int, second: int) -> None:
    gangs, values = exchanged(first, second), {**runs(FIRST), **runs(SECOND)}
    ours, theirs = views_of(gangs, values, {})
    (moved,) = [seen.error for seen in theirs.nodes if seen.name == f"node{first}"]
    assert isinstance(moved, RunsElsewhere)
    assert moved.what == f"node{first} serves gang0, with node{1 - first}; this inventory gives it to gang1"
    assert moved.fix.startswith(f"put node{first} back into gang0 in the inventory") and "--as" not in moved.fix
    assert any(isinstance(seen.error, RunsElsewhere) for seen in ours.nodes)


def test_machines_of_two_gangs_whose_addresses_were_exchanged_are_not_absent() -> None:
    ours, theirs = FIRST.nodes[1], SECOND.nodes[0]
    first = replace(FIRST, nodes=(FIRST.nodes[0], replace(ours, reach=Reach(host="of-other0"))))
    second = replace(SECOND, nodes=(replace(theirs, reach=Reach(host="of-node1")), SECOND.nodes[1]))
    values = {**runs(FIRST), **runs(SECOND)}
    values |= {ours.name: values[theirs.name], theirs.name: values[ours.name]}
    for view, name, whose in zip(
        views_of((first, second), values, {}), ("node1", "other0"), ("gang1", "gang0"), strict=True
    ):
        (failure,) = [seen.error for seen in view.nodes if seen.error is not None]
        assert isinstance(failure, RunsElsewhere) and f"serves {whose} as" in failure.what
        assert failure.fix.startswith(f"correct ansible_host of {name}, or of ")
    (alone,) = views_of((first,), values, {})
    assert [seen.state for seen in alone.nodes][1] is NodeState.ABSENT  # it may be another inventory's


@pytest.mark.parametrize(
    ("name", "advised"),
    [("gang0", ["down gang0", "models"]), ("router", ["router down", "router up"])],
)
def test_an_agent_whose_files_are_gone_is_ended_and_started_by_commands_that_can_be_pasted(
    name: str, advised: list[str]
) -> None:
    agent = OtherAgent(pid=7, gang=name, node="node0", port=7700, state_dir="/s", user="root")
    lost = _without_files(gang(1, name=name), node("node0"), agent)
    assert list(commands(lost.fix)) == advised and not any(map(refused, advised))


@pytest.mark.parametrize("shown", ["others", "without_files"])
@pytest.mark.parametrize("serves", [True, False])
def test_what_a_stranger_shows_of_a_gang_is_said_and_counts_for_nothing(shown: str, *, serves: bool) -> None:
    """No restart, start or recovery waits for it, and no fix has his path."""
    (first, *_) = FIRST.nodes
    agent = OtherAgent(
        gang=FIRST.name, node=first.name, port=first.ports.agent, state_dir="/evil/path", user="root", stranger="eve"
    )
    answers = runs(FIRST) if serves else {node.name: ReportAnswer(now=1.0) for node in FIRST.nodes}
    shows: dict[str, Any] = {shown: (agent,)}
    (seen,) = views_of([FIRST], {**answers, first.name: replace(answers[first.name], **shows)}, {})
    assert [node.error for node in seen.nodes] == [None, None]
    assert [node.state for node in seen.nodes] == [NodeState.READY if serves else NodeState.ABSENT] * 2
    remarks = " ".join(seen.remarks)
    assert "eve" in remarks and "/evil" not in remarks
    shows[shown] = (replace(agent, stranger=""),)
    (believed,) = views_of([FIRST], {**answers, first.name: replace(answers[first.name], **shows)}, {})
    assert serves or isinstance(believed.nodes[0].error, NodeError)


@pytest.mark.processes
def test_versions_of_a_gang(local: Callable[..., LocalGang]) -> None:
    gang = local()
    assert [(one.state, one.agent) for one in versions(gang.inventory)] == [("absent", "")] * 2
    gang.up()
    told = versions(gang.inventory)
    assert [(one.node, one.state, one.agent, one.stack) for one in told] == [
        (gang.name(rank), "ready", __version__, told[0].stack) for rank in (0, 1)
    ]
