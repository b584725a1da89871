"""SGLang 0.4.4, the articles' version, as the stand-in plays it. It is never run here: rows are its source's facts."""

from __future__ import annotations

import os
import signal

from tests.contract.contract import Row, Scenario, See
from tests.contract.under_test import EngineUnderTest, Node, Request, generation

_WEB = "srt/entrypoints/http_server.py"
_ENGINE = "srt/entrypoints/engine.py, _launch_subprocesses"
_SCHEDULER = "srt/managers/scheduler.py, run_scheduler_process"
_DUMMY = "srt/utils.py, launch_dummy_health_check_server"
_DRAIN = "srt/managers/tokenizer_manager.py, sigterm_watchdog"
_FLAGS = "srt/server_args.py, add_cli_args"


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


def _row(name: str, asks: str, answer: object, source: str) -> Row:
    return Row(name, asks, str(answer), source=source)


OLD = (
    Scenario(
        name="old-life",
        told="Two nodes of one rank: warming, ready, a rank that hangs, a rank that dies.",
        runs="never",
        plays="0.4.4",
        play=_life,
        rows=(
            _row("warming-health", "warming: /health, /ping", "200, 200", f"{_WEB}: both are constant"),
            _row(
                "titles",
                "titles of the children, leader; worker",
                "sglang::detokenizer, sglang::scheduler_TP0; sglang::scheduler_TP1",
                _SCHEDULER,
            ),
            _row(
                "phases",
                "phases that the watch data find in the leader's log",
                "rendezvous > nccl > weights > kv-cache > graphs > warm-up > ready",
                "log lines of 0.4.4.post1",
            ),
            _row(
                "phases-worker",
                "phases that the watch data find in a worker's log",
                "rendezvous > nccl > weights > kv-cache > graphs > warm-up",
                "log lines of 0.4.4.post1",
            ),
            _row(
                "cause-while-well", "causes that the catalogue finds while all is well", "none, none", "the catalogue"
            ),
            _row("facts", "/get_model_info, /get_server_info, /v1/models", "200, 200, 200", _WEB),
            _row("facts-of-later", "/model_info, /server_info, /v1/loads, /ready", "404, 404, 404, 404", _WEB),
            _row("flush", "GET and POST /flush_cache", "405, 200", f"{_WEB}: POST only"),
            _row("worker-paths", "a worker's /health, /health_generate, /ping", "200, 200, 404", _DUMMY),
            _row("worker-log", "a worker's log shows its /health requests", True, f"{_DUMMY}: uvicorn's default log"),
            _row("version", "/get_server_info: version", "0.4.4.post1", _WEB),
            _row(
                "limits-line",
                "`max_total_num_tokens=` in the logs of leader, worker",
                "True, True",
                "srt/managers/scheduler.py",
            ),
            _row("hung-health", "a rank stopped: /health", "200", f"{_WEB}: constant"),
            _row("hung-generate", "a rank stopped: /health_generate", "503", _WEB),
            _row("hung-worker", "a rank stopped: the /health of its node", "200", _DUMMY),
            _row(
                "dead-worker",
                "a rank dead: its node's /health, its launcher",
                "200, lives",
                f"{_ENGINE}: uvicorn.run before join()",
            ),
            _row("worker-told", "SIGTERM to a worker's launcher", "-15", f"{_DUMMY}: uvicorn raises it again"),
            _row(
                "leader",
                "the worker is gone: the leader's /health, its launcher",
                "200, lives",
                "sglang issues 3099 and 4780: NCCL says nothing while nothing runs",
            ),
        ),
    ),
    Scenario(
        name="old-told",
        told="SIGTERM to a worker, and then to the leader.",
        runs="never",
        plays="0.4.4",
        play=_told,
        rows=(
            _row("worker", "the worker's exit code", "-15", f"{_ENGINE}: no handler"),
            _row("left", "what outlives its launcher", "sglang::scheduler_TP1", f"{_SCHEDULER}: no PR_SET_PDEATHSIG"),
            _row("new", "draining: a new generation", "200", _DRAIN),
            _row("leader", "the leader's exit code", "-9", f"{_DRAIN}: kill_process_tree, itself included"),
            _row("line", "`Gracefully exiting... remaining number of requests 0`", True, _DRAIN),
        ),
    ),
    Scenario(
        name="old-rank-killed-early",
        told="SIGKILL to rank 0 while it waits at the rendezvous.",
        runs="never",
        plays="0.4.4",
        play=_rank_killed_early,
        rows=(
            _row("code", "the leader's exit code", "1", f"{_ENGINE}: EOFError"),
            _row("line", "`Rank 0 scheduler is dead. ..`", True, _ENGINE),
        ),
    ),
    Scenario(
        name="old-flags-refused",
        told="Command lines that argparse rejects.",
        runs="never",
        plays="0.4.4",
        play=_flags_refused,
        rows=(
            _row("later", "--cuda-graph-max-bs-decode: exit code, cause", "2, FLAG-REFUSED", _FLAGS),
            _row("pipeline", "--pp-size: exit code, cause", "2, FLAG-REFUSED", _FLAGS),
            _row("number", "--tp-size two: exit code, cause", "2, FLAG-REFUSED", _FLAGS),
        ),
    ),
)
