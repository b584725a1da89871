"""The stand-in where the contract's scenarios (tests/contract) do not go: several ranks on a node, GPUs, many requests,
and failures on demand."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.contract.under_test import PROFILE, Node, start_time, title

from .conftest import GpuEngine, model_directory

FRANCE = "The capital of France is"


def ends(node: Node, *, says: str, code: int = -signal.SIGKILL) -> None:
    assert node.exit_code() == code, node.text()
    assert says in node.text()


def test_ranks_hold_nothing_of_each_other(serving: GpuEngine) -> None:
    """A rank's death must be seen by the end of its own pipe, so no sibling may hold it open."""
    pipes = [
        {target for path in Path(f"/proc/{pid}/fd").iterdir() if "pipe:" in (target := str(path.readlink()))}
        for pid in serving.nodes[1].children()
    ]
    assert len(pipes) == 2 and not pipes[0] & pipes[1]


def test_the_log_says_what_this_is_and_shows_the_phases_of_gpus_in_order(serving: GpuEngine) -> None:
    text = serving.nodes[0].text()
    assert "stand-in" in text.splitlines()[0] and "loads no model" in text.splitlines()[0]
    marks = [
        "TP0] Init parallel begin.",
        "TP0] sglang is using nccl==",
        "TP0] Load weight begin. avail mem=4",
        "Multi-thread loading shards:   0% Completed | 0/4",
        "TP0] Capture target decode CUDA graph begin.",
        "TP0] Capture target decode CUDA graph end. bs=",
        "The server is fired up and ready to roll!",
    ]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)
    assert "NCCL INFO comm" in text and "nRanks 4" in text


def test_an_answer_says_that_no_model_is_loaded_and_knows_the_canary(serving: GpuEngine) -> None:
    leader = serving.nodes[0]
    answer = leader.document("/v1/completions", {"prompt": FRANCE, "max_tokens": 16, "temperature": 0})
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("[stand-in: no model loaded] Paris.", "stop")
    assert {name: count for name, count in answer["usage"].items() if count} == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
    }
    several = leader.document("/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 1})
    assert [choice["finish_reason"] for choice in several["choices"]] == ["length", "length"]
    message = {"role": "user", "content": FRANCE}
    asked = {"messages": [message], "stream": True, "stream_options": {"include_usage": True}}
    events = [
        line.removeprefix("data: ") for line in leader.ask("/v1/chat/completions", asked)[1].decode().split("\n\n")
    ]
    *chunks, last = (json.loads(event) for event in events if event.startswith("{"))
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks).endswith("Paris.")
    assert last["usage"]["completion_tokens"] == 3


def test_bad_requests_are_refused(serving: GpuEngine) -> None:
    for path, body in (
        ("/v1/completions", b"[]"),
        ("/v1/chat/completions", {"messages": []}),
        ("/generate", {"text": "x", "sampling_params": 3}),
    ):
        status, answer = serving.nodes[0].ask(path, body)
        assert (status, json.loads(answer)["object"]) == ("400", "error")


def test_gpu_memory_is_claimed_on_the_visible_gpus(serving: GpuEngine) -> None:
    ranks = [sorted(pid for pid, name in node.children().items() if "scheduler" in name) for node in serving.nodes]
    claims = serving.folder / "claims"
    wanted = {f"{gpu}.{pid}" for pids in ranks for gpu, pid in zip((5, 7), pids, strict=True)}
    assert {path.name for path in claims.glob("[0-9]*")} == wanted
    held, started = (int(word) for word in (claims / f"5.{ranks[0][0]}").read_text().split())
    assert started == start_time(ranks[0][0]) and 4 * 2**30 < held < 44 * 2**30


def test_thousands_of_requests_at_once(serving: GpuEngine) -> None:
    leader = serving.nodes[0]

    def ask(number: int) -> bool:
        asked = {"prompt": f"{number} {FRANCE}", "max_tokens": 4}
        return "Paris" in leader.document("/v1/completions", asked)["choices"][0]["text"]

    with ThreadPoolExecutor(64) as pool:
        assert sum(pool.map(ask, range(1000))) == 1000
    assert leader.document("/v1/loads")["loads"][0]["num_running_reqs"] == 0


def test_idle_ranks_use_no_cpu(serving: GpuEngine) -> None:
    def ticks(pid: int) -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    pids = [pid for node in serving.nodes for pid in (node.pid, *node.children())]
    before = [ticks(pid) for pid in pids]
    threading.Event().wait(0.5)
    assert sum(ticks(pid) for pid in pids) - sum(before) <= 3


