"""How nodes start, fail and end: rows measured with the real 0.5.23, and 0.4.4 from its source."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .conftest import model_directory, title, until

ALL_PATHS = ("/health", "/health_generate", "/ready", "/v1/models")


def end_with(node: Any, code: int, *, says: str = "") -> None:
    assert node.exit_code() == code, node.text()
    assert says in node.text()


def _loads(node: Any) -> bool:
    return "Load weight begin" in node.text() and len(node.ranks()) >= 2


def _left_nothing(node: Any) -> bool:
    return not any(title(pid).startswith("sglang") for pid in node.seen)


@pytest.mark.parametrize(
    ("plays", "flags", "message"),
    [
        ("0.5.23", ("--cuda-graph-max-bs", "32"), "ambiguous option: --cuda-graph-max-bs could match"),
        ("0.5.23", ("--enable-flashinfer-mla",), "unrecognized arguments: --enable-flashinfer-mla"),
        ("0.5.23", ("--dist-timeout", "soon"), "argument --dist-timeout: invalid int value: 'soon'"),
        ("0.4.4", ("--cuda-graph-max-bs-decode", "32"), "unrecognized arguments: --cuda-graph-max-bs-decode 32"),
        ("0.4.4", ("--pp-size", "2"), "unrecognized arguments: --pp-size 2"),
    ],
)
def test_flags_that_a_version_does_not_know(engine: Any, plays: str, flags: tuple[str, ...], message: str) -> None:
    end_with(engine.start_node(0, plays=plays, extra=flags), 2, says=f"launch_server.py: error: {message}")


def test_endpoints_from_loading_to_ready(engine: Any) -> None:
    leader, worker = engine.start(env={"STANDIN_SPEED": "0.25"})
    until(lambda: "Load weight begin" in leader.text(), "loading")
    assert [leader.status(path) for path in ALL_PATHS] == [0] * 4
    assert worker.status("/health") == 0
    until(lambda: "Uvicorn running" in leader.text(), "warm-up")
    assert [leader.status(path) for path in ALL_PATHS] == [503, 503, 503, 200]
    engine.ready()
    assert [leader.status(path) for path in ALL_PATHS] == [200] * 4


def test_sigterm_drains_the_leader_and_stops_all_nodes(engine: Any) -> None:
    leader, worker = engine.start(env={"STANDIN_SPEED": "0.1"})
    engine.ready()
    leader.process.send_signal(signal.SIGTERM)
    until(lambda: leader.status("/health") == 503, "503 while draining")
    assert leader.status("/ready") == 503
    assert leader.ask("/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200
    end_with(leader, 0, says="Gracefully exiting... Remaining number of requests 0.")
    end_with(worker, 0, says="terminated with 0")
    assert [list(node.claims.iterdir()) for node in (leader, worker)] == [[], []]


def test_sigterm_while_loading_ends_a_node_at_once(engine: Any) -> None:
    nodes = engine.start(env={"STANDIN_SPEED": "0.5"})
    until(lambda: all(_loads(node) for node in nodes), "loading: who loses the other before never does")
    for node in nodes:
        node.process.send_signal(signal.SIGTERM)
        end_with(node, -signal.SIGTERM)
        until(partial(_left_nothing, node), "no orphans")


def test_a_dead_rank_behind_a_living_one_is_not_seen(engine: Any) -> None:
    leader, worker = engine.start(env={"SGLANG_HEALTH_CHECK_TIMEOUT": "0.3"})
    engine.ready()
    first, second = worker.rank(2), worker.rank(3)
    os.kill(second, signal.SIGKILL)
    until(lambda: title(second) == "", "the rank's death")
    assert leader.status("/health") == 503
    assert worker.status("/health") == 200
    assert worker.process.poll() is None
    os.kill(first, signal.SIGKILL)
    end_with(worker, 0, says="terminated with -9")
    assert leader.process.poll() is None, "by default peers' deaths go unnoticed"


@pytest.mark.parametrize("name", ["sglang::scheduler_TP1", "sglang::detokenizer"])
def test_a_dead_child_of_the_leader_ends_its_node(engine: Any, name: str) -> None:
    leader, worker = engine.start()
    engine.ready()
    os.kill(leader.ranks()[name], signal.SIGKILL)
    end_with(leader, -signal.SIGKILL, says="crashed with exit code -9. Triggering SIGQUIT for cleanup...")
    assert _left_nothing(leader)
    assert worker.process.poll() is None


def test_the_launchers_death_takes_its_ranks(engine: Any) -> None:
    leader, worker = engine.start()
    engine.ready()
    leader.process.kill()
    until(partial(_left_nothing, leader), "ranks gone")
    assert worker.process.poll() is None


def test_peers_deaths_are_followed_on_request(engine: Any) -> None:
    leader, worker, *others = engine.start(4, env={"STANDIN_PEER_DEATH": "follow"})
    engine.ready()
    os.kill(worker.rank(1), signal.SIGKILL)
    end_with(worker, 0)
    end_with(leader, -signal.SIGKILL, says="Connection closed by peer")
    for node in others:
        end_with(node, -signal.SIGKILL, says="Received sigquit from a child process")


def test_sigterm_to_a_whole_group_reads_as_a_crash(engine: Any) -> None:
    leader, _ = engine.start(env={"STANDIN_SPEED": "0.1"})
    engine.ready()
    os.killpg(leader.pid, signal.SIGTERM)
    end_with(leader, -signal.SIGKILL, says="scheduler_0")
    assert "crashed with exit code -15" in leader.text()


def test_a_node_that_never_joins(engine: Any) -> None:
    leader = engine.start_node(0, extra=("--dist-timeout", "1"))
    end_with(
        leader,
        -signal.SIGKILL,
        says="DistStoreError: Timed out after 2 seconds waiting for clients. 2/4 clients joined.",
    )


def test_a_leader_that_never_starts(engine: Any) -> None:
    worker = engine.start_node(1, extra=("--dist-timeout", "1"))
    end_with(worker, -signal.SIGKILL, says="DistNetworkError: The client socket has timed out after 1000ms")


def test_a_rendezvous_port_that_is_taken(engine: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", engine.dist_port))
        other.listen()
        leader = engine.start_node(0)
        end_with(leader, -signal.SIGKILL, says="name: EADDRINUSE, message: address already in use")


def test_a_stranger_at_the_rendezvous_is_sent_away(engine: Any) -> None:
    leader = engine.start_node(0)
    until(lambda: "Init parallel begin" in leader.text(), "rendezvous")

    def knock() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", engine.dist_port), 1) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                return stranger.recv(10) == b""
        except ConnectionRefusedError:
            return False
        except ConnectionResetError:
            return True

    until(knock, "sent away")
    engine.start_node(1)
    engine.ready()


def test_a_model_that_is_missing_on_one_node(engine: Any, tmp_path: Path) -> None:
    leader = engine.start_node(0, extra=("--dist-timeout", "1"))
    worker = engine.start_node(1, model=tmp_path / "nowhere")
    end_with(worker, 1, says="OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name'")
    end_with(leader, -signal.SIGKILL, says="2/4 clients joined")


def test_a_copy_that_stopped_half_way(engine: Any) -> None:
    (engine.model / ".standin").unlink()
    (engine.model / "model-00002-of-00004.safetensors").touch()
    node = engine.start_node(0, nnodes=1, tp=1)
    end_with(node, -signal.SIGKILL, says="references 3 shard file(s) missing from")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"moe_intermediate_size": 192},
            "gate's and up's weight = 48 is not divisible by weight quantization block_n = 64",
        ),
        ({"intermediate_size": 18560}, "Weight output_partition_size = 4640 is not divisible by weight quantization"),
        ({"num_attention_heads": 30}, "AssertionError: 30 is not divisible by 4"),
    ],
)
def test_a_layout_that_does_not_divide_the_model(
    engine: Any, tmp_path: Path, changes: dict[str, int], message: str
) -> None:
    model = model_directory(tmp_path / "odd", **changes)
    end_with(engine.start_node(0, nnodes=1, model=model), -signal.SIGKILL, says=message)


def test_a_model_that_does_not_fit(engine: Any) -> None:
    node = engine.start_node(0, nnodes=1, tp=1, env={"STANDIN_GPU_MIB": "4096"})
    end_with(node, -signal.SIGKILL, says="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB")


def test_memory_that_somebody_else_holds_is_not_free(engine: Any) -> None:
    claims = engine.folder / "claims0"
    claims.mkdir()
    start = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
    (claims / f"0.{os.getpid()}").write_text(f"{42 * 2**30} {start}\n")
    (claims / "0.1").write_text(f"{42 * 2**30} 1\n")  # of a process that ended long ago
    node = engine.start_node(0, nnodes=1, tp=1)
    end_with(node, -signal.SIGKILL, says="which 1.70 GiB is free")


@pytest.mark.parametrize(
    ("how", "phase", "code", "says"),
    [
        ("oom", "weights", -9, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
        (
            "shm",
            "request",
            -9,
            "OutOfResources: out of resource: shared memory, Required: 102400, Hardware limit: 101376",
        ),
        ("ifname", "nccl", -9, "Bootstrap : no socket interface found"),
        ("graph", "graphs", -9, "Capture cuda graph failed"),
        ("signal:9", "weights", 1, "scheduler died during initialization (exit code: -9)"),
        ("exception", "ready,after=0.05", -9, "CUDA error: an illegal memory access was encountered"),
    ],
)
def test_failures_on_demand(engine: Any, how: str, phase: str, code: int, says: str) -> None:
    worker_fails = {"STANDIN_FAIL": f"rank=3,phase={phase},how={how}"}
    engine.start_node(0)
    end_with(engine.start_node(1, env=worker_fails), code, says=says)


def test_a_rank_that_hangs_while_loading_holds_the_others(engine: Any) -> None:
    leader = engine.start_node(0, env={"STANDIN_LOAD_BARRIER_S": "0.5"})
    worker = engine.start_node(1, env={"STANDIN_FAIL": "rank=3,phase=weights,how=hang"})
    end_with(leader, -signal.SIGKILL, says="could finish the model loading, but there are other ranks that didn't")
    assert worker.process.poll() is None
    assert "TP3] Load weight end" not in worker.text()


def test_one_node_needs_no_rendezvous_address(engine: Any) -> None:
    node = engine.start_node(0, nnodes=1, tp=2, extra=("--api-key", "secret"))
    engine.ready()
    assert node.status("/health") == 200
    assert node.status("/v1/models") == 401


def test_version_0_4_4_has_its_own_words_and_endpoints(engine: Any) -> None:
    leader, _ = engine.start(plays="0.4.4", extra=("--cuda-graph-max-bs", "32"), env={"STANDIN_SPEED": "0.1"})
    until(lambda: "Uvicorn running" in leader.text(), "warm-up")
    assert leader.status("/health") == 200, "constant in this version"
    engine.ready()
    text = leader.text()
    for mark in (
        "plays SGLang 0.4.4",
        "TP0] Init torch distributed begin.",
        "Loading safetensors checkpoint shards: 100% Completed | 4/4",
        "TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=",
        "TP0] Capture cuda graph begin. This can take up to several minutes.",
        "TP1] max_total_num_tokens=",
    ):
        assert mark in text
    assert [leader.status(path) for path in ("/get_server_info", "/health_generate")] == [200, 200]
    assert [leader.status(path) for path in ("/server_info", "/ready", "/v1/loads")] == [404, 404, 404]
    assert json.loads(leader.ask("/get_server_info")[1])["version"] == "0.4.4.post1"


def test_version_0_4_4_leaves_ranks_behind(engine: Any) -> None:
    leader, worker = engine.start(plays="0.4.4")
    engine.ready()
    ranks = worker.ranks()
    worker.process.send_signal(signal.SIGTERM)
    end_with(worker, -signal.SIGTERM)
    assert [title(pid) for pid in ranks.values()] == list(ranks), "no PDEATHSIG in this version"
    until(lambda: not any(title(pid) for pid in ranks.values()), "a lab's orphans end by themselves")
    leader.process.send_signal(signal.SIGTERM)
    end_with(leader, -signal.SIGKILL, says="Gracefully exiting... remaining number of requests 0")


def state(pid: int) -> str:
    """State of its main thread (proc(5)), and how it died; '' if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{fields[0]} {fields[49]}"


def readable(pidfd: int) -> bool:
    """Whether the process has ended."""
    return bool(select.select([pidfd], [], [], 0)[0])


@pytest.mark.parametrize("victim", [3, 0])
def test_ranks_die_as_cuda_lets_them(engine: Any, victim: int) -> None:
    leader, worker = engine.start(env={"STANDIN_DEATHS": "cuda"})
    engine.ready()
    node, other = (worker, leader) if victim == 3 else (leader, worker)
    pid, parent = node.rank(victim), os.pidfd_open(node.rank(victim))
    os.kill(pid, signal.SIGKILL)
    until(lambda: state(pid) == "Z 9" and not readable(parent), "a zombie whose death can be read before its end")
    until(lambda: readable(parent), "its end")
    os.close(parent)
    pattern = r"(Connection closed by peer|Read error) \[127\.0\.0\.1\]:\d+"
    until(lambda: re.search(pattern, other.text()), "its peers' errors, with its address")
    end_with(worker, -signal.SIGKILL, says="Received sigquit from a child process")
    assert _left_nothing(worker)
