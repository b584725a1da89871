"""up, status and down over real agents and local sessions: the guarantees of `up`, one by one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.commands import down, history, rehearse_restart, restart, status, up, why, would_stop
from tests.support.folders import delete_in_use
from tests.support.local_gang import Local, LocalGang, Notes
from tests.support.ports import free_port
from tests.support.waiting import slack

from orchestrator.engines.serving import Serving
from orchestrator.gang.guarding import GuardAction, GuardMemory, Policy, decide
from orchestrator.gang.overview import status_json
from orchestrator.gang.steps import down as module
from orchestrator.gang.steps import raising
from orchestrator.gang.steps.changes import plan_and_diff
from orchestrator.gang.steps.down import DownRequest, stop_gangs
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.maintenance import MAINTENANCE
from orchestrator.gang.steps.operation import connected
from orchestrator.gang.steps.restart_sequence import ROLLING, RestartRequest
from orchestrator.gang.steps.rollback import ROLLBACK
from orchestrator.gang.steps.staging import staged_plan
from orchestrator.gang.steps.status import overview as looking
from orchestrator.gang.steps.status.logs import logs
from orchestrator.gang.steps.status.reports import see
from orchestrator.gang.steps.up_operation import BeforeGoCheck, UpRequest, starts_of
from orchestrator.gang.view import GangView
from orchestrator.jobs.run import serving_view
from orchestrator.model.chosen import called
from orchestrator.model.deadlines import ARM_S, NETTEST_S, RAILS_ROUND_S, TEST_BEFORE_GO_S
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory, Reach
from orchestrator.nettest.rails import MOST_ROUNDS
from orchestrator.node import processes
from orchestrator.node.agent.sides import LEADERS_CHECKS_S
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import (
    DeployError,
    Exit,
    GangFailed,
    InputError,
    LockHeld,
    NodeError,
    RunsElsewhere,
    Undone,
    Unreachable,
)
from orchestrator.protocol.staging import ARMED_FOR_S, StagingRequest
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session

CHECK = BeforeGoCheck(TEST_BEFORE_GO_S, lambda *_: None)


def elsewhere(gang: LocalGang, tmp_path: Path) -> Inventory:
    """The same cluster as somebody's inventory has it whose state directory is another one."""
    nodes = tuple(replace(node, state_dir=str(tmp_path / "other" / node.name)) for node in gang.gang.nodes)
    return replace(gang.inventory, gangs=(replace(gang.gang, nodes=nodes),))


@pytest.mark.turns(of="a gang's files are elsewhere or gone")
def test_a_gang_whose_state_is_in_another_directory_is_unknown_and_nobody_touches_it(
    serving: LocalGang, tmp_path: Path
) -> None:
    other = elsewhere(serving, tmp_path)
    seen = status(other.gangs)
    assert (seen.views[0].state, seen.exit_code) == (GangState.UNKNOWN, Exit.UNREACHABLE)
    said = " ".join(seen.views[0].remarks)
    assert f"gang gang0 runs there, its state in {serving.state_dir(0)} as" in said and str(tmp_path / "other") in said
    notes: Any = Notes()
    refusing: tuple[Callable[[], object], ...] = (
        lambda: down(other, DownRequest()),
        lambda: would_stop(other, (), now=False),
        lambda: restart(other, RestartRequest(), notes),
        lambda: rehearse_restart(other, RestartRequest(), notes),
        lambda: restart(other, RestartRequest(verb=ROLLBACK), notes),
        lambda: restart(other, RestartRequest(verb=MAINTENANCE), notes),
        lambda: up(other, UpRequest(plan=PlanRequest(model="Fake")), notes),
        lambda: why(other),  # rather than that nothing has failed
        lambda: history(other),
    )
    for refuse in refusing:
        with pytest.raises(RunsElsewhere) as refused:
            refuse()
        assert refused.value.exit_code == Exit.FINDINGS
        assert f"`l40s_state_dir: {serving.state_dir(0)}`" in refused.value.fix and "kill" not in refused.value.fix
    assert serving.view().serves
    serving.stop_all(clear=True)
    assert status(other.gangs).views[0].state is GangState.ABSENT


