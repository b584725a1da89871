"""The end of agents whose files are gone, since somebody has deleted the state directory or a part of it: they are
known by what they show of themselves (others.py), and ordered by signals. They have in memory what ends their ranks.

Nothing is signalled that is not surely one of them: a process of our user that holds the socket which names it, and its
descendants as they were while it lived, each by process id and start time.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field

from orchestrator.node import processes, supervision
from orchestrator.node.agent.ending import KILL_FOR_S, MEMBERS_END_S, MEMORY_FREE_S
from orchestrator.node.verbs import report
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.report import AgentState
from orchestrator.protocol.verbs import StopAnswer, StopRequest

Known = dict[int, int]
"""Start times by process id."""
STUCK_S = KILL_FOR_S + MEMORY_FREE_S + MEMBERS_END_S + 5.0
"""An agent that was told to end at once has ended by then."""
POLL_S = 0.1
"""Each look reads all of /proc."""


def end(state: str, asked: StopRequest) -> StopAnswer:
    """End those of the gang. Raises DeployError where one belongs to another user."""
    agents = _agents(state, asked.gang)
    if not agents:
        return StopAnswer(state="absent")
    family = _Family(agents)
    family.tell(signal.SIGUSR2 if asked.now else signal.SIGTERM)
    ended = family.await_end(min(asked.deadline_s, STUCK_S) if asked.now else asked.deadline_s)
    if not ended and (asked.now or family.is_stopped):
        family.tell(signal.SIGKILL)  # its guardian ends what it holds
        ended = family.await_end(KILL_FOR_S)
    left = family.kill_left_over(KILL_FOR_S) if ended else ()
    return StopAnswer(state=AgentState.STOPPED.value if ended else "unknown", alive=not ended, left_behind=left)


def _agents(state: str, gang: str) -> Known:
    """Surely ours, each with its start time, which was read before that was looked at."""
    known: Known = {}
    for pid, shown in report.without_files(state).items():
        start = processes.start_of(pid)
        if shown.agent.gang != gang or shown.agent.stranger:
            continue
        if not shown.is_ours(pid):
            what = f"an agent of gang {gang} (pid {pid}, of {shown.agent.user}) runs without its files"
            raise DeployError(
                what,
                where=state,
                fix="log in as the user that ran `up`, or set `ansible_become: true`",
                kind="no-rights",
            )
        known[pid] = start
    return known


@dataclass
class _Family:
    """Agents, and all that ran below them when it was last looked at."""

    agents: Known
    below: Known = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._look()

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped one of the agents, so that it obeys no order."""
        return any(supervision.stopped(pid) for pid in _living(self.agents))

    def tell(self, number: int) -> None:
        """Signal the agents."""
        for pid, start in self.agents.items():
            supervision.send(pid, start, number)

    def await_end(self, deadline_s: float) -> bool:
        """Whether they have ended; not waited for where one can't obey."""
        until = time.monotonic() + deadline_s
        while _living(self.agents) and not self.is_stopped and time.monotonic() < until:
            self._look()
            time.sleep(POLL_S)
        return not _living(self.agents)

    def kill_left_over(self, deadline_s: float) -> tuple[int, ...]:
        """End what has outlived them; what would not end."""
        until = time.monotonic() + deadline_s
        while (left := _living(self.below)) and time.monotonic() < until:
            for pid in left:
                supervision.send(pid, self.below[pid], signal.SIGKILL)
            time.sleep(POLL_S)
        return tuple(sorted(left))

    def _look(self) -> None:
        everything = supervision.everything()
        for process in supervision.descendants(_living(self.agents), everything):
            self.below[process.pid] = process.start


def _living(known: Known) -> list[int]:
    return [pid for pid, start in known.items() if processes.alive(pid, start)]
