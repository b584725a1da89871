"""Two nodes that serve; then something dies, or is ended in a way that is not orderly."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.contract.contract import Scenario, See
from tests.contract.under_test import EngineUnderTest, Node, Request


def _serving(engine: EngineUnderTest, **how: Any) -> tuple[Node, Node]:
    leader, worker = engine.start(**how)
    engine.ready()
    return leader, worker


def _ends(leader: Node, worker: Node, see: See) -> None:
    """How both nodes end, and what is left of them."""
    see("leader", leader.exit_code())
    see("worker", worker.exit_code())
    see("left", f"{leader.left_behind()}, {worker.left_behind()}")
    see("causes", f"{leader.cause()}, {worker.cause()}")


def _rank_killed(engine: EngineUnderTest, see: See) -> None:
    leader, worker = _serving(engine)
    running = Request(leader, 1500).under_way()
    os.kill(worker.child("sglang::scheduler_TP1"), signal.SIGKILL)
    see("in-flight", running.ended())
    _ends(leader, worker, see)
    see("worker-line", worker.says(r"terminated with -9"))
    see("leader-line", leader.says(r"Scheduler hit an exception: Traceback"))
    see("peer-line", leader.says(r"RuntimeError: .*Connection (closed|reset) by peer"))
    see("sigquit-line", leader.says(r"SIGQUIT received\. .*It usually means one child failed"))


def _rank_killed_on_a_gpu(engine: EngineUnderTest, see: See) -> None:
    leader, worker = _serving(engine, settings={"STANDIN_DEATHS": "cuda"})
    rank = worker.child("sglang::scheduler_TP1")
    states, held_s = _dying(rank, engine.patience)
    see("main-thread", "Z" if "Z" in states else "".join(states))
    see("held", held_s >= _HELD_S)
    leader.until_says(r"RuntimeError: .*(Read error|Connection closed by peer) \[127\.0\.0\.\d\]:\d+")
    see("peer-line", True)
    see("causes", f"{leader.cause()}, {worker.cause()}")
    _ = leader.exit_code(), worker.exit_code()
    see("left", f"{leader.left_behind()}, {worker.left_behind()}")


_HELD_S = 0.2


def _dying(pid: int, patience_s: float) -> tuple[list[str], float]:
    """Kill a process: its main thread's states until its parent can see its end, and how long that takes."""
    states = list[str]()
    end = os.pidfd_open(pid)
    try:
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while not select.select([end], [], [], 0.001)[0] and time.monotonic() - began < patience_s:
            with contextlib.suppress(OSError):  # it ended in between
                states.append(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1])
        return states, time.monotonic() - began
    finally:
        os.close(end)


def _node_killed(engine: EngineUnderTest, see: See) -> None:
    leader, worker = _serving(engine)
    worker.signal(signal.SIGKILL)
    see("ranks-follow", worker.left_behind())
    _ends(leader, worker, see)


def _leader_killed(engine: EngineUnderTest, see: See) -> None:
    leader, worker = _serving(engine)
    leader.signal(signal.SIGKILL)
    see("ranks-follow", leader.left_behind())
    _ends(leader, worker, see)
    see("worker-line", worker.says("Received sigquit from a child process"))


def _child_killed(words: str, dump: str, *, deaf: bool = False) -> Callable[[EngineUnderTest, See], None]:
    def play(engine: EngineUnderTest, see: See) -> None:
        leader, worker = _serving(engine)
        os.kill(leader.child(words), signal.SIGKILL)
        if deaf:
            leader.until_says("Sleeping 5 seconds before crash diagnostics")
            see("deaf", leader.status("/health", timeout=0.3))
        _ends(leader, worker, see)
        see("watchdog-line", leader.says(r"Subprocess \w+ \(pid=\d+\) crashed with exit code -9\. Triggering SIGQUIT"))
        see("dump-line", leader.says(dump))

    return play


def _group_told(engine: EngineUnderTest, see: See) -> None:
    leader, worker = _serving(engine)
    Request(leader, 1500).under_way()
    os.killpg(leader.pid, signal.SIGTERM)
    _ends(leader, worker, see)
    see("watchdog-line", leader.says(r"Subprocess \w+ .*crashed with exit code -15"))


def _interrupted(engine: EngineUnderTest, see: See) -> None:
    leader, worker = _serving(engine)
    leader.signal(signal.SIGINT)
    code = leader.exit_code()
    see("leader", "-2 or 0" if code in (-signal.SIGINT, 0) else code)
    see("shut-down-line", leader.says(r"INFO:     Shutting down"))
    see("worker", worker.exit_code())
    see("left", f"{leader.left_behind()}, {worker.left_behind()}")
    see("causes", f"{leader.cause()}, {worker.cause()}")


def _told_while_hung(engine: EngineUnderTest, see: See) -> None:
    leader, worker = _serving(engine, settings={"SGLANG_HEALTH_CHECK_TIMEOUT": "1"})
    rank = worker.child("sglang::scheduler_TP1")
    worker.freeze(rank)
    see("health", leader.status("/health"))
    leader.signal(signal.SIGTERM)
    see("leader", leader.exit_code())
    see("line", leader.says("SIGTERM received while health check failed. Force exiting."))
    see("dump-line", leader.says(r"Waiting 60\.0 seconds for CUDA coredumps before exiting"))
    see("late-line", leader.says(r"Schedulers still alive 15.*s after ShutdownReq, killing them before they released"))
    see("worker-before", "lives" if worker.process.poll() is None else "ended")
    os.kill(rank, signal.SIGCONT)
    see("worker", worker.exit_code())
    see("left", f"{leader.left_behind()}, {worker.left_behind()}")


def _default_timeout(engine: EngineUnderTest, see: See) -> None:
    leader, _ = _serving(engine)
    rank = leader.child("sglang::scheduler_TP0")
    leader.freeze(rank)
    see("health", leader.status("/health"))
    see("line", leader.says("couldn't get a response from detokenizer for last 20 seconds"))
    os.kill(rank, signal.SIGCONT)
    see("recovered", leader.until(lambda: leader.status("/health") == "200", "recovery"))


DEATHS = (
    Scenario(name="rank-killed", play=_rank_killed),
    Scenario(name="rank-killed-on-a-gpu", runs="gpu", play=_rank_killed_on_a_gpu),
    Scenario(name="node-killed", play=_node_killed),
    Scenario(name="leader-killed", play=_leader_killed),
    Scenario(
        name="leaders-rank-killed", play=_child_killed("sglang::scheduler_TP0", "No live scheduler processes found")
    ),
    Scenario(
        name="detokenizer-killed",
        play=_child_killed("sglang::detokenizer", r"Waiting 60\.0 seconds for CUDA coredumps", deaf=True),
        pace=0.04,
    ),
    Scenario(name="group-told", play=_group_told),
    Scenario(name="interrupted", play=_interrupted),
    Scenario(name="told-while-hung", play=_told_while_hung),
    Scenario(name="default-timeout", play=_default_timeout),
)