def test_a_dead_rank_behind_a_living_one_is_not_seen(engine: GpuEngine) -> None:
    leader, worker = engine.start(settings={"SGLANG_HEALTH_CHECK_TIMEOUT": "0.3"})
    engine.ready()
    first, second = (worker.child(f"sglang::scheduler_TP{rank}") for rank in (2, 3))
    os.kill(second, signal.SIGKILL)
    worker.until(lambda: title(second) == "", "the rank's death")
    assert (leader.status("/health"), worker.status("/health"), worker.process.poll()) == ("503", "200", None)
    os.kill(first, signal.SIGKILL)
    ends(worker, code=0, says="terminated with -9")
    assert leader.process.poll() is None, "by default peers' deaths go unnoticed"


def test_an_engine_that_is_told_to_end_gives_its_gpu_memory_back(engine: GpuEngine) -> None:
    leader, worker = engine.start()
    engine.ready()
    leader.signal(signal.SIGTERM)
    assert (leader.exit_code(), worker.exit_code()) == (0, 0)
    assert not list((engine.folder / "claims").iterdir())


def test_a_stranger_at_the_rendezvous_is_sent_away(engine: GpuEngine) -> None:
    leader = engine.start_node(0)
    leader.until_says("Init parallel begin")

    def knock() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", engine.dist_port), 1) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                return stranger.recv(10) == b""
        except ConnectionRefusedError:
            return False
        except ConnectionResetError:
            return True

    leader.until(knock, "sent away")
    engine.start_node(1)
    engine.ready()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"moe_intermediate_size": 192},
            "gate's and up's weight = 48 is not divisible by weight quantization block_n = 64",
        ),
        ({"intermediate_size": 18560}, "Weight output_partition_size = 4640 is not divisible by weight quantization"),
    ],
)
def test_a_layout_that_does_not_divide_the_model(
    engine: GpuEngine, tmp_path: Path, changes: dict[str, int], message: str
) -> None:
    model = model_directory(tmp_path / "odd" / PROFILE, **changes)
    ends(engine.start_node(0, nnodes=1, gpus=4, model=model), says=message)


def test_a_model_that_does_not_fit(engine: GpuEngine) -> None:
    node = engine.start_node(0, nnodes=1, gpus=1, settings={"STANDIN_GPU_MIB": "4096"})
    ends(node, says="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB")


def test_memory_that_somebody_else_holds_is_not_free(engine: GpuEngine) -> None:
    claims = engine.folder / "claims"
    claims.mkdir()
    (claims / f"0.{os.getpid()}").write_text(f"{42 * 2**30} {start_time(os.getpid())}\n")
    (claims / "0.1").write_text(f"{42 * 2**30} 1\n")  # of a process that ended long ago
    ends(engine.start_node(0, nnodes=1, gpus=1), says="which 1.70 GiB is free")


def test_no_rank_holds_more_than_its_gpu_has(engine: GpuEngine) -> None:
    extra = ("--mem-fraction-static", "0.99", "--max-total-tokens", "1000000000")
    node = engine.start_node(0, nnodes=1, gpus=1, extra=extra)
    ends(node, says="Capture cuda graph failed: CUDA out of memory")


@pytest.mark.parametrize(
    ("how", "phase", "code", "says"),
    [
        ("oom", "weights", -9, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
        ("shm", "request", -9, "out of resource: shared memory, Required: 102400, Hardware limit: 101376"),
        ("ifname", "nccl", -9, "Bootstrap : no socket interface found"),
        ("graph", "graphs", -9, "Capture cuda graph failed"),
        ("signal:9", "weights", 1, "scheduler died during initialization (exit code: -9)"),
        ("exception", "ready,after=0.05", -9, "CUDA error: an illegal memory access was encountered"),
    ],
)
def test_failures_on_demand(engine: GpuEngine, how: str, phase: str, code: int, says: str) -> None:
    engine.start_node(0)
    worker = engine.start_node(1, settings={"STANDIN_FAIL": f"rank=3,phase={phase},how={how}"})
    ends(worker, code=code, says=says)


def test_a_rank_that_hangs_while_loading_holds_the_others(engine: GpuEngine) -> None:
    leader = engine.start_node(0, settings={"STANDIN_LOAD_BARRIER_S": "0.5"})
    worker = engine.start_node(1, settings={"STANDIN_FAIL": "rank=3,phase=weights,how=hang"})
    ends(leader, says="could finish the model loading, but there are other ranks that didn't")
    assert worker.process.poll() is None and "TP3] Load weight end" not in worker.text()


def test_version_0_4_4_has_its_own_words(engine: GpuEngine) -> None:
    engine.plays = "0.4.4"
    leader, _ = engine.start(extra=("--cuda-graph-max-bs", "32"))
    engine.ready()
    for mark in (
        "plays SGLang 0.4.4",
        "Loading safetensors checkpoint shards: 100% Completed | 4/4",
        "TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=",
        "TP0] Capture cuda graph begin. This can take up to several minutes.",
    ):
        assert mark in leader.text()
