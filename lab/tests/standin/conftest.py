"""The stand-in as real processes on loopback: engines of a few nodes, each with its own launcher, ports and claims."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support import waiting
from tests.support.sources import LAB

PACKAGE = LAB / "standin"
DEADLINE_S = 15.0


def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """The condition's first true value; fails the test if there is none in time."""
    return waiting.until(condition, deadline_s, what)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def title(pid: int) -> str:
    """The title that ps shows; '' if the process is dead or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@dataclass
class Node:
    """One launcher and its output."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    claims: Path
    seen: set[int] = field(default_factory=set)

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        return self.log.read_text()

    def ranks(self) -> dict[str, int]:
        """Title -> pid of this node's children."""
        found = {title(pid): pid for pid in children(self.pid)}
        self.seen |= set(found.values())
        return {name: pid for name, pid in found.items() if name.startswith("sglang::")}

    def rank(self, tp: int) -> int:
        return self.ranks()[f"sglang::scheduler_TP{tp}"]

    def exit_code(self, deadline_s: float = DEADLINE_S) -> int:
        return self.process.wait(deadline_s)

    def ask(self, path: str, body: Any = None, timeout: float = 10.0) -> tuple[int, bytes]:
        """Status and body of one HTTP request; (0, b'') if nothing answers."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            link.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json"})
            answer = link.getresponse()
            return answer.status, answer.read()
        except (ConnectionError, http.client.HTTPException):
            return 0, b""
        finally:
            link.close()

    def status(self, path: str, timeout: float = 10.0) -> int:
        return self.ask(path, timeout=timeout)[0]


class Engine:
    """The nodes of one engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: list[Node] = []
        self.dist_port = free_port()
        self.model = model_directory(folder / "model")

    def start_node(
        self,
        node_rank: int,
        *,
        nnodes: int = 2,
        tp: int = 4,
        plays: str = "0.5.23",
        extra: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        model: Path | None = None,
    ) -> Node:
        package = self.folder / "lib"
        package.mkdir(exist_ok=True)
        if not (package / "standin").exists():
            (package / "standin").symlink_to(PACKAGE)
        port, claims = free_port(), self.folder / f"claims{len(self.nodes)}"
        arguments = ["--model-path", str(model or self.model), "--tp-size", str(tp), "--nnodes", str(nnodes)]
        arguments += ["--node-rank", str(node_rank), "--dist-init-addr", f"127.0.0.1:{self.dist_port}"]
        arguments += ["--host", "127.0.0.1", "--port", str(port), "--trust-remote-code", *extra]
        log = self.folder / f"node{node_rank}.{len(self.nodes)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "standin", "--plays", plays, "--", *arguments],
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={
                    **{key: value for key, value in os.environ.items() if not key.startswith(("STANDIN_", "NCCL_"))},
                    "PYTHONPATH": str(package),
                    "STANDIN_SPEED": "0.02",
                    "STANDIN_ORPHAN_S": "0.5",
                    "L40S_LAB_GPU_CLAIMS": str(claims),
                    **(env or {}),
                },
            )
        node = Node(process, port, log, claims)
        self.nodes.append(node)
        return node

    def start(self, nnodes: int = 2, **how: Any) -> list[Node]:
        return [self.start_node(rank, nnodes=nnodes, **how) for rank in range(nnodes)]

    def ready(self) -> None:
        """Wait for the leader's ready line and the others' health servers."""
        until(lambda: "fired up and ready to roll" in self.nodes[0].text() or self._check(), "ready")
        for node in self.nodes[1:]:
            until(partial(_serves, node), "a worker's /health")
        for node in self.nodes:
            node.ranks()

    def _check(self) -> bool:
        for node in self.nodes:
            if node.process.poll() is not None:
                pytest.fail(f"a node ended with {node.process.returncode}:\n{node.text()}")
        return False

    def end(self) -> None:
        for node in self.nodes:
            for pid in node.ranks().values():
                _kill(pid)
            if node.process.poll() is None:
                node.process.kill()
                node.process.wait(DEADLINE_S)
            for pid in node.seen:
                if title(pid).startswith("sglang::"):
                    _kill(pid)


def _serves(node: Node) -> bool:
    return node.status("/health") == 200


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def model_directory(path: Path, **changes: Any) -> Path:
    """config.json, an index of 4 shards and the mark that they are missing on purpose, as on a lab's nodes."""
    path.mkdir(parents=True)
    (path / ".standin").touch()
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": 4,
        "num_attention_heads": 128,
        "hidden_size": 512,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 4096,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]},
        **changes,
    }
    (path / "config.json").write_text(json.dumps(config))
    shards = {f"weight{number}": f"model-0000{number}-of-00004.safetensors" for number in range(4)}
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 4 * 2**30}, "weight_map": shards})
    )
    return path


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Two serving nodes of two ranks, shared by tests that leave them unchanged."""
    made = Engine(tmp_path_factory.mktemp("serving"))
    made.start(
        env={"SGLANG_HEALTH_CHECK_TIMEOUT": "0.5", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "5,7"},
        extra=("--enable-metrics",),
    )
    made.ready()
    yield made
    made.end()
