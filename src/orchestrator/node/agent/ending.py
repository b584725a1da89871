"""The end of one node's part: the engine's processes are gone, GPU memory is free, and all nodes have one verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from orchestrator.node.agent.membership import RECONNECT_S
from orchestrator.node.engine import scratch
from orchestrator.node.engine.engine_container import REMOVE_S
from orchestrator.protocol.link import Ended

if TYPE_CHECKING:
    from orchestrator.node.agent.agent import Agent

KILL_FOR_S = 10.0
MEMORY_FREE_S = 10.0
LAST_REPORT_S = 60.0
"""How long to wait for a stalled disk; after this the last report is lost."""
MEMBERS_END_S = 12.0
"""A little longer than a member may need for its own end."""


def end(agent: Agent) -> Iterator[None]:
    """Send SIGKILL to what is left, wait for it and for the GPU memory, tell the others, write the last report. Yields
    wherever it waits, and continues in the loop's next round."""
    if agent.service is not None:
        agent.service.stop()
        agent.service = None
    agent.hang.close()
    agent.record.set(looks_until=0.0)
    agent.tree.let_go()
    agent.flush()
    if (container := agent.tree.container) is not None:
        container.removal()  # we may not be allowed to signal its processes
    yield from _until(agent, lambda: agent.tree.kill() == 0, KILL_FOR_S)
    removal = container.removal() if container is not None else None
    if removal is not None:  # requests that the client sent before it was killed may take effect late
        yield from _until(agent, lambda: removal.poll() is not None, REMOVE_S)
        removal.kill()
    left = [process.pid for process in agent.tree.living()]
    agent.tree.reap_all()
    scratch.remove(agent.run.folder)
    if agent.run.container is None:
        scratch.forget_shared(agent.tree.ever, agent.run.engine_user)
        scratch.forget_named(agent.run)
    agent.record.set(left_behind=tuple(left), service_healthy=False if agent.run.service else None)
    yield from _until(agent, lambda: _memory_is_free(agent), MEMORY_FREE_S)
    agent.record.set(held=() if _memory_is_free(agent) else tuple(agent.memory.held()))
    if agent.lifecycle.stopped():
        agent.enter(agent.state)
    agent.flush(force=True)
    yield from _leave(agent, left)
    agent.guardian.close()
    agent.memory.close()
    agent.log.close()
    agent.record.event("ended", left_behind=left)
    agent.flush(force=True)
    agent.disk.wait_until_written(LAST_REPORT_S)


def _until(agent: Agent, done: Callable[[], bool], deadline_s: float) -> Iterator[None]:
    """Keep the log, the link and the report going until `done` is true or the deadline has passed."""
    deadline = agent.now() + deadline_s
    while not done() and agent.now() < deadline:
        yield
        now = agent.now()
        agent.log.read()
        agent.memory.take(now)
        if agent.guardian.messages() is None:
            agent.guardian.channel.close()
        agent.follow_link(now)
        agent.pulse(now)
        agent.flush()


def _memory_is_free(agent: Agent) -> bool:
    if agent.run.device != "cuda" or not agent.run.gpus or not agent.engine[0] or agent.memory.error:
        return True  # where NVML gives no figures, waiting longer would not help
    fresh = agent.memory.answered_at > agent.tree.gone_at
    agent.memory.ask(agent.now())
    return fresh and not agent.memory.in_use()


def _leave(agent: Agent, left: list[int]) -> Iterator[None]:
    """Members report that they are done and leave; the leader waits for them, so that all get the same verdict."""
    spoke, hub, members = agent.spoke, agent.hub, agent.lifecycle.members
    if spoke is not None:
        # a connection that broke just before may come back: then the leader's agent still receives our reason
        yield from _until(agent, lambda: spoke.joined or not members.may_come_back(), RECONNECT_S)
        spoke.send(Ended(state=agent.state, left_behind=tuple(left), cause=agent.lifecycle.cause))
        spoke.close()
    if hub is not None:
        yield from _until(agent, lambda: not members.ending(agent.now()), MEMBERS_END_S)
        hub.close()
