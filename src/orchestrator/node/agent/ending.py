"""The end of one node's part: everything of the engine's is gone, its GPU memory free, one verdict everywhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from orchestrator.node.agent.part import Part
from orchestrator.node.engine import scratch
from orchestrator.node.engine.containers import REMOVE_S
from orchestrator.node.network.link import Joined, Left, Said
from orchestrator.protocol.link import Account, AgentEnded, End, Ended, from_leader, from_member
from orchestrator.protocol.report import AgentState, Cause

KILL_EVERY_S = 0.05
KILL_FOR_S = 10.0
MEMORY_FREE_S = 10.0
LAST_REPORT_S = 60.0
"""For a disk that stalls: after this the report of the end is lost."""
MEMBERS_END_S = 12.0
"""A little longer than a member may need for its own end."""


def end(part: Part) -> None:
    """SIGKILL to whatever is left, wait for it and for the GPU memory, tell the others, write the last report."""
    if part.service is not None:
        part.service.stop()
        part.service = None
    part.tree.let_go()
    part.flush()
    _remove_container(part, wait=False)  # it may be none that we may send a signal to
    _until(part, lambda: part.tree.kill() == 0, KILL_FOR_S)
    _remove_container(part, wait=True)  # what its client asked for before it was killed may have come since
    left = [process.pid for process in part.tree.living()]
    part.tree.bury_all()
    _clean_up(part)
    part.record.set(left_behind=tuple(left), service_healthy=False if part.run.service else None)
    _until(part, lambda: _memory_is_free(part), MEMORY_FREE_S)
    part.record.set(held=tuple(_held(part)))
    if part.state is AgentState.STOPPING:
        part.become(AgentState.STOPPED)
    part.flush(force=True)
    _leave(part, left)
    part.guardian.close()
    part.memory.close()
    part.disk.put(part.log.close)
    part.record.event("ended", left_behind=left)
    part.flush(force=True)
    part.disk.settle(LAST_REPORT_S)


def _clean_up(part: Part) -> None:
    scratch.remove(part.run.folder)
    if part.run.container is None:
        scratch.forget_shared(part.tree.ever, part.run.engine_user)
        scratch.forget_named(part.run)


def _remove_container(part: Part, *, wait: bool) -> None:
    container = part.tree.container
    removal = container.removal() if container is not None else None
    if removal is not None and wait:
        _until(part, lambda: removal.poll() is not None, REMOVE_S)
        removal.kill()


def _until(part: Part, done: Callable[[], bool], deadline_s: float) -> None:
    """Keep the log, the link and the report going until something is true or the deadline has passed."""
    deadline = time.monotonic() + deadline_s
    while not done() and time.monotonic() < deadline:
        part.wait(KILL_EVERY_S)
        now = time.monotonic()
        part.read_log()
        part.memory.take(now)
        if part.guardian.messages() is None:
            part.guardian.channel.close()
        _listen(part, now)
        part.pulse(now)
        part.flush()


def _listen(part: Part, now: float) -> None:
    for event in part.link_events(now):
        if isinstance(event, Left):
            part.ended.add(event.node)
        elif isinstance(event, Joined):
            _say_again(part, event.node)
        elif isinstance(event, Said) and part.hub is not None:
            _hear_late_member(part, event)
        elif isinstance(event, Said):
            message = from_leader(event.message)
            if isinstance(message, End) and message.verdict is not None:
                part.verdict = message.verdict


def _say_again(part: Part, node: str) -> None:
    """To one whose connection broke, and who may have missed how it ends."""
    if part.hub is not None:
        part.ended.discard(node)
        part.hub.send(End(verdict=part.verdict, now=part.verdict is None), only=node)
    elif part.spoke is not None and part.cause is not None:
        part.spoke.send(Account(type="failed", cause=part.cause))


def _hear_late_member(part: Part, said: Said) -> None:
    """What arrives while we end may still be nearer to the cause than what ended us."""
    match from_member(said.message):
        case Ended() | AgentEnded():
            part.ended.add(said.node)
        case Account(cause=Cause(secondary=False) as cause) if part.verdict is not None and part.verdict.secondary:
            part.verdict = cause
        case _:
            pass


def _memory_is_free(part: Part) -> bool:
    if part.run.device != "cuda" or not part.run.gpus or not part.engine[0]:
        return True
    if part.memory.error:
        return True  # NVML does not tell: waiting longer would not help
    fresh = part.memory.answered_at > part.tree.gone_at
    part.memory.ask(time.monotonic())
    return fresh and not part.memory.in_use()


def _held(part: Part) -> list[str]:
    """What is still not free although everything of ours is gone, GPU by GPU."""
    return [] if _memory_is_free(part) else part.memory.held()


def _leave(part: Part, left: list[int]) -> None:
    """Members say that they are done and go; the leader waits for them, so that one verdict reaches all."""
    if part.spoke is not None:
        part.spoke.send(Ended(state=part.state, left_behind=tuple(left)))
        part.spoke.close()
    hub = part.hub
    if hub is not None:
        _until(part, lambda: not hub.joined - part.ended, MEMBERS_END_S)
        hub.close()
