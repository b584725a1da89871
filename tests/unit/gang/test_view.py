"""The gang's state as a table over its nodes' reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.gang.overview import cause_json, status_json
from orchestrator.gang.view import Answer, GangView, view
from orchestrator.model.gang_state import GangState
from orchestrator.protocol.errors import Unreachable
from orchestrator.protocol.hang import HangLook, RankLook
from orchestrator.protocol.report import AgentState, Cause, Phase, RankReport, RankState, Report

NOW = 1000.0
LOST = Unreachable("no route", where="node1", fix="look at it")


def report(rank: int, state: str, **more: Any) -> Report:
    words: dict[str, Any] = {
        "run_id": "r1",
        "gang": "g",
        "node": f"node{rank}",
        "node_rank": rank,
        "state": AgentState(state),
        "alive": state not in ("staged", "stopped", "failed"),
        "started_at": NOW - 60,
        "updated_at": NOW - 1,
        "now": NOW,
    }
    if rank == 0:
        words |= {"service_url": "http://a:1", "service_healthy": True, "service_checked_at": NOW - 1}
    return Report(**{**words, **more})


def stuck(rank: int, state: str) -> Report:
    """Of an agent that has long written nothing."""
    return report(rank, state, updated_at=NOW - 20)


def look(*answers: Answer) -> GangView:
    return view("g", {f"node{rank}": answer for rank, answer in enumerate(answers)})


def both(state: str, **more: Any) -> tuple[Report, Report]:
    return report(0, state, **more), report(1, state, **more)


def test_the_least_free_memory_is_the_fullest_gpus_where_every_node_tells_it() -> None:
    ranks = (RankReport(tp_rank=0, gpu=0, state=RankState.ALIVE),)
    one, other = (report(rank, "ready", ranks=ranks, least_free_bytes=(7 - rank) << 30) for rank in (0, 1))
    assert look(one, other).least_free_bytes == 6 << 30
    assert look(one, replace(other, least_free_bytes=None)).least_free_bytes is None, "of an older release"
    assert status_json([look(one, other)])["gangs"][0]["least_free_bytes"] == 6 << 30
    ended = look(*(replace(each, state=AgentState.STOPPED, alive=False) for each in (one, other)))
    assert status_json([ended])["gangs"][0]["least_free_bytes"] is None


TABLE = [
    ("nothing was ever staged", (None, None), "absent"),
    ("staged", both("staged"), "staged"),
    ("one armed, one staged", (report(0, "armed"), report(1, "staged")), "staged"),
    ("armed", both("armed"), "armed"),
    ("one started", (report(0, "starting"), report(1, "armed")), "armed"),
    ("starting", both("starting"), "starting"),
    ("warming", both("warming"), "warming"),
    ("one ready", (report(0, "ready"), report(1, "warming")), "warming"),
    ("ready", both("ready"), "ready"),
    ("ready, probe refused", (report(0, "ready", service_healthy=False), report(1, "ready")), "degraded"),
    ("ready, probe old", (report(0, "ready", service_checked_at=NOW - 120), report(1, "ready")), "degraded"),
    ("ready, a link is silent", (report(0, "ready", silent=("node1",)), report(1, "ready")), "degraded"),
    ("ready, an agent is stuck", (report(0, "ready"), stuck(1, "ready")), "degraded"),
    ("ready, a stuck agent wrote less", (report(0, "ready"), stuck(1, "warming")), "degraded"),
    ("ready, the stuck leader wrote less", (stuck(0, "starting"), report(1, "ready")), "degraded"),
    ("warming, a stuck agent wrote less", (report(0, "warming"), stuck(1, "starting")), "warming"),
    ("starting, both are stuck", both("starting", updated_at=NOW - 20), "starting"),
    ("ready, a node can't be reached", (report(0, "ready"), LOST), "degraded"),
    ("ready, a node knows nothing", (report(0, "ready"), None), "degraded"),
    ("starting, a node can't be reached", (report(0, "starting"), LOST), "starting"),
    ("nobody can be asked", (LOST, LOST), "unknown"),
    ("draining", both("draining"), "draining"),
    ("stopping", (report(0, "stopped"), report(1, "stopping")), "stopping"),
    ("half stopped", (report(0, "stopped"), report(1, "ready")), "stopping"),
    ("stopped", both("stopped"), "absent"),
    ("one failed", (report(0, "ready"), report(1, "failed")), "failed"),
    ("failed everywhere", both("failed"), "failed"),
    ("an agent died", (report(0, "ready"), report(1, "ready", alive=False)), "failed"),
    ("all agents died", both("ready", alive=False), "failed"),
    ("staged and never armed", both("staged", alive=False), "staged"),
]


@pytest.mark.parametrize(("answers", "state"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_state(answers: tuple[Answer, Answer], state: str) -> None:
    assert look(*answers).state is GangState(state)


def test_an_older_run_on_one_node_is_not_this_run() -> None:
    seen = look(report(0, "ready"), report(1, "failed", run_id="r0", started_at=NOW - 900))
    assert seen.run_id == "r1"
    assert [node.state for node in seen.nodes] == ["ready", "absent"]
    assert seen.state is GangState.DEGRADED


EARLY = Cause(node="node0", text="connection closed by peer", secondary=True, at=NOW)
KILLED = Cause(node="node1", tp_rank=19, signal=9, text="TP19 was killed", at=NOW + 3600)
OUTSIDE = Cause(node="node1", text="the agent on node1 ended", at=NOW)
LATE, LONG_AGO = Cause(node="node0", text="late", at=NOW - 1), Cause(node="node1", text="early", at=NOW + 3595)
HUNG = Cause(node="node0", text="the engine hangs: no token for 61 s")
FIRST: list[tuple[str, tuple[Answer, Answer], Cause, tuple[Cause, ...]]] = [
    ("the leader's order of arrival comes before any clock",
     (report(0, "failed", cause=EARLY, verdict=KILLED), report(1, "failed", cause=KILLED)), KILLED, (EARLY,)),
    ("a secondary cause never comes first",
     (report(0, "failed", cause=EARLY, verdict=EARLY), report(1, "failed", cause=KILLED)), KILLED, (EARLY,)),
    ("a node's own account is better than what others saw",
     (report(0, "failed", cause=OUTSIDE, verdict=OUTSIDE), report(1, "failed", cause=KILLED)), KILLED, (OUTSIDE,)),
    ("what happened longest ago comes first although clocks differ",
     (report(0, "failed", cause=LATE), report(1, "failed", cause=LONG_AGO, now=NOW + 3600)), LONG_AGO, (LATE,)),
    ("a hung engine is a cause although nobody has died",
     (report(0, "ready", service_state="hung", trouble=HUNG), report(1, "ready")), HUNG, ()),
]  # fmt: skip


@pytest.mark.parametrize(("answers", "cause", "secondary"), [row[1:] for row in FIRST], ids=[row[0] for row in FIRST])
def test_the_first_cause(answers: tuple[Answer, Answer], cause: Cause, secondary: tuple[Cause, ...]) -> None:
    seen = look(*answers)
    assert (seen.cause, seen.secondary) == (cause, secondary)


def test_the_cause_of_a_forgotten_run_is_not_shown() -> None:
    old = Cause(node="node1", text="old")
    assert look(report(0, "stopped", cause=old), report(1, "stopped", cause=old)).cause is None


def loading(rank: int, phase: str, step: int = 0, of: int = 0) -> Report:
    return report(rank, "starting", phase=Phase(name=phase, step=step, of=of))


def test_the_straggler_is_named() -> None:
    seen = look(loading(0, "graphs"), loading(1, "weights", 41, 163))
    assert seen.progress == "node1 is at shard 41 of 163, the others are done"
    assert look(loading(0, "graphs"), None).progress == ""


def test_what_every_nodes_log_proves_is_proved_and_else_with_the_nodes() -> None:
    all_of_them = look(*(report(rank, "ready", proved=("it",)) for rank in range(2)))
    assert all_of_them.proved == ("it",)
    assert look(report(0, "ready", proved=("it",)), report(1, "ready")).proved == ("it (node0)",)


def test_what_a_person_has_ended_is_said_where_a_node_does_not_know_it() -> None:
    ended = report(0, "stopped", alive=False, ordered=True)
    seen = look(ended, report(1, "ready", alive=False))
    assert (seen.state.value, seen.ordered) == ("failed", ("node0",))
    assert seen.remarks[0].startswith("an operator has stopped it, as node0 knows; node1 does not")
    whole = look(ended, report(1, "stopped", alive=False, ordered=True))
    assert (whole.state.value, whole.remarks) == ("absent", ())


def test_left_behind_held_memory_and_silence_are_remarks() -> None:
    held = ("GPU 3: 2.0 GiB are in use by process 9 (gone)",)
    seen = look(report(0, "ready", silent=("node1",)), report(1, "failed", left_behind=(7, 8), held=held))
    assert seen.remarks == (
        "node0 has not heard from node1",
        "node1: process 7, 8 did not end",
        "node1: GPU 3: 2.0 GiB are in use by process 9 (gone)",
    )


def ranks(*states: str, held: int = 1 << 30) -> tuple[RankReport, ...]:
    return tuple(
        RankReport(tp_rank=place, gpu=place, pid=100 + place, state=RankState(state), gpu_memory_bytes=held)
        for place, state in enumerate(states)
    )


TROUBLE: list[tuple[str, tuple[Answer, Answer], str]] = [
    ("well", both("ready"), ""),
    ("hung", (report(0, "ready", service_state="hung", service_healthy=False), report(1, "ready")), "hung"),
    ("slow", (report(0, "ready", service_state="slow", service_healthy=False), report(1, "ready")), "slow"),
    ("probe too old", (report(0, "ready", service_checked_at=NOW - 90), report(1, "ready")), "slow"),
    ("a silent link", (report(0, "ready", silent=("node1",)), report(1, "ready")), "silent"),
    ("an agent that is stuck", (report(0, "ready"), stuck(1, "ready")), "silent"),
    ("SSH refused", (report(0, "ready", links={"node1": "heard"}), LOST), "unreachable"),
    ("a stopped rank", (report(0, "ready"), report(1, "ready", ranks=ranks("alive", "stopped"))), "stopped"),
    ("no memory held", (report(0, "ready", ranks=ranks("alive")), report(1, "ready", ranks=ranks("alive", held=0))),
     "no-memory"),
    ("NVML tells nothing", both("ready", ranks=ranks("alive", held=0)), ""),
    ("hung before silent", (report(0, "ready", service_state="hung", silent=("node1",)), report(1, "ready")), "hung"),
]  # fmt: skip


@pytest.mark.parametrize(("answers", "word"), [row[1:] for row in TROUBLE], ids=[row[0] for row in TROUBLE])
def test_what_degrades_a_gang(answers: tuple[Answer, Answer], word: str) -> None:
    seen = look(*answers)
    assert seen.trouble == word
    assert seen.state is (GangState.DEGRADED if word else GangState.READY)


def test_a_stopped_rank_is_why_an_engine_hangs() -> None:
    stopped = report(1, "ready", ranks=ranks("alive", "stopped"))
    seen = look(report(0, "ready", service_state="hung", trouble=HUNG), stopped)
    assert seen.cause is not None
    assert (seen.cause.node, seen.cause.tp_rank, seen.cause.fix) == ("node1", 1, "run `kill -CONT 101` on node1")
    assert "node1: TP1 (pid 101) was stopped by a signal" in seen.remarks


ENDS = [
    ({"rebooted": True}, "rebooted while"),
    ({"disk_full": True}, "disk of node1 is full"),
    ({}, "without a report"),
]


@pytest.mark.parametrize(("why", "words"), ENDS)
def test_a_reboot_and_a_full_disk_are_told_from_a_killed_agent(why: dict[str, bool], words: str) -> None:
    followed = Cause(node="node0", text="x", secondary=True)
    for first in (report(0, "ready"), report(0, "failed", cause=followed)):
        seen = look(first, report(1, "ready", alive=False, **why))
        assert seen.cause is not None and seen.cause.node == "node1" and words in seen.cause.text


def test_a_living_agent_on_a_full_disk_is_a_remark_of_a_gang_that_serves() -> None:
    seen = look(report(0, "ready"), report(1, "ready", disk_full=True))
    assert seen.state is GangState.READY
    assert [words for words in seen.remarks if words.startswith("the disk of node1 is full")]


def test_what_a_run_that_is_over_last_said_of_its_service_and_links_is_no_remark() -> None:
    told: dict[str, Any] = {"service_state": "slow", "service_detail": "no token for 21 s", "silent": ("node1",)}
    alive = look(report(0, "ready", **told), report(1, "ready"))
    assert any("slow" in remark for remark in alive.remarks)
    for state in ("stopped", "failed"):
        assert look(report(0, state, **told), report(1, state)).remarks == ()


THREE = ("node0", "node1", "node3")


def without_one(third: Answer, state: str = "ready", **more: Any) -> GangView:
    """A gang of four whose run was started without node2."""
    running = {rank: report(rank, state, members=THREE, **more) for rank in (0, 1)}
    return look(running[0], running[1], third, report(3, state, node_rank=2, members=THREE, **more))


@pytest.mark.parametrize("third", [LOST, None, report(2, "failed", run_id="r0")], ids=["away", "empty", "back"])
def test_a_run_without_a_node_serves_degraded_and_waits_for_nobody(third: Answer) -> None:
    seen = without_one(third)
    assert (seen.state, seen.trouble, seen.missing, seen.share) == ("degraded", "nodes", ("node2",), "3 of 4 nodes")
    assert seen.serves and not seen.unreachable
    places = [("ready", 0), ("ready", 1), ("left-out", -1), ("ready", 2)]
    assert [(node.state, node.node_rank) for node in seen.nodes] == places
    reached = "can't be reached" if third is LOST else "can be reached"
    assert seen.remarks[0] == f"it runs on 3 of 4 nodes, without node2 (node2 {reached})"


def test_worse_trouble_of_a_run_without_a_node_comes_first() -> None:
    assert without_one(LOST, service_state="hung").trouble == "hung"
    assert without_one(LOST, "starting").state is GangState.STARTING
    assert without_one(LOST, "failed").state is GangState.FAILED


def test_a_stopped_run_without_a_node_is_absent_and_the_node_is_missed_again() -> None:
    seen = without_one(LOST, "stopped")
    assert seen.state is GangState.ABSENT
    assert [node.name for node in seen.unreachable] == ["node2"]
    assert seen.missing == ("node2",)


STAND_IN = ("node0", "node1", "spare0", "node3")


def spared(third: Answer, spare: Answer, members: tuple[str, ...], state: str = "ready") -> GangView:
    """A gang of four and a spare. third: what node2 answers; members: who has a part in the run."""
    answers: dict[str, Answer] = {
        name: report(place, state, node=name, members=members) for place, name in enumerate(members)
    }
    order = ("node0", "node1", "node2", "node3")
    return view("g", {**{name: answers.get(name, third) for name in order}, "spare0": spare}, ("spare0",))


def test_a_spare_that_waits_is_none_of_the_gangs_nodes() -> None:
    for answer, state in ((None, "spare"), (LOST, "unreachable"), (report(4, "failed", run_id="r0"), "spare")):
        seen = spared(None, answer, ("node0", "node1", "node2", "node3"))
        assert (seen.state, seen.trouble, len(seen.nodes)) == (GangState.READY, "", 4)
        assert not seen.unreachable and [(one.name, one.state) for one in seen.spares] == [("spare0", state)]


@pytest.mark.parametrize("third", [LOST, None])
def test_a_gang_with_a_spare_in_a_nodes_place_is_ready_and_says_so(third: Answer) -> None:
    seen = spared(third, report(2, "ready", node="spare0", members=STAND_IN), STAND_IN)
    assert (seen.state, seen.missing, seen.share, seen.stand_ins) == (GangState.READY, ("node2",), "", ("spare0",))
    assert seen.replaced and seen.serving_nodes == 4 and seen.members == STAND_IN
    assert {node.name: node.node_rank for node in seen.nodes}["spare0"] == 2
    assert seen.remarks[0].startswith("it runs on 4 nodes, with the spare spare0, without node2 (node2 can")


def test_a_stand_in_that_is_lost_fails_the_gang_like_any_node() -> None:
    seen = spared(None, LOST, STAND_IN, "failed")
    assert seen.state is GangState.FAILED and [node.name for node in seen.unreachable] == ["spare0"]


def hung_pair(**of_the_leader: Any) -> GangView:
    """Two nodes whose engine hangs, with what they gathered: the second one's rank is in code of its own."""
    waits = (("all_reduce (torch/distributed/distributed_c10d.py:1)", "mlp (model.py:9)"),) * 2
    sleeps = (("slow_step (model.py:12)",),) * 2
    looks = [
        HangLook(node=f"node{rank}", ranks=(RankLook(tp_rank=rank, states=("S", "S"), stacks=stacks),))
        for rank, stacks in enumerate((waits, sleeps))
    ]
    trouble = Cause(node="node0", text="the engine hangs: no new token for 60 s", fix="restart it")
    leads = {"service_state": "hung", "trouble": trouble, "hang": looks[0], **of_the_leader}
    return look(report(0, "ready", **leads), report(1, "ready", hang=looks[1]))


