"""What one node says of where requests go, and of the others, moves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.reference_cluster import gang

from orchestrator.gang.agreement import DISAGREES, agreed_members, current_run, service_of
from orchestrator.gang.guarding import GuardAction, GuardMemory, Policy, decide
from orchestrator.gang.steps.status.reports import views_of
from orchestrator.gang.view import GangView
from orchestrator.model.inventory import GangPorts, GangSpec, NodeSpec
from orchestrator.protocol.report import AgentState, Report
from orchestrator.protocol.verbs import ReportAnswer
from orchestrator.records import plans
from orchestrator.records.plans import RecordedPlan, keep_plan

NOW = 1000.0
SPEC = gang(4)
"""No address is written in its inventory: the plan chose them."""
PINNED = replace(SPEC, nodes=tuple(replace(node, address=f"10.1.0.{11 + node.node_rank}") for node in SPEC.nodes))
NAMES = tuple(node.name for node in SPEC.nodes)
OWN = "http://10.1.0.11:8000"


def report(rank: int, **more: Any) -> Report:
    words: dict[str, Any] = {
        "run_id": "r1",
        "gang": "gang0",
        "node": f"node{rank}",
        "node_rank": rank,
        "members": NAMES,
        "plan_id": "p1",
        "state": AgentState.READY,
        "started_at": NOW - 60,
        "updated_at": NOW - 1,
        "now": NOW,
        "serves_at": "10.1.0.11:8000",
    }
    if rank == 0:
        words |= {"service_url": OWN, "service_healthy": True, "service_checked_at": NOW - 1}
    return Report(**{**words, **more})


def look(spec: GangSpec, *forged: Report) -> GangView:
    by_node = {name: report(rank) for rank, name in enumerate(NAMES)} | {one.node: one for one in forged}
    answers = {name: ReportAnswer(now=NOW, reports=(one.as_json(),)) for name, one in by_node.items()}
    (view,) = views_of([spec], answers, {})
    return view


@pytest.fixture(autouse=True)
def no_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.parametrize("spec", [SPEC, PINNED], ids=["chosen", "pinned"])
def test_a_gang_whose_nodes_agree_serves_where_they_say(spec: GangSpec) -> None:
    view = look(spec)
    assert (view.service_url, view.serves, view.remarks) == (OWN, True, ())


@pytest.mark.parametrize("spec", [SPEC, PINNED], ids=["chosen", "pinned"])
@pytest.mark.parametrize(
    "claim",
    [
        "http://127.0.0.1:18677",
        "http://127.0.0.1:8000",
        "http://10.1.0.99:8000",
        "http://10.0.0.12:8000",
        "http://10.1.0.11:18677",
        "http://10.1.0.11:8000/other",
        "http://10.1.0.11:8000@evil:8000",
        "https://10.1.0.11:8000",
        "file:///etc/passwd",
        "http://[::1:8000",
        "http://10.1.0.11:999999",
        "http://0.0.0.0:8000",
        "x" * 300,
    ],
)
def test_a_leader_that_names_another_address_is_a_remark(spec: GangSpec, claim: str) -> None:
    view = look(spec, report(0, service_url=claim))
    assert view.service_url == (OWN if spec is PINNED else "")
    assert any(words.startswith(f"{DISAGREES}: node0 says that it serves at {claim}") for words in view.remarks)


@pytest.mark.parametrize("spec", [SPEC, PINNED], ids=["chosen", "pinned"])
def test_a_node_that_does_not_lead_names_no_address(spec: GangSpec) -> None:
    forged = report(1, service_url="http://evil:8000", service_healthy=True, service_checked_at=NOW, node_rank=-1)
    view = look(spec, forged, report(0, state=AgentState.WARMING, service_healthy=False))
    assert (view.service_url, view.serves) == (OWN, False)
    assert f"{DISAGREES}: node1 says that it serves the gang, which node0 leads" in view.remarks


@pytest.mark.parametrize("members", [("node1", "node0", "node2", "node3"), ("node1",), ("node7", "x" * 300)])
def test_one_node_moves_no_leader(members: tuple[str, ...]) -> None:
    view = look(PINNED, report(1, members=members, service_url="http://10.1.0.12:8000"))
    assert (view.service_url, view.members, view.missing) == (OWN, NAMES, ())
    assert any(
        words.startswith(f"{DISAGREES}: node1 says that the run's nodes are {members[0]}") for words in view.remarks
    )


def test_one_node_begins_no_run_of_its_own() -> None:
    view = look(PINNED, report(1, run_id="r9", started_at=NOW + 1e6, members=("node1",), plan_id="p9", model="m9"))
    assert (view.run_id, view.plan_id, view.model, view.service_url) == ("r1", "p1", "", OWN)
    assert "node1 is still in another run (r9)" in view.remarks


TWO = replace(PINNED, nodes=PINNED.nodes[:2])
"""A gang in which nobody outvotes a liar."""


def look_at_two(*forged: Report) -> GangView:
    by_node = {one.node: one for one in (report(0, members=NAMES[:2]), report(1, members=NAMES[:2]), *forged)}
    answers = {name: ReportAnswer(now=NOW, reports=(one.as_json(),)) for name, one in by_node.items()}
    (view,) = views_of([TWO], answers, {})
    return view


@pytest.mark.parametrize("liar", [0, 1])
@pytest.mark.parametrize("others", [(), ("node2",), ("node2", "node3")], ids=str)
def test_of_two_nodes_one_does_not_leave_the_other_out(liar: int, others: tuple[str, ...]) -> None:
    """Where it could, a guard would return to both: a restart, by what the liar alone says was asked."""
    view = look_at_two(report(liar, members=(f"node{liar}", *others)))
    assert (view.members, view.missing) == (NAMES[:2], ())
    decided, _ = decide(view, GuardMemory(), NOW, Policy())
    assert decided.do in (GuardAction.NOTHING, GuardAction.WARN)
    assert any(words.startswith(f"{DISAGREES}: node{liar} says that the run's nodes are") for words in view.remarks)


@pytest.mark.parametrize("members", [("node1",), ("node1", "node0"), NAMES[:2]], ids=str)
@pytest.mark.parametrize("started_at", [NOW - 1, NOW - 60])
def test_of_two_nodes_one_begins_no_run_that_requests_go_to(members: tuple[str, ...], started_at: float) -> None:
    own = {"service_url": "http://10.1.0.12:8000", "service_healthy": True, "service_checked_at": NOW - 1}
    view = look_at_two(report(1, run_id="r9", started_at=started_at, members=members, node_rank=0, **own))
    assert view.service_url in (OWN, "")


def test_what_this_machine_recorded_of_a_run_counts_alone() -> None:
    assert service_of(PINNED, "node1", "http://10.1.0.12:8000", recorded=OWN).url == OWN


def test_of_two_nodes_that_disagree_the_inventorys_order_counts() -> None:
    two = {"node0": report(0, members=("node0", "node1")), "node1": report(1, members=("node1", "node0"))}
    assert agreed_members(two) == ("node0", "node1")
    assert agreed_members(dict(reversed([*two.items()]))) == ("node1", "node0")  # whose inventory has them so


def test_an_ended_run_that_is_newer_counts_where_nobody_lives() -> None:
    old, new = report(0, alive=False), report(1, alive=False, run_id="r2", started_at=NOW)
    assert list(current_run({"node0": old, "node1": new})) == ["node1"]


def test_what_this_machine_started_goes_on_where_it_was_started() -> None:
    """The inventory has got another port since; whoever has no record relies on the other members."""
    there, witnesses = "http://10.1.0.11:9000", ["10.1.0.11:9000"] * 3
    assert service_of(PINNED, "node0", there).url == OWN
    assert service_of(PINNED, "node0", there, recorded=there).url == there
    assert service_of(PINNED, "node0", there, witnesses=witnesses).url == there
    assert service_of(PINNED, "node0", there, witnesses=[*witnesses[1:], "10.1.0.11:9001"]).url == OWN
    keep_plan("gang0", "p1", RecordedPlan(service_url=there))
    moved = [report(rank, **({"service_url": there} if rank == 0 else {})) for rank in range(4)]
    assert look(PINNED, *moved).service_url == there


def test_a_record_of_another_shape_is_none(tmp_path: Any) -> None:
    keep_plan("gang0", "p1", RecordedPlan(service_url="http://a:1"))
    (file,) = (tmp_path / "l40s-deploy" / "plans").iterdir()
    assert plans.recorded_plan("gang0", "p1") == RecordedPlan(service_url="http://a:1")
    for text in (
        "[]",
        "{",
        '{"format": 9, "asked": null, "service_url": ""}',
        '{"asked": 5, "service_url": "", "format": 1}',
    ):
        file.write_text(text)
        assert plans.recorded_plan("gang0", "p1") is None
    assert plans.recorded_plan("gang0", "../" + "x" * 3000 + "\ud800\0") is None


def test_an_address_of_the_inventory_counts_as_it_is_written() -> None:
    node = NodeSpec(
        name="a", gang="g", node_rank=0, reach=SPEC.leader.reach, http_host="::1", ports=GangPorts(http=1234)
    )
    assert node.stated_url == "http://[::1]:1234"
    assert replace(node, http_host="0.0.0.0").stated_url == ""
    assert replace(node, http_host="::", address="10.0.0.1").stated_url == "http://10.0.0.1:1234"
