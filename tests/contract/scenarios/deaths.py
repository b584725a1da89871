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

from tests.contract.contract import Row, Scenario, See
from tests.contract.under_test import EngineUnderTest, Node, Request

_CAUSES = "causes that the catalogue finds: leader's log, worker's"
_ON_GPUS = "4 H200, SGLang 0.5.17: the end showed 210 to 390 ms after the kill, the main thread was dead after 3 ms"


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


def _end_rows(leader: str, worker: str, causes: str) -> tuple[Row, ...]:
    return (
        Row("leader", "the leader's exit code", leader),
        Row("worker", "the worker's exit code", worker),
        Row("left", "what is left after the launchers", "nothing, nothing"),
        Row("causes", _CAUSES, causes),
    )


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


_WATCHDOG = Row("watchdog-line", "leader: `Subprocess .. crashed with exit code ..`", "True")
DEATHS = (
    Scenario(
        name="rank-killed",
        told="SIGKILL to the worker's one rank while a generation runs.",
        play=_rank_killed,
        rows=(
            Row("in-flight", "the generation that ran", "cut"),
            *_end_rows("-9", "0", "PEER-LOST (secondary), none"),
            Row("worker-line", "worker: `.. terminated with -9`", "True"),
            Row("leader-line", "leader: `Scheduler hit an exception: Traceback`", "True"),
            Row("peer-line", "leader: `RuntimeError: .. Connection closed by peer`, or reset", "True"),
            Row("sigquit-line", "leader: `SIGQUIT received. .. one child failed`", "True"),
        ),
    ),
    Scenario(
        name="rank-killed-on-a-gpu",
        told="SIGKILL to the worker's one rank, whose CUDA context delays its exit (`STANDIN_DEATHS=cuda`).",
        runs="gpu",
        play=_rank_killed_on_a_gpu,
        rows=(
            Row("main-thread", "the killed rank's main thread before its end shows", "Z", source=_ON_GPUS),
            Row("held", "its end is visible 0.2 s after the kill, or later", "True", source=_ON_GPUS),
            Row(
                "peer-line", "leader: Gloo's error, with the address of the rank that is gone", "True", source=_ON_GPUS
            ),
            Row("causes", _CAUSES, "PEER-LOST (secondary), none", source=_ON_GPUS),
            Row("left", "what is left after the launchers", "nothing, nothing", source=_ON_GPUS),
        ),
    ),
    Scenario(
        name="node-killed",
        told="SIGKILL to a worker's launcher.",
        play=_node_killed,
        rows=(
            Row("ranks-follow", "the worker's ranks after their launcher's death", "nothing"),
            *_end_rows("-9", "-9", "PEER-LOST (secondary), none"),
        ),
    ),
    Scenario(
        name="leader-killed",
        told="SIGKILL to the leader's launcher.",
        play=_leader_killed,
        rows=(
            Row("ranks-follow", "the leader's children after their launcher's death", "nothing"),
            *_end_rows("-9", "-9", "none, PEER-LOST (secondary)"),
            Row("worker-line", "worker: `Received sigquit from a child process`", "True"),
        ),
    ),
    Scenario(
        name="leaders-rank-killed",
        told="SIGKILL to rank 0.",
        play=_child_killed("sglang::scheduler_TP0", "No live scheduler processes found"),
        rows=(
            *_end_rows("-9", "-9", "CHILD-FAILED (secondary), PEER-LOST (secondary)"),
            _WATCHDOG,
            Row("dump-line", "leader: `No live scheduler processes found; ..` (after 5 s)", "True"),
        ),
    ),
    Scenario(
        name="detokenizer-killed",
        told="SIGKILL to the detokenizer.",
        play=_child_killed("sglang::detokenizer", r"Waiting 60\.0 seconds for CUDA coredumps", deaf=True),
        pace=0.04,
        rows=(
            *_end_rows("-9", "-9", "CHILD-FAILED (secondary), PEER-LOST (secondary)"),
            _WATCHDOG,
            Row("deaf", "the leader's /health while it prepares its crash dump", "no answer"),
            Row(
                "dump-line",
                "leader: `Waiting 60.0 seconds for CUDA coredumps ..` (5 s before)",
                "True",
            ),
        ),
    ),
    Scenario(
        name="group-told",
        told="SIGTERM to the leader's whole process group while a generation runs, which delays the "
        "leader's orderly end: whether it handles SIGTERM or its children first is random.",
        play=_group_told,
        rows=(*_end_rows("-9", "-9", "CHILD-FAILED (secondary), PEER-LOST (secondary)"), _WATCHDOG),
    ),
    Scenario(
        name="interrupted",
        told="SIGINT (Ctrl-C) to the leader's launcher. uvicorn raises it again after its own end: whether its event "
        "loop still exists to handle it is a race.",
        play=_interrupted,
        rows=(
            *_end_rows("-2 or 0", "-9", "none, PEER-LOST (secondary)"),
            Row("shut-down-line", "leader: `INFO:     Shutting down`", "True"),
        ),
    ),
    Scenario(
        name="told-while-hung",
        told="A rank is stopped, /health shows it, and then the leader is ordered to stop.",
        play=_told_while_hung,
        rows=(
            Row("health", "/health before", "503"),
            Row("leader", "the leader's exit code", "0"),
            Row("line", "`SIGTERM received while health check failed. Force exiting.`", "True"),
            Row("dump-line", "`Waiting 60.0 seconds for CUDA coredumps before exiting.`", "True"),
            Row(
                "late-line",
                "`Schedulers still alive 15.0s after ShutdownReq, killing them ..`",
                "True",
            ),
            Row("worker-before", "the worker while its rank is stopped", "lives"),
            Row("worker", "the worker's exit code once its rank continues", "-9"),
            Row("left", "what is left after the launchers", "nothing, nothing"),
        ),
    ),
    Scenario(
        name="default-timeout",
        told="Rank 0 is stopped, with the probe's own time limit.",
        play=_default_timeout,
        rows=(
            Row("health", "/health", "503"),
            Row("line", "`couldn't get a response from detokenizer for last 20 seconds`", "True"),
            Row("recovered", "/health is 200 again once it continues", "True"),
        ),
    ),
)