def on_fleet(inventory: Inventory, step: Callable[[Fleet, GangSpec], object]) -> object:
    (gang,) = inventory.gangs
    with Fleet(gang.nodes) as fleet:
        return step(fleet, gang)


def diff_of(inventory: Inventory) -> object:
    with connected(inventory) as operation:
        return plan_and_diff(operation, PlanRequest(model="Fake"))


def first_failure_of_logs(inventory: Inventory) -> None:
    with connected(inventory) as operation:
        for line in logs(operation, lines=5, follow=False):
            if line.failure is not None:
                raise line.failure


@pytest.mark.turns(of="a gang or its node has another name")
def test_a_renamed_gang_is_said_in_every_verb_and_ended_by_its_former_name(serving: LocalGang) -> None:
    other = called(serving.inventory, serving.gang.name, "prod")
    seen = status(other.gangs)
    assert seen.views[0].state is GangState.UNKNOWN
    assert "gang gang0 runs there; this inventory calls its gang prod" in " ".join(seen.views[0].remarks)
    notes: Any = Notes()
    refusing: tuple[Callable[[], object], ...] = (
        lambda: down(other, DownRequest(gangs=("prod",)), before_stop=lambda: pytest.fail("it was withdrawn")),
        lambda: would_stop(other, ("prod",), now=False),
        lambda: restart(other, RestartRequest(), notes),
        lambda: rehearse_restart(other, RestartRequest(), notes),
        lambda: restart(other, RestartRequest(verb=ROLLING), notes),
        lambda: restart(other, RestartRequest(verb=ROLLBACK), notes),
        lambda: restart(other, RestartRequest(verb=MAINTENANCE), notes),
        lambda: up(other, UpRequest(plan=PlanRequest(model="Fake")), notes),
        lambda: why(other),
        lambda: history(other),
        lambda: diff_of(other),
        lambda: on_fleet(other, partial(serving_view, why="nothing is measured")),  # bench, golden
        lambda: on_fleet(other, staged_plan),  # plan --diff without a model, sweep, export
        lambda: first_failure_of_logs(other),
    )
    for refuse in refusing:
        with pytest.raises(RunsElsewhere) as refused:
            refuse()
        assert "`l40s-deploy down prod --as gang0`" in refused.value.fix
    assert serving.view().serves
    former = called(other, "prod", "gang0")  # as `--as` has it
    assert [node.was for node in down(former, DownRequest(gangs=("gang0",)))] == ["ready"] * len(serving.gang.nodes)
    assert status(other.gangs).views[0].state is GangState.ABSENT


@pytest.mark.turns(of="a gang's files are elsewhere or gone")
def test_a_gang_whose_files_were_deleted_is_unknown_and_down_ends_it(serving: LocalGang) -> None:
    agents = [serving.agent(rank) for rank in range(2)]
    for node in serving.gang.nodes:
        delete_in_use(str(node.state_dir))
    seen = status(serving.inventory.gangs)
    (view,) = seen.views
    assert (view.state, seen.exit_code) == (GangState.UNKNOWN, Exit.UNREACHABLE)
    assert f"its agent (pid {agents[0][0]}) runs, and no file in {serving.state_dir(0)}" in view.remarks[0]
    notes: Any = Notes()
    refusing: tuple[Callable[[], object], ...] = (
        lambda: restart(serving.inventory, RestartRequest(), notes),
        lambda: restart(serving.inventory, RestartRequest(verb=ROLLBACK), notes),
        lambda: up(serving.inventory, UpRequest(plan=PlanRequest(model="Fake")), notes),
        lambda: why(serving.inventory),
        lambda: history(serving.inventory),
    )
    for refuse in refusing:
        with pytest.raises(NodeError, match="runs, and no file in") as refused:
            refuse()
        assert refused.value.exit_code == Exit.FINDINGS and "`l40s-deploy down gang0`" in refused.value.fix
    (would,) = would_stop(serving.inventory, (), now=False)
    assert would.what == "would be stopped on node0, node1, once its running requests have ended"
    with pytest.raises(RunsElsewhere, match="gang gang0 runs there; this inventory calls its gang prod"):
        down(called(serving.inventory, "gang0", "prod"), DownRequest())
    assert all(processes.alive(*agent) for agent in agents)
    stopped = down(serving.inventory, DownRequest())
    assert [(node.was, node.clean) for node in stopped] == [("unknown", True)] * 2
    assert not any(processes.alive(*agent) for agent in agents)
    serving.nothing_left()
    assert status(serving.inventory.gangs).views[0].state is GangState.ABSENT
    assert [view.state for view in serving.up()] == [GangState.READY]


