"""Two nodes from loading to a drained end: endpoints in every state, processes, log, signals that are not failures."""

from __future__ import annotations

import json
import os
import re
import signal
from functools import partial

from tests.contract.contract import Scenario, See
from tests.contract.under_test import EngineUnderTest, Node, Request, generation

_FLAGS = ("/ready", "/ping")
_PROBES = ("/health", "/health_generate")
_LOADED = r"Multi-thread loading shards: 100% Completed \| 1/1 \[\d\d:\d\d<00:00, +(\d+\.\d\dit/s|\d+\.\d\ds/it)\]"
"""tqdm's line for one loaded file; it shows seconds per file if the file took more than a second."""
_HEALTH_TIMEOUT_S = "2"
_LONG = 1000
"""Tokens of a generation that outlasts the leader's look for SIGTERM, every 5 s on the real engine."""


def _play(engine: EngineUnderTest, see: See) -> None:
    leader, worker = engine.start(settings={"SGLANG_HEALTH_CHECK_TIMEOUT": _HEALTH_TIMEOUT_S, "STANDIN_STEP_MS": "2"})
    _loading(leader, worker, see)
    _warming(leader, see)
    engine.ready()
    _processes(leader, worker, see)
    _log(leader, worker, see)
    _ready(leader, worker, engine, see)
    _generating(leader, see)
    _deaf_worker(worker, see)
    _hung(leader, worker, see)
    _draining(leader, worker, see)


def _loading(leader: Node, worker: Node, see: See) -> None:
    for node in (leader, worker):
        node.until_says(r"Init parallel begin\.")
    see("flags", "taken" if not leader.says(r"error:|deprecated") else "not taken")
    see("loading-leader", leader.statuses(*_PROBES, *_FLAGS, "/v1/models"))
    see("loading-worker", worker.status("/health"))


def _warming(leader: Node, see: See) -> None:
    first = leader.until(lambda: (seen := leader.status("/health", timeout=5)) != "refused" and seen, "HTTP")
    see("warming-health", first)
    see("warming-flags", leader.statuses(*_FLAGS))
    see("warming-generate-probe", leader.status("/health_generate"))
    see("warming-models", leader.status("/v1/models"))


def _processes(leader: Node, worker: Node, see: See) -> None:
    see("titles-leader", leader.titles())
    see("titles-worker", worker.titles())
    children = {pid: node for node in (leader, worker) for pid in node.children()}
    see("process-group", all(os.getpgid(pid) == node.pid for pid, node in children.items()))
    ranks = [pid for node in (leader, worker) for pid, words in node.children().items() if "scheduler" in words]
    see("rank-threads", all(_name(pid).startswith("sglang::") for pid in ranks))


def _name(pid: int) -> str:
    with open(f"/proc/{pid}/comm", encoding="utf-8") as file:  # noqa: PTH123 - proc has no metadata to speak of
        return file.read().strip()


def _log(leader: Node, worker: Node, see: See) -> None:
    see("phases-leader", leader.phases())
    see("phases-worker", worker.phases())
    see("cause-while-well", f"{leader.cause()}, {worker.cause()}")
    see("prefix", ", ".join(sorted(set(re.findall(r"^\[[-\d]+ [:\d]+( TP\d+)\] ", leader.text(), re.MULTILINE)))))
    see("shards-bar", _shape(leader, _LOADED))
    see("shards-bar-drawn", b"\rMulti-thread loading shards: 100%" in leader.log.read_bytes())
    see("shards-bar-worker", worker.says("loading shards"))
    see("memory", "an L40S's" if leader.says(r"Load weight begin\. avail mem=44\.99 GB") else "the machine's")
    see("says-what-it-is", leader.says("stand-in"))
    see(
        "weights-line", _shape(leader, r"TP0\] Load weight end\. elapsed=[\d.]+ s, type=\w+, avail mem=[\d.]+ GB, mem ")
    )
    see(
        "kv-line",
        _shape(leader, r"TP0\] KV Cache is allocated\. dtype: torch\.bfloat16, #tokens: 4096, KV size: 0\.00 "),
    )
    see("limits-line", _shape(leader, r"TP0\] max_total_num_tokens=4096, .*max_running_requests=\d+, context_len=2048"))
    see("limits-line-worker", worker.says("max_total_num_tokens="))
    see("uvicorn-line", _shape(leader, rf"\] INFO:     Uvicorn running on http://127\.0\.0\.1:{leader.port} \(Press"))
    see("dummy-server-line", _shape(worker, rf"Dummy health check server started .* 127\.0\.0\.2:{worker.port}"))
    see("access-log", _shape(leader, r'INFO:     127\.0\.0\.1:\d+ - "GET /v1/models HTTP/1\.1" 200 OK'))
    see("access-log-worker", worker.says("GET /health"))


