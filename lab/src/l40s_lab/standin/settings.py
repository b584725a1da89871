"""One node's part of an engine, from its command line and environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .failures import Failure, read_failures
from .flags import Given
from .versions import Version


@dataclass(frozen=True)
class Rank:
    """One scheduler process: its rank among all (world), in its TP group and pipeline, and its GPU's position."""

    world: int
    tp: int
    pp: int
    gpu: int


@dataclass(frozen=True)
class Settings:
    """A launch, read once and passed to every process of the node.

    speed:            multiplies the length of every phase and pause (1: about 7 s from launch to ready)
    follows_peers:    ranks end when a peer's connection ends, as with gloo; otherwise they ignore it
    health_timeout:   seconds that /health waits for a token; the default is one of the pauses that speed multiplies
    load_barrier:     seconds that a loaded rank waits for the others (hard-coded in the real engine)
    max_running:      requests that share a step, None for all; max_queued: that may wait beside them
    step_s:           shortest time for one token through all ranks; 0.02 is the reference cluster's pace
    cuda_deaths:      ranks end like processes with CUDA, and follow their peers (cuda_death.py)
    orphan_s:         a rank of 0.4.4 outlives its launcher; here it ends by itself after this time
    """

    version: Version
    model_path: str
    served_name: str
    tp_size: int
    pp_size: int
    ep_size: int
    nnodes: int
    node_rank: int
    dist_host: str
    dist_port: int
    dist_timeout: float
    host: str
    port: int
    device: str
    mem_fraction: float
    max_total_tokens: int | None
    max_running: int | None
    max_queued: int | None
    graph_max_bs: int
    graphs: bool
    metrics: bool
    skip_warmup: bool
    api_key: str | None
    base_gpu_id: int
    gpu_id_step: int
    given: Mapping[str, Any]
    environment: Mapping[str, str] = field(repr=False)
    speed: float = 1.0
    follows_peers: bool = False
    health_timeout: float = 20.0
    load_barrier: float = 480.0
    orphan_s: float = 600.0
    step_s: float = 0.0
    cuda_deaths: bool = False
    failures: tuple[Failure, ...] = ()

    @property
    def health_wait(self) -> float:
        """Seconds that /health actually waits."""
        asked = "SGLANG_HEALTH_CHECK_TIMEOUT" in self.environment
        return self.health_timeout * (1.0 if asked else min(self.speed, 1.0))

    @property
    def quantization(self) -> str | None:
        """--quantization, for a checkpoint whose config.json has none."""
        asked = self.given.get("quantization")
        return None if asked is None else str(asked)

    @property
    def world(self) -> int:
        return self.tp_size * self.pp_size

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """This node's ranks (srt/entrypoints/engine.py, _calculate_rank_ranges)."""
        pp_here = max(self.pp_size // self.nnodes, 1)
        nodes_a_stage = max(self.nnodes // self.pp_size, 1)
        tp_here = self.tp_size // nodes_a_stage
        first_pp = pp_here * (self.node_rank // nodes_a_stage)
        first_tp = tp_here * (self.node_rank % nodes_a_stage)
        return tuple(
            Rank(
                world=pp * self.tp_size + tp,
                tp=tp,
                pp=pp,
                gpu=self.base_gpu_id + (pp % pp_here) * tp_here + (tp % tp_here) * self.gpu_id_step,
            )
            for pp in range(first_pp, first_pp + pp_here)
            for tp in range(first_tp, first_tp + tp_here)
        )

    def prefix(self, rank: Rank) -> str:
        """Text of a rank's log lines after the time, and of its title after `sglang::scheduler`."""
        words = ""
        if self.pp_size > 1:
            words += f" PP{rank.pp}"
        if self.tp_size > 1 or self.version.prefix_always:
            words += f" TP{rank.tp}"
        if self.ep_size > 1 and not self.version.prefix_always:
            words += f" EP{rank.tp // max(self.tp_size // self.ep_size, 1)}"
        return words


def read_settings(version: Version, given: Given) -> Settings:
    """Settings from a parsed command line and the environment."""
    environment = dict(os.environ)
    cuda_deaths = environment.get("STANDIN_DEATHS", "") == "cuda"
    tp_size = given("--tp-size", 1)
    host, port = _rendezvous(given)
    model_path = given("--model-path")
    return Settings(
        version=version,
        model_path=model_path,
        served_name=given("--served-model-name", model_path),
        tp_size=tp_size,
        pp_size=given("--pp-size", 1),
        ep_size=given("--ep-size", 1),
        nnodes=given("--nnodes", 1),
        node_rank=given("--node-rank", 0),
        dist_host=host,
        dist_port=port,
        dist_timeout=float(given("--dist-timeout", 600)),
        host=given("--host", "127.0.0.1"),
        port=given("--port", 30000),
        device=given("--device", "cuda"),
        mem_fraction=given("--mem-fraction-static", _mem_fraction(version, tp_size)),
        max_total_tokens=given("--max-total-tokens"),
        max_running=given("--max-running-requests"),
        max_queued=given("--max-queued-requests"),
        graph_max_bs=given("--cuda-graph-max-bs-decode", given("--cuda-graph-max-bs", 160)),
        graphs=not given("--disable-cuda-graph", False),
        metrics=given("--enable-metrics", False),
        skip_warmup=given("--skip-server-warmup", False),
        api_key=given("--api-key"),
        base_gpu_id=given("--base-gpu-id", 0),
        gpu_id_step=given("--gpu-id-step", 1),
        given=given.shown(),
        environment=environment,
        speed=float(environment.get("STANDIN_SPEED", "1")),
        follows_peers=cuda_deaths or environment.get("STANDIN_PEER_DEATH", "ignore") == "follow",
        cuda_deaths=cuda_deaths,
        health_timeout=float(environment.get("SGLANG_HEALTH_CHECK_TIMEOUT", "20")),
        load_barrier=float(environment.get("STANDIN_LOAD_BARRIER_S", "480")),
        orphan_s=float(environment.get("STANDIN_ORPHAN_S", "600")),
        step_s=float(environment.get("STANDIN_STEP_MS", "0")) / 1000,
        failures=read_failures(environment.get("STANDIN_FAIL", "")),
    )


def _rendezvous(given: Given) -> tuple[str, int]:
    """--dist-init-addr, or a free port for a single node. Raises ValueError for an address without a port."""
    address = given("--dist-init-addr")
    if address is None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", given("--nccl-port", 0)))
            return "127.0.0.1", probe.getsockname()[1]
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"Invalid network address: {address!r}")
    return host.strip("[]"), int(port)


def _mem_fraction(version: Version, tp_size: int) -> float:
    """0.4.4: by TP degree (srt/server_args.py). 0.5: about 0.77 for this cluster, after its reserves."""
    if not version.prefix_always:
        return 0.77
    by_degree = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))
    return next(fraction for least, fraction in by_degree if tp_size >= least)
