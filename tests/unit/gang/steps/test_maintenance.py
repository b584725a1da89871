"""restart --maintenance over real agents: stopped during work on the nodes, and what ends it early."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import down, restart
from tests.support.local_gang import LocalGang, Notes

from orchestrator.gang.guarding import may_finish
from orchestrator.gang.steps import maintenance
from orchestrator.gang.steps.down import DownRequest
from orchestrator.gang.steps.maintenance import AWAY, BACK, MAINTENANCE, STILL, boot_of, place
from orchestrator.gang.steps.restart_sequence import RestartRequest, RestartStep, how_to_go_on
from orchestrator.gang.steps.status.reports import interrupted
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState
from orchestrator.protocol.errors import DeployError, FindingsError, GangFailed, InputError, LockHeld, Unreachable
from orchestrator.protocol.severity import Severity
from orchestrator.remote.fleet import Fleet

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(maintenance, "SETTLE_S", 0.2)


def boots(monkeypatch: pytest.MonkeyPatch, seen: Iterator[Sequence[str | None]]) -> None:
    """The two nodes' answers, look by look; the last one stays."""
    last: list[Sequence[str | None]] = []

    def look(_: object, names: Sequence[str]) -> dict[str, str | None]:
        last[:] = [next(seen, last[0] if last else ())]
        return {name: last[0][int(name[-1])] for name in names}

    monkeypatch.setattr(maintenance, "boots", look)


def request(**words: Any) -> RestartRequest:
    return RestartRequest(verb=MAINTENANCE, **words)


A, B = "a 1", "b 1"


def test_every_node_is_waited_for_until_it_has_booted_anew(serving: LocalGang, monkeypatch: pytest.MonkeyPatch) -> None:
    before = serving.view().run_id
    boots(monkeypatch, iter([(A, A), (A, A), (None, A), (B, None), (B, B)]))
    told = Notes()
    done = restart(serving.inventory, request(wait_s=20), told)
    assert done.views[0].state is GangState.READY and done.views[0].run_id != before
    assert "will not serve for about" in told.steps[1]
    moves = [words for words in told.steps if words.endswith((" is back", "does not answer"))]
    assert moves == ["node0 does not answer", "node0 is back", "node1 does not answer", "node1 is back"]


def test_a_command_is_run_for_one_node_after_the_other_while_the_gang_is_stopped_and_locked(
    serving: LocalGang, tmp_path: Path
) -> None:
    out = tmp_path / "worked-on"
    told = Notes()

    def look(words: str) -> None:
        if words.startswith("the --run command"):
            serving.nothing_left()
            with pytest.raises(LockHeld):
                down(serving.inventory, DownRequest())

    told.on_step = look
    script = f"import os; open({str(out)!r}, 'a').write(os.environ['L40S_NODE'] + ' ' + os.environ['L40S_GANG'] + ';')"
    restart(serving.inventory, request(run=f'{sys.executable} -c "{script}"', wait_s=20), told)
    assert out.read_text() == "node0 gang0;node1 gang0;"
    assert serving.view().state is GangState.READY


FAILURES: list[tuple[str, dict[str, Any], type[DeployError], str]] = [
    ("nobody reboots", {"wait_s": 0.1}, GangFailed, "has not rebooted"),
    ("the command fails", {"run": "sh -c 'echo no key; exit 3'"}, GangFailed, "status 3\n    | no key"),
    ("the command hangs", {"run": "sleep 60", "wait_s": 0.1}, GangFailed, "a timeout"),
    ("no such command", {"run": "/nonexistent"}, InputError, "No such file"),
]


@pytest.mark.turns(play=2)
@pytest.mark.parametrize(("asked", "kind", "words"), [one[1:] for one in FAILURES], ids=[one[0] for one in FAILURES])
def test_what_ends_it_says_that_the_gang_is_stopped_and_how_to_go_on(
    serving: LocalGang, asked: dict[str, Any], kind: type[DeployError], words: str
) -> None:
    with pytest.raises(kind) as ended:
        restart(serving.inventory, request(**asked), Notes())
    assert words in ended.value.what
    assert len(ended.value.fix.split()) > 2, "the fix says what to do, and with what"
    assert "start it again with `l40s-deploy restart gang0`" in ended.value.what
    assert serving.view().state is GangState.ABSENT


