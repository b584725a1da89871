"""Give a live agent its order: a file, and SIGUSR1 so that the agent reads it at once.

An order to stop must work even if nothing can be written (a full disk, a quota, a read-only file system): then the
signal is the order.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from orchestrator.node import files, processes
from orchestrator.node.failure import Failure
from orchestrator.node.verbs import report
from orchestrator.protocol.report import Report
from orchestrator.protocol.run_files import GoalOrder
from orchestrator.protocol.verbs import Because

POLL_S = 0.02
SIGNALS = {"stop": signal.SIGTERM, "stop-now": signal.SIGUSR2}


def tell(folder: str, goal: str, because: Because | None = None) -> bool:
    """False if no agent is alive. goal: run, stop, stop-now; because: the failure that the run is ended for, if any."""
    pid, start = report.agent(folder)
    if not processes.alive(pid, start):
        return False
    number = SIGNALS.get(goal, signal.SIGUSR1)
    try:
        files.write_json(f"{folder}/goal.json", GoalOrder(goal=goal, because=because).as_json())
        number = signal.SIGUSR1
    except OSError:
        if goal not in SIGNALS:
            with files.state_failures(folder):
                raise
    if not processes.send(pid, start, number) and processes.alive(pid, start):
        raise Failure(
            "no-rights",
            f"the agent (pid {pid}) belongs to another user and can't be signalled",
            folder,
            "log in as the user that ran `up`, or set `ansible_become: true`",
        )
    return True


def wait(folder: str, done: Callable[[Report | None], bool], deadline_s: float) -> Report | None:
    """The run's report once `done` is true of it, or the newest one after the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        now = report.of_run(folder)
        if done(now) or time.monotonic() > end:
            return now
        time.sleep(POLL_S)
