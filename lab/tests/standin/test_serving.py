"""A serving engine of two nodes: its status, its answers, and what happens when a rank stops answering."""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .conftest import children, title, until

FRANCE = "The capital of France is"


def lines_of(body: bytes) -> list[Any]:
    """Documents of a stream of server-sent events, without its end mark."""
    events = [line.removeprefix("data: ") for line in body.decode().splitlines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def test_every_rank_is_a_process_with_sglangs_title(serving: Any) -> None:
    leader, worker = serving.nodes
    assert set(leader.ranks()) == {"sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer"}
    assert set(worker.ranks()) == {"sglang::scheduler_TP2", "sglang::scheduler_TP3"}
    assert Path(f"/proc/{worker.rank(2)}/comm").read_text() == "sglang::schedul\n"


def test_ranks_hold_nothing_of_each_other(serving: Any) -> None:
    """A rank's death must be seen by the end of its own pipe, so no sibling may hold it open."""
    worker = serving.nodes[1]
    pipes = [
        {target for path in Path(f"/proc/{pid}/fd").iterdir() if "pipe:" in (target := str(path.readlink()))}
        for pid in worker.ranks().values()
    ]
    assert not pipes[0] & pipes[1]


def test_the_log_says_what_this_is_and_shows_the_phases_in_order(serving: Any) -> None:
    text = serving.nodes[0].text()
    assert "stand-in" in text.splitlines()[0]
    assert "loads no model" in text.splitlines()[0]
    marks = [
        "TP0] Init parallel begin.",
        "TP0] sglang is using nccl==",
        "TP0] Init parallel ends. elapsed=",
        "TP0] Load weight begin. avail mem=43.70 GB",
        "Multi-thread loading shards:   0% Completed | 0/4",
        "Multi-thread loading shards: 100% Completed | 4/4",
        "TP0] Load weight end. elapsed=",
        "TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: ",
        "TP0] Memory pool end. avail mem=",
        "TP0] Capture target decode CUDA graph begin.",
        "TP0] Capture target decode CUDA graph end. bs=",
        "TP0] max_total_num_tokens=",
        "Uvicorn running on http://127.0.0.1:",
        "The server is fired up and ready to roll!",
    ]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)
    assert "NCCL INFO comm" in text
    assert "nRanks 4" in text


def test_a_completion_says_that_no_model_is_loaded_and_knows_the_canary(serving: Any) -> None:
    status, body = serving.nodes[0].ask("/v1/completions", {"prompt": FRANCE, "max_tokens": 16, "temperature": 0})
    answer = json.loads(body)
    assert status == 200
    assert answer["choices"][0]["text"] == "[stand-in: no model loaded] Paris."
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert {name: count for name, count in answer["usage"].items() if count} == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
    }


