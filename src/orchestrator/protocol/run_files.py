"""Files of a run's folder that an agent writes and a verb of another release may read. docs/agent.md lists them."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.protocol.shape import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProcess(Message):
    """agent.json: the agent's process id and its start time in clock ticks (proc(5)); 0 for none."""

    pid: int = 0
    start: int = 0
    run_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProcesses(Message):
    """processes.json: (process id, start time) of everything that was the run's own."""

    processes: tuple[tuple[int, ...], ...] = ()