@pytest.mark.turns(of="a gang's files are elsewhere or gone")
def test_a_gang_with_one_node_whose_files_were_deleted_serves_and_says_so(serving: LocalGang) -> None:
    agent = serving.agent(1)
    delete_in_use(serving.state_dir(1))
    (view,) = status(serving.inventory.gangs).views
    assert view.serves and (view.state, view.trouble) == (GangState.DEGRADED, "unreachable")
    assert any(f"node1: its agent (pid {agent[0]}) runs" in words for words in view.remarks)
    assert [(node.was, node.clean) for node in down(serving.inventory, DownRequest())] == [
        ("ready", True),
        ("unknown", True),
    ]
    assert not processes.alive(*agent)
    serving.nothing_left()


@pytest.mark.turns(of="a gang or its node has another name")
def test_a_renamed_node_is_the_same_one(serving: LocalGang) -> None:
    first, *others = serving.gang.nodes
    nodes = (replace(first, name="moved"), *others)
    renamed = replace(serving.inventory, gangs=(replace(serving.gang, nodes=nodes),))
    (view,) = status(renamed.gangs).views
    assert view.serves and f"moved was called {first.name}" in " ".join(view.remarks)
    stopped = down(renamed, DownRequest())
    assert [node.was for node in stopped] == ["ready"] * len(nodes) and all(node.clean for node in stopped)


def test_up_status_down(local: Local) -> None:
    gang = local(nodes=3)
    gang.up()
    document = status_json(status([gang.gang]).views)
    (told,) = document["gangs"]
    assert (told["name"], told["state"], told["model"], told["cause"]) == ("gang0", "ready", "Fake", None)
    assert told["service"] == {"url": f"http://{gang.http}", "healthy": True, "max_queued": None}
    ranks = [rank for node in told["nodes"] for rank in node["ranks"]]
    assert [rank["tp_rank"] for rank in ranks] == list(range(6))
    assert all(rank["state"] == "alive" and rank["pid"] for rank in ranks)
    (again,) = gang.up()
    assert again.run_id == told["run_id"]
    stopped = down(gang.inventory, DownRequest())
    assert [(node.told.state, node.was, node.clean) for node in stopped] == [("stopped", "ready", True)] * 3
    gang.nothing_left()
    assert status([gang.gang]).views[0].state is GangState.ABSENT
    assert [node.was for node in down(gang.inventory, DownRequest())] == ["stopped"] * 3