def _shape(node: Node, words: str) -> str:
    return "written" if node.says(words) else "not written"


def _ready(leader: Node, worker: Node, engine: EngineUnderTest, see: See) -> None:
    see("ready-leader", leader.statuses(*_PROBES, *_FLAGS, "/v1/models"))
    see("ready-worker", worker.statuses(*_PROBES, "/ping"))
    see("ready-worker-others", worker.statuses("/ready", "/v1/models", "/metrics", "/server_info"))
    see("facts", leader.statuses("/model_info", "/get_model_info", "/server_info", "/get_server_info", "/v1/loads"))
    see("facts-gone", leader.status("/get_load"))
    see("metrics", leader.status("/metrics"))
    see("unknown-path", leader.status("/no/such/path"))
    see("wrong-method", leader.status("/health", method="POST", body={}))
    (card,) = leader.document("/v1/models")["data"]
    see("models-id", card["id"])
    see("models-length", card["max_model_len"])
    see("models-owner", card["owned_by"])
    info = leader.document("/server_info")
    see("server-info", f"{info['version']}, tp {info['tp_size']}, nodes {info['nnodes']}")
    see("server-info-tokens", info["max_total_num_tokens"])
    model = leader.document("/model_info")
    see("model-info", f"{model['model_type']}, {model['architectures']}, generation {model['is_generation']}")
    see(
        "loads",
        ", ".join(sorted({"num_running_reqs", "num_waiting_reqs"} & set(leader.document("/v1/loads")["loads"][0]))),
    )
    see("flush", leader.statuses("/flush_cache"))
    see("flush-post", leader.status("/flush_cache", method="POST", body={}))


