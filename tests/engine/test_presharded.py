"""The real SGLang writes per-rank files, and reads them where each node has only its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.page_cache import cached, forget, whole
from tests.support.ports import free_port

from orchestrator.engines.registry import engine_of
from orchestrator.lab.engine.environment import ensure_engine, ensure_model
from orchestrator.lab.engine.model import CANARY_PROMPT, CANARY_TEXT
from orchestrator.loading.stacks import load_stack
from orchestrator.node.checkpoint import rank_files
from orchestrator.protocol.jobs import RankFilesRequest

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(2400)]

START_S = 600.0
WEIGHTS = "*.safetensor*"
"""Bytes read of these are counted by their pages in the page cache: beside 2 MB of weights, the engine's /proc/PID/io
mostly counts its libraries. tests/gpu/per_rank.py uses /proc/PID/io, with a larger model."""
STACK = load_stack("sglang-0.5.23-cpu")


@contextmanager
def serving(models: Sequence[Path], folders: Sequence[Path], logs: Path) -> Iterator[str]:
    """One rank per checkpoint and folder of per-rank files, all on loopback; yields the leader's address once it is
    healthy."""
    rendezvous, ports = free_port(), [free_port() for _ in folders]
    python = ensure_engine() / "bin" / "python3"
    env = {**os.environ, **dict(STACK.env), "GLOO_SOCKET_IFNAME": "lo", "SGLANG_HOST_IP": "127.0.0.1"}
    env |= {"SGLANG_CPU_OMP_THREADS_BIND": "0", "HF_HUB_OFFLINE": "1"}
    flags = [word for pair in STACK.flags for word in pair if word]
    ranks = []
    for rank, folder in enumerate(folders):
        words = ["--model-path", models[rank], "--tp-size", len(folders), "--nnodes", len(folders)]
        words += ["--node-rank", rank, "--dist-init-addr", f"127.0.0.1:{rendezvous}", "--port", ports[rank]]
        words += ["--trust-remote-code", "--load-format", "presharded"]
        words += ["--model-loader-extra-config", json.dumps({"presharded_path": str(folder)})]
        command = [str(word) for word in (python, "-m", "sglang.launch_server", *flags, *words)]
        with (logs / f"{rank}.log").open("wb") as log:
            ranks.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True))
    try:
        url = f"http://127.0.0.1:{ports[0]}"
        _await_healthy(url, ranks, logs)
        yield url
    finally:
        for one in ranks:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def _await_healthy(url: str, ranks: Sequence[subprocess.Popen[bytes]], logs: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        ended = [place for place, one in enumerate(ranks) if one.poll() is not None]
        assert not ended, (logs / f"{ended[0]}.log").read_text()[-3000:]
        try:
            urllib.request.urlopen(f"{url}/health", timeout=25).close()
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
        else:
            return
    raise AssertionError("not healthy: " + (logs / "0.log").read_text()[-3000:])


def greedy(url: str) -> str:
    body = json.dumps({"model": "x", "prompt": CANARY_PROMPT, "max_tokens": 8, "temperature": 0}).encode()
    asked = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=120) as told:
        return str(json.load(told)["choices"][0]["text"])


def forgotten(folder: Path) -> bool:
    """Whether its weights are only on disk now; never in tmpfs."""
    forget(folder)
    return not cached(folder, WEIGHTS)


def test_per_rank_files_are_written_once_and_each_node_reads_its_own(tmp_path: Path) -> None:
    assert engine_of(STACK).presharded
    shared = tmp_path / "shared"
    shared.mkdir()
    models = [Path(shutil.copytree(ensure_model(), tmp_path / f"model{rank}")) for rank in range(2)]
    on_disk = all(map(forgotten, models))
    with serving(models, [shared, shared], tmp_path) as url:
        written = greedy(url)
    if on_disk:
        assert all(cached(model, WEIGHTS) for model in models), "to write them, each node reads the checkpoint"
    assert written.startswith(CANARY_TEXT)
    own = [tmp_path / "node0", tmp_path / "node1"]
    for rank, folder in enumerate(own):
        request = RankFilesRequest(op="keep", source=str(shared), folder=str(folder), ranks=(rank,), key="k")
        rank_files.stream(request.as_json())
        assert not list(folder.glob(f"*/*-rank-{1 - rank:03d}*"))
    on_disk = all(map(forgotten, (*models, *own)))
    with serving(models, own, tmp_path) as url:
        assert greedy(url) == written
    assert "Loading from presharded checkpoint" in (tmp_path / "1.log").read_text()
    if on_disk:
        for model, folder in zip(models, own, strict=True):
            assert cached(folder, WEIGHTS) == whole(folder, WEIGHTS), "each node reads its share"
            assert cached(model, WEIGHTS) == 0 < whole(model, WEIGHTS), "and nothing of the checkpoint's weights"