def test_a_hung_gang_s_cause_says_which_hang_it_is() -> None:
    seen = hung_pair()
    assert seen.cause is not None and seen.cause.hang is not None
    cause = seen.cause
    assert (seen.trouble, cause.signature, cause.node, cause.tp_rank) == ("hung", "HANG-RANK-BEHIND", "node1", 1)
    assert seen.cause.text.endswith(
        "TP1 on node1 is at slow_step (model.py:12); the engine hangs: no new token for 60 s"
    )
    assert "l40s-deploy restart g" in seen.cause.fix
    told = cause_json(seen.cause)
    assert told is not None and told["id"] == "HANG-RANK-BEHIND"
    assert told["hang"]["class"] == "HANG-RANK-BEHIND"
    assert told["hang"]["ranks"] == [
        {"tp_rank": 1, "node": "node1", "where": "slow_step (model.py:12)", "collective": "all_reduce"}
    ]


def test_evidence_of_an_earlier_hang_says_nothing_of_a_gang_that_is_well_again() -> None:
    seen = hung_pair(service_state="well", trouble=None)
    assert (seen.trouble, seen.cause) == ("", None)


@pytest.mark.parametrize(("at", "moves"), [(NOW - 20, True), (NOW - 400, False)])
def test_a_compilation_that_was_not_seen_for_minutes_holds_no_guard_back(at: float, moves: bool) -> None:
    seen = hung_pair(hang=HangLook(node="node0", at=at, compilers=("nvcc",)))
    assert seen.cause is not None and seen.cause.hang is not None
    assert (seen.cause.hang.name, seen.cause.hang.moves) == ("HANG-COMPILE", moves)


def test_evidence_is_being_gathered_until_it_should_have_been() -> None:
    assert hung_pair(looks_until=NOW + 5, hang=None).gathering
    assert not hung_pair(looks_until=NOW - 5).gathering