def test_as_many_tokens_as_a_benchmark_asks_for(serving: Any) -> None:
    _, body = serving.nodes[0].ask("/v1/completions", {"prompt": "x", "max_tokens": 50, "ignore_eos": True})
    assert json.loads(body)["usage"]["completion_tokens"] == 50
    _, body = serving.nodes[0].ask("/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 1})
    assert [choice["finish_reason"] for choice in json.loads(body)["choices"]] == ["length", "length"]


def test_streams_bring_the_same_text_in_pieces(serving: Any) -> None:
    leader = serving.nodes[0]
    _, body = leader.ask("/v1/completions", {"prompt": FRANCE, "max_tokens": 16, "stream": True})
    chunks = lines_of(body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "[stand-in: no model loaded] Paris."
    assert len(chunks) == 3
    asked = {
        "messages": [{"role": "user", "content": FRANCE}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    *chunks, last = lines_of(leader.ask("/v1/chat/completions", asked)[1])
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks).endswith("Paris.")
    assert last["usage"]["completion_tokens"] == 3


def test_sglangs_own_generate(serving: Any) -> None:
    _, body = serving.nodes[0].ask("/generate", {"text": FRANCE, "sampling_params": {"max_new_tokens": 2}})
    answer = json.loads(body)
    assert answer["text"] == "[stand-in: no model loaded] Paris"
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 2}


def test_facts_say_stand_in_too(serving: Any) -> None:
    leader = serving.nodes[0]
    card = json.loads(leader.ask("/v1/models")[1])["data"][0]
    assert card["owned_by"] == "l40s-deploy stand-in"
    info = json.loads(leader.ask("/server_info")[1])
    assert (info["version"], info["tp_size"], info["nnodes"]) == ("0.5.23", 4, 2)
    assert "no model" in info["stand_in"]
    assert leader.status("/model_info") == 200
    assert json.loads(leader.ask("/v1/loads")[1])["loads"][0]["num_running_reqs"] == 0
    assert b"sglang:num_running_reqs" in leader.ask("/metrics")[1]


def test_health_while_serving(serving: Any) -> None:
    leader, worker = serving.nodes
    assert [leader.status(path) for path in ("/health", "/health_generate", "/ready", "/ping")] == [200] * 4
    assert [worker.status(path) for path in ("/health", "/health_generate", "/v1/models")] == [200, 200, 404]


def test_bad_requests_are_refused(serving: Any) -> None:
    leader = serving.nodes[0]
    for path, body in (
        ("/v1/completions", b"{"),
        ("/v1/completions", b"[]"),
        ("/v1/completions", {}),
        ("/v1/completions", {"prompt": "x", "max_tokens": "many"}),
        ("/v1/chat/completions", {"messages": []}),
        ("/generate", {"text": "x", "sampling_params": 3}),
    ):
        status, answer = leader.ask(path, body)
        assert (status, json.loads(answer)["object"]) == (400, "error")
    assert leader.status("/nowhere") == 404


def test_gpu_memory_is_claimed_on_the_visible_gpus(serving: Any) -> None:
    for node in serving.nodes:
        ranks = sorted(pid for name, pid in node.ranks().items() if "scheduler" in name)
        assert sorted(path.name for path in node.claims.glob("[0-9]*")) == [f"5.{ranks[0]}", f"7.{ranks[1]}"]
        held, started = (int(word) for word in (node.claims / f"5.{ranks[0]}").read_text().split())
        assert started == int(Path(f"/proc/{ranks[0]}/stat").read_text().rsplit(")", 1)[1].split()[19])
        assert 30 * 2**30 < held < 44 * 2**30


def test_thousands_of_requests_at_once(serving: Any) -> None:
    leader = serving.nodes[0]

    def ask(number: int) -> int:
        _, body = leader.ask("/v1/completions", {"prompt": f"{number} {FRANCE}", "max_tokens": 4}, 60.0)
        return int("Paris" in json.loads(body)["choices"][0]["text"])

    with ThreadPoolExecutor(64) as pool:
        assert sum(pool.map(ask, range(1000))) == 1000
    assert json.loads(leader.ask("/v1/loads")[1])["loads"][0]["num_running_reqs"] == 0


def test_a_stopped_rank_anywhere_holds_generation_until_it_goes_on(serving: Any) -> None:
    leader, worker = serving.nodes
    stopped = worker.rank(3)
    os.kill(stopped, signal.SIGSTOP)
    answers: list[bytes] = []
    asking = threading.Thread(
        target=lambda: answers.append(leader.ask("/v1/completions", {"prompt": FRANCE, "max_tokens": 8}, 30.0)[1])
    )
    try:
        asking.start()
        assert leader.status("/health") == 503
        assert leader.status("/ready") == 503
        assert worker.status("/health") == 200, "a worker's health server knows no trouble"
        assert answers == []
    finally:
        os.kill(stopped, signal.SIGCONT)
    asking.join(10)
    assert b"Paris" in answers[0]
    assert leader.status("/health") == 200
    assert leader.status("/ready") == 200


def test_a_client_that_goes_away_leaves_nothing_running(serving: Any) -> None:
    leader, worker = serving.nodes
    stopped = worker.rank(2)
    os.kill(stopped, signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):
            leader.ask("/v1/completions", {"prompt": FRANCE, "max_tokens": 8}, 0.3)
        until(lambda: json.loads(leader.ask("/v1/loads")[1])["loads"][0]["num_running_reqs"] == 0, "request dropped")
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert leader.status("/health") == 200


def test_a_worker_ignores_sigterm_while_it_serves(serving: Any) -> None:
    worker = serving.nodes[1]
    worker.process.send_signal(signal.SIGTERM)
    until(
        lambda: "SIGTERM received on node_rank 1; waiting for the rank-0 ShutdownReq" in worker.text(), "its log line"
    )
    assert worker.process.poll() is None
    assert serving.nodes[0].status("/health") == 200


def test_idle_ranks_use_no_cpu(serving: Any) -> None:
    def ticks(pid: int) -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    pids = [pid for node in serving.nodes for pid in [node.pid, *children(node.pid)] if title(pid)]
    before = [ticks(pid) for pid in pids]
    threading.Event().wait(0.5)
    assert sum(ticks(pid) for pid in pids) - sum(before) <= 3
