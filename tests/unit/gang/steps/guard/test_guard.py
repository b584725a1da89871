"""guard over real agents: a dead rank restarts the entire gang, two guards don't conflict, the doctor can end it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import commands
from tests.support.commands import restart
from tests.support.local_gang import Local, LocalGang, Notes

from orchestrator.gang.guarding import GuardAction, Policy
from orchestrator.gang.steps import down, raising
from orchestrator.gang.steps.guard import post as posts
from orchestrator.gang.steps.guard.guard import guard
from orchestrator.gang.steps.guard.notice_hook import Hook
from orchestrator.gang.steps.guard.request import GuardRequest
from orchestrator.gang.steps.restart_sequence import ROLLING, RestartRequest
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState
from orchestrator.protocol.errors import InputError, LockHeld, Unreachable
from orchestrator.protocol.severity import Severity
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session

pytestmark = pytest.mark.processes


def look(gang: LocalGang, **words: Any) -> tuple[Notes, GangState, GuardAction]:
    told = Notes()
    (left,) = guard(gang.inventory, GuardRequest(once=True, **words), told)
    return told, left.view.state, left.decision.do


def failed(local: Local, *, rank: int) -> LocalGang:
    """A gang that was up, until this rank was killed."""
    gang = local()
    gang.up()
    gang.kill_rank(rank)
    gang.nothing_left()
    return gang


def test_a_dead_rank_brings_the_whole_gang_back(serving: LocalGang, tmp_path: Path) -> None:
    assert look(serving)[1:] == (GangState.READY, GuardAction.NOTHING)
    before = serving.view().run_id
    serving.kill_rank(3)
    serving.nothing_left()
    out = tmp_path / "hook"
    _, state, _ = look(serving, on_ready=Hook(f"/bin/sh -c 'echo $L40S_WHY > {out}'"))
    assert state is GangState.READY
    assert serving.view().run_id != before
    assert "TP3" in out.read_text()
    lines = Path(os.environ["XDG_STATE_HOME"], "l40s-deploy/audit.jsonl").read_text().splitlines()
    assert any(line["gang"] == "gang0" and "TP3" in line["why"] for line in map(json.loads, lines))


def test_a_stop_finding_holds_the_restart_back_until_it_is_gone(local: Local, findings: list[Finding]) -> None:
    gang = failed(local, rank=0)
    findings.append(Finding(id="GPU-MISSING", severity=Severity.STOP, node="node1", title="a GPU is gone", fix="look"))
    told, state, do = look(gang)
    assert (state, do) == (GangState.FAILED, GuardAction.WAIT)
    assert "a GPU is gone" in told.decisions[-1].why
    gang.nothing_left()
    findings.clear()
    assert look(gang)[1:] == (GangState.READY, GuardAction.RESTART)


@pytest.mark.turns(of="guard: a restart that does not serve ends in words")
def test_a_gang_that_does_not_come_back_is_given_up(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    gang = failed(local, rank=0)
    (gang.model / "config.json").unlink()
    told, state, do = look(gang)
    assert (state, do) == (GangState.FAILED, GuardAction.WAIT), "what its start would be refused for holds it back"
    assert "has no config.json" in told.decisions[-1].why
    monkeypatch.setattr(posts, "against_starts", lambda *_: None)  # as if it went after the checks
    told = Notes()
    policy = Policy(limit=2, first_pause_s=0.1)
    (left,) = guard(gang.inventory, GuardRequest(policy=policy), told)
    assert left.decision.do is GuardAction.GIVE_UP
    assert [decision.do for decision in told.decisions].count(GuardAction.RESTART) >= 1
    gang.nothing_left()


@pytest.mark.turns(of="guard: another guard")
def test_two_guards_do_not_fight_and_a_guard_holds_nobody_up(serving: LocalGang) -> None:
    with Fleet(serving.gang.nodes) as fleet, posts._guard_lock(fleet, serving.gang, GuardRequest()):
        with pytest.raises(LockHeld):
            look(serving)
        serving.stop_all(clear=True)
        serving.up()


def test_one_gang_cannot_roll(serving: LocalGang) -> None:
    with pytest.raises(InputError, match=r"a single gang can't be restarted.*will not serve for about") as refused:
        restart(serving.inventory, RestartRequest(verb=ROLLING), Notes())
    assert refused.value.exit_code == 2
    assert serving.view().state is GangState.READY


@pytest.mark.turns(of="guard: a restart that could not go on is tried again")
def test_a_restart_that_could_not_end_everything_is_tried_again_until_somebody_takes_it_down(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = failed(local, rank=3)

    def held(session: Session, verb: str, *words: Any, **more: Any) -> Any:
        answer = node_app.ask(session, verb, *words, **more)
        return replace(answer, held=("GPU 0: 40 GiB by pid 7 (train)",)) if session.spec.name == "node1" else answer

    with monkeypatch.context() as patched:
        patched.setattr(down, "ask", held)
        told, _, _ = look(gang)
        assert "GPU 0: 40 GiB by pid 7 (train)" in told.decisions[-1].why
    seen = gang.view()
    assert seen.state is GangState.FAILED
    assert seen.cause is not None and seen.cause.tp_rank == 3
    commands.down(gang.inventory, down.DownRequest())
    assert look(gang)[1:] == (GangState.ABSENT, GuardAction.NOTHING)


@pytest.mark.turns(of="guard: a restart that could not go on is tried again")
def test_a_restart_that_lost_a_node_while_staging_is_tried_again(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    gang = failed(local, rank=3)

    def lost(session: Session, verb: str, *words: Any, **more: Any) -> Any:
        if verb == "stage" and session.spec.name == "node1":
            raise Unreachable("connection lost", where="node1", fix="look at node1")
        return node_app.ask(session, verb, *words, **more)

    with monkeypatch.context() as patched:
        patched.setattr(raising, "ask", lost)
        look(gang)
    seen = gang.view()
    assert seen.state is GangState.FAILED
    assert seen.cause is not None and "connection lost" in seen.cause.text
    _, state, do = look(gang)
    assert (state, do) == (GangState.READY, GuardAction.RESTART)


@pytest.mark.turns(of="guard: another guard")
def test_what_a_killed_guard_left_between_staging_and_go_is_restarted_by_the_next(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = failed(local, rank=3)

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(raising._Rise, "_go", ended)
        patched.setattr(raising._Rise, "undo", lambda *_, **__: None)  # SIGKILL would leave no time for it
        with pytest.raises(KeyboardInterrupt):
            look(gang)
    assert look(gang)[1:] == (GangState.ARMED, GuardAction.NOTHING)
    _, state, do = look(gang, policy=Policy(left_s=0.0))
    assert (state, do) == (GangState.READY, GuardAction.RESTART)


@pytest.mark.turns(of="guard: a restart that does not serve ends in words")
def test_a_restart_that_is_out_of_time_leaves_a_failed_gang(local: Local) -> None:
    gang = failed(local, rank=3)
    look(gang, timeout_s=0.0)
    gang.nothing_left()
    seen = gang.view()
    assert seen.state is GangState.FAILED
    assert seen.cause is not None and "not ready within" in seen.cause.text