@pytest.mark.turns(of="status asks the engine")
def test_status_tells_what_the_engine_does_and_no_engine_keeps_it_waiting(
    serving: LocalGang, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, late = Serving(running=2, queued=0, prompt_tokens=1.0, generation_tokens=2.0), threading.Event()
    monkeypatch.setattr(looking, "ask_serving", lambda *_: busy)
    assert status(serving.inventory.gangs).serving == {"gang0": busy}
    monkeypatch.setattr(looking, "ask_serving", lambda *_: late.wait(600.0))
    monkeypatch.setattr(looking, "BUSY_ASK_S", 0.1)
    seen = status(serving.inventory.gangs)
    assert seen.views[0].state is GangState.READY and not seen.serving
    late.set()


@pytest.mark.turns(of="status asks the engine")
def test_what_goes_wrong_with_that_question_is_no_failure_of_status(
    serving: LocalGang, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(looking, "ask_serving", broken)
    seen = status(serving.inventory.gangs)
    assert seen.views[0].state is GangState.READY and not seen.serving


def test_a_short_timeout_of_down_says_what_still_stops_and_the_next_one_finds_it_stopped(local: Local) -> None:
    gang = local(nodes=2, env={0: {"FAKE_TERM": "ignore"}})  # its leader ends when the agent's own time limit is over
    gang.up()
    waited = down(gang.inventory, DownRequest(timeout_s=0.3))
    assert [node.error for node in waited] == [None, None]
    assert any(node.told.alive and not node.clean for node in waited)
    assert all(node.clean for node in down(gang.inventory, DownRequest()))
    gang.nothing_left()


def test_another_plan_is_refused_in_words_and_nothing_is_touched(serving: LocalGang) -> None:
    with pytest.raises(InputError, match="runs another plan") as refused:
        serving.up(plan_id="plan2")
    assert "again" in refused.value.fix
    assert serving.view().state is GangState.READY


def test_nodes_that_share_a_state_directory_are_refused_in_words(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    gang = local(nodes=2)
    shared = gang.state_dir(0)
    monkeypatch.setattr(type(gang), "state_dir", lambda *_: shared)
    with (
        pytest.raises(NodeError, match=r".* and .* have the same state directory") as refused,
        Fleet(gang.gang.nodes) as fleet,
        GangLock(fleet, gang.gang, "up"),
    ):
        gang.raise_on(fleet, UpRequest(plan=PlanRequest(model="Fake")))
    assert "l40s_state_dir" in refused.value.fix
    gang.nothing_left()


@pytest.mark.turns(of="up: a failure of one phase has one cause and leaves nothing", play=2)
def test_a_model_missing_on_one_node_stops_before_anything_is_started(local: Local) -> None:
    gang = local(changes={1: {"model_path": "/nowhere/model"}})
    with pytest.raises(NodeError, match="does not exist") as refused:
        gang.up()
    assert refused.value.where == "node1: /nowhere/model"
    gang.nothing_left()
    assert gang.view().state in (GangState.FAILED, GangState.ABSENT)


@pytest.mark.turns(of="up: a failure of one phase has one cause and leaves nothing", play=2)
def test_a_failure_has_one_cause_and_leaves_nothing(local: Local) -> None:
    gang = local(nodes=3, env={2: {"FAKE_EXIT": "3", "FAKE_LINES": "[TP5] CUDA out of memory"}})
    with pytest.raises(GangFailed, match="the GPU ran out of memory") as failed:
        gang.up()
    assert failed.value.where == "gang gang0: node2 TP5"
    assert failed.value.fix == "use less of it"
    gang.nothing_left()
    seen = gang.view()
    assert seen.state is GangState.FAILED
    assert seen.cause is not None and seen.cause.node == "node2"


@pytest.mark.turns(of="up: a failure of one phase has one cause and leaves nothing", play=2)
def test_a_node_lost_on_the_way_to_go_is_the_cause_that_stays(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(session: Session, verb: str, *words: Any, **more: Any) -> Any:
        if verb == "go" and session.spec.name == "node1":
            raise Unreachable("connection lost", where="node1", fix="look at node1")
        return node_app.ask(session, verb, *words, **more)

    monkeypatch.setattr(raising, "ask", ask)
    gang = local(nodes=3)
    with pytest.raises(Unreachable, match="connection lost"):
        gang.up()
    gang.nothing_left()
    seen = gang.view()
    assert seen.state is GangState.FAILED
    assert seen.cause is not None and (seen.cause.node, seen.cause.fix) == ("node1", "look at node1")
    (account,) = why(gang.inventory)
    assert account.verdict is not None and "connection lost" in account.verdict.cause.text


@pytest.mark.turns(of="up: a failure of one phase has one cause and leaves nothing", play=2)
def test_out_of_time_names_who_was_late_and_leaves_nothing(local: Local) -> None:
    gang = local(env={-1: {"FAKE_DELAY": "3600"}})
    with pytest.raises(GangFailed, match=r"not ready within .*node0 starting"):
        gang.up(timeout_s=3.0 * slack())
    gang.nothing_left()


@pytest.mark.turns
@pytest.mark.parametrize("end", ["timeout", "interrupt"])
def test_a_gang_that_serves_badly_is_not_ended_by_an_up_that_did_not_start_it(
    local: Local, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    gang = local()
    gang.up()
    before = gang.view().run_id

    def slow(*words: Any, **more: Any) -> tuple[GangView, ...]:
        return tuple(
            replace(view, state=GangState.DEGRADED, trouble="slow", service_healthy=False)
            for view in see(*words, **more)
        )

    def interrupt(_: GangView) -> None:
        if end == "interrupt" and len(notes.views) > 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(raising, "see", slow)
    notes = Notes(on_seen=interrupt)
    with pytest.raises((GangFailed, KeyboardInterrupt)) as ended:
        gang.up(notes=notes, timeout_s=0.5 if end == "timeout" else 20.0, undo_on_interrupt=True)
    assert end == "interrupt" or "left it unchanged" in str(ended.value)
    seen = gang.view()
    assert (seen.state, seen.run_id) == (GangState.READY, before)


def _interrupt(view: GangView) -> None:
    if view.state is GangState.STARTING:
        raise KeyboardInterrupt


def test_interrupted_it_goes_on_and_the_next_up_follows_it(local: Local) -> None:
    gang = local(env={-1: {"FAKE_DELAY": "1.5"}})
    with pytest.raises(KeyboardInterrupt):
        gang.up(notes=Notes(on_seen=_interrupt))
    assert len(gang.engine_processes()) >= 2
    notes = Notes()
    gang.up(notes=notes)
    assert gang.view().state is GangState.READY
    assert notes.steps == []


def test_interrupted_with_undo_nothing_is_left(local: Local) -> None:
    gang = local(env={-1: {"FAKE_DELAY": "30"}})
    with pytest.raises(KeyboardInterrupt):
        gang.up(notes=Notes(on_seen=_interrupt), undo_on_interrupt=True)
    gang.nothing_left()


@pytest.mark.turns
@pytest.mark.parametrize("when", ["staged", "tested"])
def test_interrupted_before_any_rank_was_told_to_start_nothing_is_left(
    local: Local, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Armed agents would wait for a dead command, and then end: nothing would continue."""
    gang = local()
    states: list[list[str]] = []

    def before_go(_: GangSpec, requests: Mapping[str, StagingRequest]) -> None:
        states.append([node.state for node in gang.view().nodes])
        raise KeyboardInterrupt

    def ask(session: Session, verb: str, *words: Any, **more: Any) -> Any:
        if verb == "arm" and when == "staged":
            raise KeyboardInterrupt
        return node_app.ask(session, verb, *words, **more)

    monkeypatch.setattr(raising, "ask", ask)
    request = UpRequest(plan=PlanRequest(model="Fake"), timeout_s=20.0)
    with Fleet(gang.gang.nodes) as fleet, pytest.raises(Undone) as undone:
        gang.raise_on(fleet, request, before_go=before_go)
    assert (undone.value.gangs, undone.value.goes_on) == (("gang0",), False)
    assert states == ([] if when == "staged" else [["armed", "armed"]])
    assert {node.state for node in gang.view().nodes} <= {"stopped", "absent"}
    assert all(not processes.alive(*gang.agent(rank)) for rank in range(2))
    gang.nothing_left()


def test_where_the_network_is_tested_first_agents_wait_for_it(local: Local) -> None:
    gang = local()
    request = UpRequest(plan=PlanRequest(model="Fake"))
    requests = (request, replace(request, before_go=(CHECK,)))
    (usual,), (tested,) = (starts_of([gang.gang], gang.plan(), one) for one in requests)
    for start, armed_for_s in ((usual, ARMED_FOR_S), (tested, ARMED_FOR_S + TEST_BEFORE_GO_S)):
        for node in start.requests.values():
            assert node.armed_for_s == armed_for_s
    for node in tested.again().requests.values():  # a restart runs no tests
        assert node.armed_for_s == ARMED_FOR_S


def test_the_time_for_a_test_holds_all_its_parts_and_members_wait_for_their_leader_as_long_as_up_does() -> None:
    assert LEADERS_CHECKS_S == ARM_S
    assert TEST_BEFORE_GO_S > NETTEST_S + MOST_ROUNDS * RAILS_ROUND_S


def test_what_a_killed_up_left_armed_makes_room_for_the_next(local: Local) -> None:
    gang = local()
    gang.armed()
    gang.up()
    assert gang.view().state is GangState.READY


def test_down_works_with_a_dead_leader(serving: LocalGang) -> None:
    serving.signal_agent(0, signal.SIGKILL)
    assert all(node.clean for node in down(serving.inventory, DownRequest()))
    serving.nothing_left()
    assert status([serving.gang]).views[0].state is GangState.ABSENT


def _with_a_lost_node(gang: LocalGang) -> Inventory:
    lost = replace(gang.spec(1), reach=Reach(host="127.0.0.1", port=free_port(), user="nobody"))
    return Inventory(path="hosts.yml", gangs=(GangSpec(name="gang0", nodes=(gang.spec(0), lost)),))


def test_a_node_that_does_not_answer_is_a_value_beside_the_others(serving: LocalGang) -> None:
    inventory = _with_a_lost_node(serving)
    seen = status(inventory.gangs)
    views = seen.views
    assert seen.exit_code is Exit.UNREACHABLE
    assert [node.state for node in views[0].nodes] == ["ready", "unreachable"]
    first, second = down(inventory, DownRequest(now=True))
    assert first.clean and isinstance(second.error, Unreachable)
    serving.nothing_left()  # over the leader link, without the controller
    for there in (serving.inventory, inventory):  # the lost node answers again, or does not: no guard starts the gang
        (left,) = status(there.gangs).views
        assert left.ordered == ("node0",)
        decision, _ = decide(left, GuardMemory(), 0.0, Policy(degrade_after_s=0.0))
        assert decision.do in (GuardAction.NOTHING, GuardAction.WARN), decision


def test_a_holder_that_was_paused_can_not_act_beside_the_one_that_took_over(local: Local) -> None:
    gang = local()
    with Fleet(gang.gang.nodes) as fleet, Fleet(gang.gang.nodes) as others:
        with GangLock(fleet, gang.gang, "up"), GangLock(others, gang.gang, "down", force=True):
            with pytest.raises(DeployError, match="taken over or released"):
                gang.raise_on(fleet, UpRequest(plan=PlanRequest(model="Fake")))
            (stopped, _) = stop_gangs(fleet, [gang.gang], now=True, ordered=True)
            assert stopped.error is not None and "holds it with `down`" in stopped.error.what
            assert [one.error for one in stop_gangs(others, [gang.gang], now=True, ordered=True)] == [None, None]
        assert gang.engine_processes() == []


INVENTORY = Inventory(path="hosts.yml", gangs=(GangSpec(name="a", nodes=()), GangSpec(name="b", nodes=())))


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ("", ["lock a", "lock b", "out of the router", "stop", *["forget what was begun"] * 2]),
        ("b", ["lock a", "held"]),
    ],
)
def test_gangs_leave_the_router_once_every_lock_is_held(
    monkeypatch: pytest.MonkeyPatch, held: str, wanted: list[str]
) -> None:
    done: list[str] = []

    @contextmanager
    def lock(_: object, gang: GangSpec, *__: object, **___: object) -> Iterator[Any]:
        if gang.name == held:
            raise LockHeld("somebody holds it", where="node0", fix="wait")
        done.append(f"lock {gang.name}")
        yield SimpleNamespace(finish=lambda: done.append("forget what was begun"), still_ours=lambda: None)

    monkeypatch.setattr(module, "GangLock", lock)
    monkeypatch.setattr(module, "stop_gangs", lambda *_, **__: done.append("stop"))
    try:
        down(INVENTORY, DownRequest(), before_stop=lambda: done.append("out of the router"))
    except LockHeld:
        done.append("held")
    assert done == wanted
