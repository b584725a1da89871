"""`status --watch` of a real gang: its agents, its engine's processes, and a pseudo-terminal that shows a death."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import pytest
from tests.support.local_gang import LocalGang
from tests.support.terminal import Terminal, rendered
from tests.support.waiting import slack, until

from orchestrator.cli.screen import Screen
from orchestrator.gang.commands.watching import watch
from orchestrator.gang.operations import GangOperation, OperationKind
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.operation import connected
from orchestrator.gang.steps.status import live
from orchestrator.gang.steps.status.live import Watching, live_json, overdue
from orchestrator.model.gang_state import GangState
from orchestrator.remote.fleet import Fleet


def test_a_node_that_owes_its_answer_is_unreachable() -> None:
    found = overdue({"a": 99.0, "b": 90.0, "new": 99.5}, {"a", "b"}, 100.0)
    assert set(found) == {"b", "new"}
    assert found["b"].what == "no answer for 10 s"


@pytest.mark.processes
def test_a_death_is_on_the_screen_within_two_seconds(
    local: Callable[..., LocalGang], monkeypatch: pytest.MonkeyPatch
) -> None:
    local_gang = local()
    local_gang.up()
    terminal, killed, shown = Terminal(), list[float](), list[float]()

    def ended() -> bool:
        screen = "\n".join(rendered(bytes(terminal.raw)))
        if not killed and "gang0 ready" in screen:
            killed.append(time.monotonic())
            local_gang.kill_rank(1)
        elif killed and "cause: " in screen:
            shown.append(time.monotonic())
        return bool(shown) or bool(killed and time.monotonic() > killed[0] + 30 * slack())

    with connected(local_gang.inventory) as operation, Watching(operation) as source:
        told = terminal.run(lambda: watch(source, Screen(), wide=False, until=ended).seen.exit_code, monkeypatch)
        assert shown and shown[0] - killed[0] < 2 * slack(), told.text
        assert told.code == 5
        until(lambda: any(event.what == "cause" for event in source.look().events.get("gang0", ())), 5, "its event")
        (gang,) = json.loads(json.dumps(live_json(source.look())))["gangs"]
        assert gang["state"] == "failed" and gang["events"]


@pytest.mark.processes
def test_its_threads_end_with_it(local: Callable[..., LocalGang]) -> None:
    local_gang = local()
    before = set(threading.enumerate())
    with connected(local_gang.inventory) as operation, Watching(operation) as source:
        until(lambda: source.look().seen.views[0].state is GangState.ABSENT, 20, "a gang that is absent")
    until(lambda: not [one for one in threading.enumerate() if one not in before and one.daemon], 15, "no thread left")


@pytest.mark.processes
def test_what_a_killed_command_has_left_is_seen_at_the_first_look(
    local: Callable[..., LocalGang], monkeypatch: pytest.MonkeyPatch
) -> None:
    local_gang = local()
    monkeypatch.setattr(live, "INTERRUPTED_S", 600.0)
    begun = GangOperation(gang="gang0", what=OperationKind.ROLLING, turning=True)
    with Fleet(local_gang.gang.nodes) as fleet, GangLock(fleet, local_gang.gang, "restart") as lock:
        lock.begin(begun)
    with connected(local_gang.inventory) as operation, Watching(operation) as source:
        until(lambda: source.look().seen.interrupted == (begun,), 20, "what was interrupted")
