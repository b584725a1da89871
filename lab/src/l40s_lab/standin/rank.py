"""The life of one scheduler process: join, load, allocate, capture, then make tokens until it is told to stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from dataclasses import dataclass
from typing import Any

from . import cuda_death, moe, nccl, ras
from .claims import GIB, Claims, visible_gpu
from .failures import FAILURES, arm
from .group import Leader, Member, PeerLost, Stopped
from .log import Log, raw, shard_bar
from .model import Model, check_layout, check_shards, read_model
from .played import Played, trace
from .scheduler import Scheduler, Service
from .settings import Rank, Settings
from .title import die_with, outlive, set_title

CONTEXT_GIB = 0.50
COMMUNICATOR_GIB = 0.79
"""CUDA's context and NCCL's buffers: together they leave 43.70 of an L40S's 44.99 GiB before loading."""
GRAPHS_GIB = 2.02
SECONDS = {"import": 0.5, "nccl": 1.2, "weights": 2.2, "kv-cache": 0.4, "graphs": 1.2}
"""Length of each phase at speed 1."""
_WEIGHT_STEPS = 12
_GRAPH_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 160)
_CLOSED_BY_PEER = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
AFTER_INIT, AFTER_WEIGHTS, AFTER_GRAPHS = 1, 2, 3
"""Barriers. Number 0 is the rendezvous."""


@dataclass(frozen=True)
class Links:
    """A rank's connections inside its node.

    launcher: process id of the parent, which gets SIGQUIT on failures, as from the real scheduler
    ready:    a pipe that gets one line of JSON when this rank can serve
    requests: from the launcher, to rank 0 only
    tokens:   from rank 0 only, to the detokenizer
    """

    launcher: int
    ready: int
    requests: socket.socket | None = None
    tokens: socket.socket | None = None


def live(settings: Settings, rank: Rank, links: Links) -> None:
    """Run this rank; returns when it should exit with status 0."""
    prefix = settings.prefix(rank)
    if settings.cuda_deaths:
        _die_slowly()
    set_title("sglang::scheduler" + prefix.replace(" ", "_"))
    if settings.version.dies_with_parent:
        die_with(links.launcher)
    else:
        outlive(links.launcher, settings.orphan_s)
    log = Log(prefix)
    life = _Life(settings, rank, log)
    try:
        facts = life.start()
        os.write(links.ready, json.dumps({"status": "ready", **facts}).encode() + b"\n")
        os.close(links.ready)
        arm(settings.failures, rank.world, "ready", rank.gpu)
        life.serve(links)
    except Stopped:
        life.release()
    except Exception as error:
        shown = _lost(error, settings) if isinstance(error, PeerLost) else error
        shown.__traceback__ = error.__traceback__
        log.line(f"Scheduler hit an exception: {trace(shown)}")
        _tell_launcher(links.launcher)
        life.release()


def _die_slowly() -> None:
    try:
        cuda_death.slow_exit()
    except OSError as error:
        cuda_death.refuse(error)


def _lost(error: PeerLost, settings: Settings) -> Played:
    """Wait as long as Gloo takes to notice a peer's end, then return its error."""
    if not settings.cuda_deaths:
        return Played("RuntimeError", _CLOSED_BY_PEER)
    cuda_death.peers_pause()
    return Played("RuntimeError", cuda_death.words(error.address))


def _tell_launcher(launcher: int) -> None:
    if os.getppid() == launcher:
        os.kill(launcher, signal.SIGQUIT)