def _generating(leader: Node, see: See) -> None:
    asked = {"model": "any", "prompt": "abcdef", "max_tokens": 4, "temperature": 0}
    answer = leader.document("/v1/completions", asked)
    see("completion-shape", answer["object"])
    see("completion-usage", ", ".join(sorted(answer["usage"])))
    see("completion-text", answer["choices"][0]["text"])
    see("prompt-tokens", answer["usage"]["prompt_tokens"])
    see("completion-tokens", answer["usage"]["completion_tokens"])
    see("completion-finish", answer["choices"][0]["finish_reason"])
    see("completion-model", answer["model"])
    chat = {"model": "any", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 3, "temperature": 0}
    answer = leader.document("/v1/chat/completions", chat)
    see("chat-shape", f"{answer['object']}, {answer['choices'][0]['message']['role']}")
    status, body = leader.ask("/v1/completions", {**asked, "stream": True})
    events = [line for line in body.decode().splitlines() if line]
    see("stream", f"{status}, {events[-1]}")
    see("stream-object", json.loads(events[0].removeprefix("data: "))["object"])
    made = leader.document("/generate", generation(5))
    see("generate-shape", f"{made['meta_info']['completion_tokens']} tokens, {made['meta_info']['finish_reason']}")
    made = leader.document("/generate", {**generation(5), "return_logprob": True, "top_logprobs_num": 2})["meta_info"]
    ids, top = made["output_token_logprobs"], made["output_top_logprobs"]
    see("generate-ids", f"{len(ids)} x {len(ids[0])}, {type(ids[0][1]).__name__}; {len(top)} x {len(top[0])}")
    see("bad-json", leader.status("/v1/completions", body=b"{"))
    see("no-prompt", leader.status("/v1/completions", body={"model": "any"}))
    see("bad-number", leader.status("/v1/completions", body={**asked, "max_tokens": "many"}))
    see("too-long", leader.status("/v1/completions", body={**asked, "prompt": [5] * 3000}))
    see("too-much", leader.status("/v1/completions", body={**asked, "max_tokens": 3000}))
    running = Request(leader, 300).under_way()
    see("flush-busy", leader.status("/flush_cache"))
    see("health-busy", leader.status("/health"))
    see("generate-stream", running.ended())
    Request(leader, 1500).under_way().abandon()
    see("abandoned", leader.until(partial(_idle, leader), "no request is left"))
    see("graph-word", ", ".join(sorted(set(re.findall(r"(\w+ graph: \w+)", leader.text())))))
    see("decode-line", _shape(leader, r"TP0\] Decode batch, #running-req: \d+, .*gen throughput \(token/s\): [\d.]+"))
    see("prefill-line", _shape(leader, r"TP0\] Prefill batch, #new-seq: 1, #new-token: \d+, "))


def _idle(leader: Node) -> bool:
    (load,) = leader.document("/v1/loads")["loads"]
    return bool(load["num_running_reqs"] == 0)


def _deaf_worker(worker: Node, see: See) -> None:
    worker.signal(signal.SIGTERM)
    worker.until_says(r"SIGTERM received on node_rank 1; waiting for the rank-0 ShutdownReq")
    see("term-worker", f"{'lives' if worker.process.poll() is None else 'ended'}, /health {worker.status('/health')}")


def _hung(leader: Node, worker: Node, see: See) -> None:
    rank = worker.child("sglang::scheduler_TP1")
    worker.freeze(rank)
    see("hung-flags-before", leader.statuses(*_FLAGS))
    see("hung-health", leader.status("/health"))
    see("hung-line", _shape(leader, rf"couldn't get a response from detokenizer for last {_HEALTH_TIMEOUT_S} seconds"))
    see("hung-flags-after", leader.statuses(*_FLAGS))
    see("hung-worker", worker.status("/health"))
    see("hung-generation", leader.status("/generate", body=generation(1), timeout=1))
    worker.freeze(worker.pid)
    see("stopped-worker", worker.status("/health", timeout=1))
    worker.signal(signal.SIGCONT)
    os.kill(rank, signal.SIGCONT)
    see("recovered-health", leader.until(lambda: leader.status("/health") == "200", "recovery"))
    see("recovered-flags", leader.statuses(*_FLAGS))
    see("recovered-worker", worker.status("/health"))


def _draining(leader: Node, worker: Node, see: See) -> None:
    running = Request(leader, _LONG).under_way()
    leader.signal(signal.SIGTERM)
    leader.until_says("Draining requests and shutting down")
    see("draining-probes", leader.statuses(*_PROBES))
    see("draining-flags", leader.statuses(*_FLAGS))
    see("draining-new", leader.status("/generate", body=generation(1)))
    see("draining-running", running.ended())
    see("drained-leader", leader.exit_code())
    see("drained-worker", worker.exit_code())
    see(
        "drained-line",
        _shape(leader, r"Gracefully exiting\.\.\. Remaining number of requests 1\. Remaining requests re"),
    )
    see("drained-worker-line", _shape(worker, r"terminated with 0"))
    see("drained-left", f"{leader.left_behind()}, {worker.left_behind()}")
    see("drained-cause", f"{leader.cause()}, {worker.cause()}")


LIFE = Scenario(name="life", play=_play, runs="turns", pace=0.2)
