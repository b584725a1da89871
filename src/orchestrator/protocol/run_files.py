"""Files of a gang's folder that an agent writes and a verb of another release may read. The reference lists them."""

from __future__ import annotations

from orchestrator.protocol.message import Message, schema
from orchestrator.protocol.report import Cause


@schema(frozen=True, slots=True, kw_only=True)
class AgentProcess(Message):
    """agent.json: the agent's process id and its start time in clock ticks (proc(5)); 0 for none."""

    pid: int = 0
    start: int = 0


@schema(frozen=True, slots=True, kw_only=True)
class Renewal(Message):
    """lock.renewed: when its holder last renewed a lock, in seconds of CLOCK_BOOTTIME of this boot."""

    token: str
    boot: str
    boottime_s: float


@schema(frozen=True, slots=True, kw_only=True)
class KnownProcesses(Message):
    """processes.json: (process id, start time) of everything that was the run's own."""

    processes: tuple[tuple[int, ...], ...] = ()


@schema(frozen=True, slots=True, kw_only=True)
class GoalOrder(Message):
    """goal.json: what the controller wants: run, stop or stop-now; because: the failure that it is ended for.

    ordered: a person has ended it, for no failure: it stays so whatever becomes of the other nodes
    """

    goal: str = ""
    because: Cause | None = None
    ordered: bool = False
