"""Stops: every gang in the order its engine needs; with a dead leader and with nothing there too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from orchestrator.gang.steps.locks import GangLock, fence, still_ours
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.status.reports import (
    because,
    refuse_elsewhere,
    renewed,
    request_keys,
    shown_locks,
    words_before,
)
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import MARGIN_S, STOP_S
from orchestrator.model.inventory import GangSpec
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import DeployError, GangFailed
from orchestrator.protocol.report import Cause
from orchestrator.protocol.verbs import StopAnswer, StopRequest
from orchestrator.remote.fleet import Fleet, StragglerWait
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session

DOWN = "down"
"""The command as it stands in the gangs' locks."""
TO_END = StragglerWait(least_s=45.0)
"""With a node whose disk hangs, once the others have ended. A node takes 32 s at most for its processes, its memory and
its fellows (node/agent/ending.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownRequest:
    """now: SIGKILL without draining. force: despite another command's lock. timeout_s: how long each node's end is
    waited for; what has not ended by then continues to stop, and is reported as alive."""

    gangs: tuple[str, ...] = ()
    now: bool = False
    force: bool = False
    timeout_s: float = STOP_S
    command: str = DOWN


_UNKNOWN = StopAnswer(state="unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    """One node afterwards. was: its agent's state before (absent, ready, dead, ...); told: what it said of its end."""

    gang: str
    node: str
    was: str = "absent"
    told: StopAnswer = _UNKNOWN
    error: DeployError | None = None

    @property
    def clean(self) -> bool:
        """Nothing of ours is left there, as far as anybody can know."""
        return self.error is None and self.told.clean


def down(
    operation: Operation, request: DownRequest, *, before_stop: Callable[[], object] = lambda: None
) -> tuple[StopResult, ...]:
    """Stop all chosen gangs at once; a node that can't be reached delays no other.

    before_stop is called once every lock is held. Raises LockHeld and RunsElsewhere, with nothing changed and nothing
    called; LockHeld too where another command has taken a gang over meanwhile: what was stopped may serve again.
    """
    fleet, gangs = operation.fleet, chosen_gangs(operation.inventory, request.gangs)
    with ExitStack() as opened:
        refuse_elsewhere(operation.glance(gangs), to_end=True)
        held = [
            opened.enter_context(GangLock(fleet, gang, request.command, partial=True, force=request.force))
            for gang in gangs
        ]
        before_stop()
        stopped = stop_gangs(fleet, gangs, now=request.now, ordered=True, timeout_s=request.timeout_s)
        for lock in held:
            lock.finish()
            lock.still_ours()
        return stopped


def told_to_end(fleet: Fleet, gangs: Iterable[GangSpec]) -> frozenset[str]:
    """Names of those whose lock a `down` holds on a node that answers: they end, though they may serve still."""
    chosen = tuple(gangs)
    holders = renewed(shown_locks(fleet, chosen)) if chosen else {}
    ends = {node for node, holder in holders.items() if holder.command == DOWN}
    return frozenset(gang.name for gang in chosen if ends & {node.name for node in gang.nodes})


def stop_gangs(
    fleet: Fleet,
    gangs: Sequence[GangSpec],
    *,
    now: bool,
    ordered: bool,
    cause: Cause | None = None,
    timeout_s: float = STOP_S,
    patience: StragglerWait | None = None,
) -> tuple[StopResult, ...]:
    """Tell every node's agent; the leader's drains first and the others follow it over their link.

    ordered: a person wants them to stay ended: no guard starts them. cause: the failure that they are ended for; the
    nodes keep it until a new run is staged, or somebody ends them for none. timeout_s: how long their end is waited
    for; patience: with a node that is not done when the others are.
    """
    gang_of = {node.name: gang.name for gang in gangs for node in gang.nodes}
    was = words_before(fleet, gangs)

    def tell(session: Session) -> StopAnswer:
        gang = gang_of[session.spec.name]
        request = StopRequest(
            **request_keys(session.spec, gang),
            token=fence(fleet, gang, session.spec.name),
            now=now,
            clear=cause is None,
            ordered=ordered,
            deadline_s=timeout_s,
            because=because(cause),
        )
        return ask(session, "stop", request, StopAnswer, deadline_s=timeout_s + MARGIN_S)

    answers = fleet.on_every(tell, only=list(gang_of), patience=patience)
    return tuple(_stopped(gang, node, was[node], answers) for node, gang in gang_of.items())


def _stopped(gang: str, node: str, was: str, answers: PerNode[StopAnswer]) -> StopResult:
    return StopResult(
        gang=gang,
        node=node,
        was=was,
        told=answers.values.get(node, _UNKNOWN),
        error=answers.failures.get(node),
    )


def stop(fleet: Fleet, gangs: Sequence[GangSpec], watcher: Watcher, *, now: bool, cause: Cause | None = None) -> None:
    """Stop gangs that are to start again. Raises LockHeld, GangFailed, or why a node can't be asked."""
    still_ours(fleet, gangs)
    for gang in gangs:
        watcher.step(gang.name, "stopping" + (" at once" if now else ""))
    refuse_leftovers(stop_gangs(fleet, gangs, now=now, ordered=False, cause=cause, patience=TO_END))


def refuse_leftovers(stopped: Sequence[StopResult]) -> None:
    """Nothing is started beside something that would not end. Raises GangFailed, or why a node can't be asked."""
    for node in stopped:
        if node.error is not None:
            node.error.fix += "; the gang is stopped on all reachable nodes. Run the same command again to continue"
            raise node.error
        if not node.clean:
            what, fix = _left(node.told)
            raise GangFailed(f"{what}; nothing was started", where=f"gang {node.gang}: {node.node}", fix=fix)


def _left(answer: StopAnswer) -> tuple[str, str]:
    """What prevents a start, and the fix."""
    if answer.alive or answer.left_behind:
        pids = ", ".join(map(str, answer.left_behind))
        what = f"process {pids} does not exit" if pids else "its agent does not exit"
        return what, "check it with `ps` and `dmesg` (a stuck driver?), then run the same command again"
    return f"GPU memory is still held: {'; '.join(answer.held)}", (
        "stop the process that holds it (`nvidia-smi`; if none is listed, check `dmesg` for a stuck driver), "
        "then run the same command again"
    )