class _Life:
    """The state of a rank."""

    def __init__(self, settings: Settings, rank: Rank, log: Log) -> None:
        self._settings = settings
        self._version = settings.version
        self._rank = rank
        self._log = log
        self._on_gpu = settings.device == "cuda"
        self._requested = False
        self._tokens = 0

    def start(self) -> dict[str, Any]:
        """All phases until it serves; returns the values that the launcher needs."""
        self._pause("import")
        self._take_gpu()
        self._join()
        self._connect()
        model = read_model(self._settings.model_path, self._version, self._settings.quantization)
        self._load(model)
        self._allocate(model)
        self._capture(model)
        self._group.barrier(AFTER_GRAPHS)
        if self._rank.world == 0 or self._version.every_rank_tells_limits:
            self._tell_limits(model)
        return {"max_total_num_tokens": self._tokens, "max_req_input_len": min(self._tokens, model.context) - 6}

    def serve(self, links: Links) -> None:
        """Make tokens until stopped."""
        nccl.watch_ports(self._settings, self._rank)
        if isinstance(self._group, Leader):
            assert links.requests is not None
            assert links.tokens is not None
            port = Service(links.requests, links.tokens)
            Scheduler(self._settings, self._log, self._group, port, self._tokens, self._on_step).run()
        else:
            self._group.serve(self._on_step)

    def release(self) -> None:
        self._claims.release()

    def _on_step(self) -> None:
        if not self._requested:
            self._requested = True
            arm(self._settings.failures, self._rank.world, "request", self._rank.gpu)

    def _take_gpu(self) -> None:
        shown = visible_gpu(self._rank.gpu, self._settings.environment)
        self._claims = Claims(self._rank.gpu if shown is None else shown, self._settings.environment)
        if self._on_gpu and shown is None:
            raise Played("torch.AcceleratorError", "CUDA error: invalid device ordinal")

    def _join(self) -> None:
        """Meet all other ranks."""
        settings, rank = self._settings, self._rank
        self._log.line(self._version.init_begin)
        self._began = time.monotonic()
        arm(settings.failures, rank.world, "rendezvous", rank.gpu)
        where = (settings.dist_host, settings.dist_port)
        self._group: Leader | Member = (
            Leader(*where, settings.world, settings.dist_timeout, settings.follows_peers)
            if rank.world == 0
            else Member(*where, rank.world, settings.world, settings.dist_timeout, settings.follows_peers)
        )

    def _connect(self) -> None:
        """Build the communicators."""
        settings, rank = self._settings, self._rank
        if self._on_gpu:
            self._claim(CONTEXT_GIB)
            if rank.world == 0:
                self._log.line(f"sglang is using nccl=={self._version.nccl}")
            arm(settings.failures, rank.world, "nccl", rank.gpu)
            nccl.tell(settings, rank)
            ras.begin(settings, rank, self._version.nccl)
            self._pause("nccl")
            self._claim(COMMUNICATOR_GIB)
        self._group.barrier(AFTER_INIT)
        self._before = self._available()
        used = COMMUNICATOR_GIB if self._on_gpu else 0.0
        self._log.line(self._version.init_end.format(elapsed=time.monotonic() - self._began, used=used))
        if self._version.memory_baseline:
            self._log.line(self._version.memory_baseline.format(used=0.0))

    def _load(self, model: Model) -> None:
        """Load weights: memory grows step by step, and rank 0 shows the shards."""
        settings, version = self._settings, self._version
        began = time.monotonic()
        self._log.line(f"Load weight begin. avail mem={self._available():.2f} GB")
        check_shards(model, version)
        check_layout(model, settings.tp_size, settings.ep_size)
        size = model.weights_gib(settings.world)
        if self._on_gpu and size > self._available():
            raise Played("torch.OutOfMemoryError", self._out_of_memory(size))
        count = max(len(model.shards), 1)
        for step in range(_WEIGHT_STEPS + 1):
            if step == 2:
                arm(settings.failures, self._rank.world, "weights", self._rank.gpu)
            if self._rank.world == 0:
                raw(shard_bar(version.shards, count * step // _WEIGHT_STEPS, count, time.monotonic() - began))
            if step < _WEIGHT_STEPS:
                self._pause("weights", _WEIGHT_STEPS)
                self._claim(size / _WEIGHT_STEPS)
        self._log.line(
            version.load_end.format(
                elapsed=time.monotonic() - began,
                type=model.architecture,
                quant=model.quantization,
                avail=self._available(),
                used=size if self._on_gpu else 0.0,
            )
        )
        try:
            self._group.barrier(AFTER_WEIGHTS, settings.load_barrier)
        except TimeoutError:
            raise Played(
                "ValueError",
                f"TP rank {self._rank.tp} could finish the model loading, but there are other ranks that didn't "
                "finish loading. It is likely due to unexpected failures (e.g., OOM) or a slow node.",
            ) from None

    def _allocate(self, model: Model) -> None:
        """The KV cache gets the rest of the static fraction (srt/model_executor: profile_max_num_token)."""
        settings = self._settings
        arm(settings.failures, self._rank.world, "kv-cache", self._rank.gpu)
        a_token = model.kv_bytes_per_token(settings.tp_size, settings.pp_size)
        budget = self._available() - self._before * (1 - settings.mem_fraction)
        tokens = int(budget * GIB / a_token)
        if settings.max_total_tokens:
            tokens = min(tokens, settings.max_total_tokens)
        if tokens <= 0:
            raise Played("RuntimeError", "Not enough memory. Please try to increase --mem-fraction-static.")
        self._tokens = tokens
        self._pause("kv-cache")
        size = tokens * a_token / GIB
        self._claim(size)
        words = self._version.kv_mla if model.is_mla else self._version.kv_mha
        if words:
            self._log.line(words.format(tokens=tokens, size=size, half=size / 2))
        self._log.line(f"Memory pool end. avail mem={self._available():.2f} GB")

    def _capture(self, model: Model) -> None:
        if not (self._on_gpu and self._settings.graphs):
            return
        began = time.monotonic()
        self._log.line(self._version.graph_begin.format(avail=self._available()))
        arm(self._settings.failures, self._rank.world, "graphs", self._rank.gpu)
        self._pause("graphs")
        moe.tell(self._settings, model, self._log)
        if self._claims.total_gib() < self._claims.held / GIB + GRAPHS_GIB:
            raise Played(*FAILURES["graph"])
        self._claim(GRAPHS_GIB)
        self._log.line(
            self._version.graph_end.format(
                sizes=[size for size in _GRAPH_SIZES if size <= self._settings.graph_max_bs],
                elapsed=time.monotonic() - began,
                used=GRAPHS_GIB,
                avail=self._available(),
            )
        )

    def _tell_limits(self, model: Model) -> None:
        self._log.line(
            self._version.limits.format(
                tokens=self._tokens,
                chunk=self._version.chunked_prefill_size,
                running=self._version.max_running_requests,
                context=model.context,
                device="available_gpu_mem" if self._on_gpu else "available_cpu_mem",
                avail=self._available(),
            )
        )

    def _pause(self, phase: str, parts: int = 1) -> None:
        time.sleep(SECONDS[phase] * self._settings.speed / parts)

    def _claim(self, gib: float) -> None:
        if self._on_gpu:
            self._claims.grow(gib * GIB)

    def _available(self) -> float:
        return self._claims.available_gib()

    def _out_of_memory(self, wanted: float) -> str:
        return (
            f"CUDA out of memory. Tried to allocate {wanted:.2f} GiB. GPU {self._rank.gpu} has a total capacity of "
            f"{self._claims.total_gib():.2f} GiB of which {self._available():.2f} GiB is free."
        )
