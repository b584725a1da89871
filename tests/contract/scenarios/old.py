"""SGLang 0.4.4, the articles' version, as the stand-in plays it. It is never run here: rows are its source's facts."""

from __future__ import annotations

import os
import signal

from tests.contract.contract import Scenario, See
from tests.contract.under_test import EngineUnderTest, Node, Request, generation


def _life(engine: EngineUnderTest, see: See) -> None:
    leader, worker = engine.start(settings={"SGLANG_HEALTH_CHECK_TIMEOUT": "1", "STANDIN_PEER_DEATH": "ignore"})
    leader.until_says("Uvicorn running on")
    see("warming-health", leader.statuses("/health", "/ping"))
    engine.ready()
    see("titles", f"{leader.titles()}; {worker.titles()}")
    see("phases", leader.phases())
    see("phases-worker", worker.phases())
    see("cause-while-well", f"{leader.cause()}, {worker.cause()}")
    see("facts", leader.statuses("/get_model_info", "/get_server_info", "/v1/models"))
    see("facts-of-later", leader.statuses("/model_info", "/server_info", "/v1/loads", "/ready"))
    see("flush", f"{leader.status('/flush_cache')}, {leader.status('/flush_cache', method='POST', body={})}")
    see("worker-paths", worker.statuses("/health", "/health_generate", "/ping"))
    see("worker-log", worker.says(r"(?m)^INFO:     127\.0\.0\.1:\d+ - \"GET /health HTTP/1\.1\" 200 OK"))
    see("version", leader.document("/get_server_info")["version"])
    see("limits-line", f"{leader.says(r'TP0. max_total_num_tokens=')}, {worker.says(r'TP1. max_total_num_tokens=')}")
    _hung(leader, worker, see)
    _dead_rank(leader, worker, see)


def _hung(leader: Node, worker: Node, see: See) -> None:
    rank = worker.child("sglang::scheduler_TP1")
    worker.freeze(rank)
    see("hung-health", leader.status("/health"))
    see("hung-generate", leader.status("/health_generate"))
    see("hung-worker", worker.status("/health"))
    os.kill(rank, signal.SIGCONT)
    leader.until(lambda: leader.status("/health_generate") == "200", "recovery")


def _dead_rank(leader: Node, worker: Node, see: See) -> None:
    rank = worker.child("sglang::scheduler_TP1")
    os.kill(rank, signal.SIGKILL)
    worker.until(lambda: not worker.orphans(), "the rank's death")
    see("dead-worker", f"{worker.status('/health')}, {'lives' if worker.process.poll() is None else 'ended'}")
    worker.signal(signal.SIGTERM)
    see("worker-told", worker.exit_code())
    see("leader", f"{leader.status('/health')}, {'lives' if leader.process.poll() is None else 'ended'}")


_LONG = 500
"""Tokens of a generation that outlasts the other request: the leader drains while it runs."""


def _told(engine: EngineUnderTest, see: See) -> None:
    leader, worker = engine.start(settings={"STANDIN_ORPHAN_S": "20"})
    engine.ready()
    worker.signal(signal.SIGTERM)
    see("worker", worker.exit_code())
    see("left", ", ".join(worker.orphans()))
    running = Request(leader, _LONG).under_way()
    leader.signal(signal.SIGTERM)
    leader.until_says("Draining requests")
    see("new", leader.status("/generate", body=generation(1), timeout=10))
    running.ended()
    see("leader", leader.exit_code())
    see("line", leader.says(r"Gracefully exiting\.\.\. remaining number of requests 0"))


def _rank_killed_early(engine: EngineUnderTest, see: See) -> None:
    leader = engine.start_node(0)
    leader.until_says(r"Init torch distributed begin\.")
    os.kill(leader.child("sglang::scheduler_TP0"), signal.SIGKILL)
    see("code", leader.exit_code())
    see("line", leader.says(r"Rank 0 scheduler is dead\. Please check if there are relevant logs\."))


def _flags_refused(engine: EngineUnderTest, see: See) -> None:
    for name, extra in (
        ("later", ("--cuda-graph-max-bs-decode", "32")),
        ("pipeline", ("--pp-size", "2")),
        ("number", ("--tp-size", "two")),
    ):
        node = engine.start_node(0, nnodes=1, extra=extra)
        see(name, f"{node.exit_code()}, {node.cause()}")


OLD = (
    Scenario(name="old-life", runs="never", plays="0.4.4", play=_life),
    Scenario(name="old-told", runs="never", plays="0.4.4", play=_told),
    Scenario(name="old-rank-killed-early", runs="never", plays="0.4.4", play=_rank_killed_early),
    Scenario(name="old-flags-refused", runs="never", plays="0.4.4", play=_flags_refused),
)
