"""A gang or a node that the inventory calls otherwise than what runs there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.reference_cluster import gang

from orchestrator.gang.names import as_called_now, former_gang, former_nodes, renamed_words
from orchestrator.model.chosen import replicas_of
from orchestrator.model.inventory import ROUTER_GANG
from orchestrator.protocol.report import AgentState, Cause, Report

GANG = gang(2)
FIRST, SECOND = GANG.nodes


def report(**keys: Any) -> Report:
    words: dict[str, Any] = {"run_id": "r", "gang": GANG.name, "node": FIRST.name, "node_rank": 0}
    return Report(**{**words, "members": (FIRST.name, SECOND.name), "state": AgentState.READY, **keys})


@pytest.mark.parametrize(
    ("about", "reports", "former"),
    [
        ("nothing runs there", [], ""),
        ("its own gang", [report()], ""),
        ("the name that it had", [report(gang="old")], "old"),
        ("what has ended counts for nothing", [report(gang="old", alive=False)], ""),
        ("another node on the same machine", [report(gang="old", node="else")], ""),
        ("a router on a node of the gang", [report(gang=ROUTER_GANG)], ""),
        ("its replicas", [report(gang=replicas_of(GANG)[1].name)], ""),
        ("what is no name goes into no command", [report(gang="$(reboot)")], ""),
        ("beside one that has ended", [report(gang="older", alive=False), report(gang="old")], "old"),
    ],
)
def test_what_its_living_agent_calls_the_gang(about: str, reports: list[Report], former: str) -> None:
    assert former_gang(GANG, FIRST, reports) == former, about


def test_a_replica_is_no_other_gang_than_the_whole_and_a_router_has_no_former_name() -> None:
    (replica, _) = replicas_of(GANG)
    assert former_gang(replica, replica.leader, [report()]) == ""
    assert former_gang(replace(GANG, name=ROUTER_GANG), FIRST, [report()]) == ""


def test_a_node_that_was_renamed_is_the_same_in_every_report() -> None:
    now = former_nodes(GANG, {FIRST.name: report(node="old"), SECOND.name: report(node=SECOND.name)})
    assert now == {"old": FIRST.name}
    told = report(
        node=SECOND.name,
        members=("old", SECOND.name),
        silent=("old",),
        links={"old": "lost"},
        cause=Cause(node="old", text="it died"),
    )
    seen = as_called_now(told, now)
    assert seen.members == (FIRST.name, SECOND.name) and seen.silent == (FIRST.name,)
    assert seen.links == {FIRST.name: "lost"} and seen.cause is not None and seen.cause.node == FIRST.name
    assert "was called old" in " ".join(renamed_words(now))


def test_names_that_two_nodes_have_exchanged_are_told_by_both_of_their_agents() -> None:
    crossed = {FIRST.name: report(node=SECOND.name), SECOND.name: report(node=FIRST.name)}
    now = former_nodes(GANG, crossed)
    assert now == {FIRST.name: SECOND.name, SECOND.name: FIRST.name}
    assert as_called_now(crossed[FIRST.name], now).members == (SECOND.name, FIRST.name)


@pytest.mark.parametrize("other", [{}, {SECOND.name: report(node=SECOND.name)}])
def test_a_name_that_another_node_has_too_is_not_guessed_at(other: dict[str, Report]) -> None:
    assert former_nodes(GANG, {FIRST.name: report(node=SECOND.name), **other}) == {}


def test_what_leads_to_such_a_name_is_not_guessed_at_either() -> None:
    third, last = gang(4).nodes[2:]
    chain = {third.name: report(node=last.name), FIRST.name: report(node=third.name)}
    assert former_nodes(gang(4), chain) == {}


def test_an_agent_that_has_ended_renames_nothing() -> None:
    assert former_nodes(GANG, {FIRST.name: report(node="old", alive=False)}) == {}