@pytest.mark.turns
@pytest.mark.parametrize(
    ("moment", "by_hand", "words"),
    [("the --run command", True, "gang0 is stopped"), ("go", False, "gang0 is starting")],
)
def test_ctrl_c_leaves_the_nodes_to_their_operator_only_while_the_gang_is_down(
    serving: LocalGang, moment: str, by_hand: bool, words: str
) -> None:
    """A gang that is starting is left to the next command, or a guard, to put behind the router."""
    told = Notes()

    def ctrl_c(said: str) -> None:
        if said.startswith(moment):
            told.on_step = lambda _: None
            raise KeyboardInterrupt

    told.on_step = ctrl_c
    with pytest.raises(KeyboardInterrupt):
        restart(serving.inventory, request(run="true", wait_s=20), told)
    assert told.steps[-1].startswith(words)
    with Fleet(serving.inventory.nodes) as fleet:
        (left,) = interrupted(fleet, serving.inventory.gangs)
    assert left.turning and left.by_hand is by_hand
    assert may_finish(left) is not by_hand


@pytest.mark.turns(of="maintenance: what forbids the start")
def test_a_node_that_stays_away_is_unreachable(serving: LocalGang, monkeypatch: pytest.MonkeyPatch) -> None:
    boots(monkeypatch, iter([(A, A), (B, None)]))
    with pytest.raises(Unreachable, match="node1 did not come back within") as ended:
        restart(serving.inventory, request(wait_s=0.1), Notes())
    assert ended.value.fix == "check power and network of node1, then run `l40s-deploy doctor`"


@pytest.mark.turns(of="maintenance: what forbids the start")
def test_the_doctor_is_asked_again_for_a_while_and_then_forbids_the_start(
    serving: LocalGang, findings: list[Finding]
) -> None:
    gone = Finding(id="GPU-MISSING", severity=Severity.STOP, node="node1", title="a GPU is gone", fix="look")
    told = Notes()
    told.on_step = lambda words: findings.append(gone) if words.startswith("the --run command for node1") else None
    with pytest.raises(FindingsError, match="a GPU is gone"):
        restart(serving.inventory, request(run="true"), told)
    assert any("trying again" in words for words in told.steps)
    serving.nothing_left()
    told.on_step = lambda words: findings.clear() if "trying again" in words else None
    accepted = request(run="true", accept=("GPU-MISSING",))
    assert restart(serving.inventory, accepted, told).views[0].state is GangState.READY


@pytest.mark.parametrize(
    ("step", "interrupted", "words"),
    [
        (RestartStep.ASIDE, False, ""),
        (RestartStep.STOP, True, "g is stopped; start it again with `l40s-deploy restart g`; not done: continue with"),
        (RestartStep.START, False, "g is stopped"),
        (RestartStep.START, True, "g is starting; `l40s-deploy up` adds it"),
        (RestartStep.BACK, False, "g serves again, but may not be in the router"),
    ],
)
def test_what_ends_it_says_what_became_of_the_gang(step: RestartStep, interrupted: bool, words: str) -> None:
    said = how_to_go_on("g", ["h"], step, interrupted=interrupted)
    assert said.startswith(words) and bool(said) is bool(words)


STAT = "1 (init (x) y) S 0 1 1 0 -1 4194560 9 9 9 9 1 2 3 4 20 0 1 0 {} 169 1 2\n"
OLD, NEW = "a 4", "b 4"


def test_what_names_a_boot() -> None:
    kernel = "ab1c59c4-f5a0-4e4a-8b1d-000000000000"
    assert boot_of(f"{kernel}\n{STAT.format(4)}") == f"{kernel} 4"
    assert boot_of(f"{kernel}\n") == kernel  # hidepid: we can't see process 1
    assert boot_of("") is None


@pytest.mark.parametrize(
    ("before", "now", "reboots", "wanted"),
    [
        (OLD, OLD, True, STILL),
        (OLD, None, True, AWAY),
        (OLD, NEW, True, BACK),
        (OLD, "a 99", True, BACK),
        (OLD, OLD, False, BACK),
        (OLD, None, False, AWAY),
        (None, NEW, True, BACK),
    ],
    ids=["not yet", "away", "a new boot", "a container's new boot", "an answer is enough", "no answer", "was away"],
)
def test_where_it_is(before: str | None, now: str | None, reboots: bool, wanted: str) -> None:
    assert place(before, now, reboots=reboots) == wanted
