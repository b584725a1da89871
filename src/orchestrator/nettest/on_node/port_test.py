"""Verb `rails`: this node's ends of a bandwidth test of RDMA ports, in place of the engine and as its user.

Request: {"state_dir", "gang", "order": RailsOrder}. Lines: RailsLine, a run at a time; {} twice a second. The receiving
end of a run listens for the other one. A run whose other end does not come is the last one: the nodes are no longer at
the same place in the order. One that hangs after they met is ended at both, and the next follows. When nobody reads
any more, or the deadline has passed, the program is ended. Where the installed program has --use_cuda and the driver
lets cards reach GPUs' memory, an end is in the memory of its port's GPU, until a run fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.jobs.on_node import job
from orchestrator.nettest.messages import NOBODY_LISTENS, RailRun, RailsLine, RailsOrder, RailsRequest, alone
from orchestrator.node import files, supervision
from orchestrator.node.agent.staged_run import Run
from orchestrator.node.engine import guardian
from orchestrator.node.os_errors import os_failures
from orchestrator.node.requests import reader_is_gone, request_of, tell
from orchestrator.node.verbs import lock

PROGRAM = "ib_write_bw"
_PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BYTES = 1 << 20
AGAIN_S = 0.1
RELEASE_S = 3.0
"""For the other end to begin to wait. Where it has failed too, this time is lost."""
STOPPED = -1
HELP_S = 10.0
_PEERMEM, _DRIVER = ("/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem"), "/proc/driver/nvidia/version"
_CUDA, _DMABUF = "--use_cuda", "--use_cuda_dmabuf"


def stream(request: dict[str, Any]) -> None:
    """Run this node's ends, one after the other."""
    asked = request_of(RailsRequest, request)
    order = asked.order
    lock.refuse_a_former_holder(asked)
    state = files.state_dir(asked.state_dir)
    fix = f"stop it with `l40s-deploy down {asked.gang}`"
    run = job.in_place(order.run.as_json(), state, asked.gang, "rails", fix)
    program = shutil.which(PROGRAM, path=_PLACES)
    if program is None:
        tell(RailsLine(missing=PROGRAM, ended=True).as_json())
        return
    with os_failures(state):
        supervision.adopt_orphans()
        for name, least in run.limits.items():
            guardian.raise_limit(name, least)
        _all(run, order, program)
    tell(RailsLine(ended=True).as_json())


def _all(run: Run, order: RailsOrder, program: str) -> None:
    """Until the other end does not come: it would be waited for in each of the others, too."""
    end = time.monotonic() + order.deadline_s
    asked = order.run.device == "cuda" and any(rail.gpu >= 0 for rail in order.runs)
    gpu_words = _gpu_words(run, program) if asked else None
    for rail in order.runs:
        until = min(end, time.monotonic() + order.wait_s)
        on_gpu = gpu_words is not None and rail.gpu >= 0
        words = [f"{_CUDA}={rail.gpu}", *(gpu_words or ())] if on_gpu else []
        status, text = _one(run, _words(program, order, rail, words), until)
        line = RailsLine(run=rail.id, text=text, status=status, on_gpu=on_gpu)
        tell(line.as_json())
        gpu_words = None if status else gpu_words
        if alone(line):
            return
        if status and rail.peer:
            _release(rail.peer, order.tcp_port, min(end, time.monotonic() + RELEASE_S))


def _gpu_words(run: Run, program: str) -> tuple[str, ...] | None:
    """What --use_cuda wants beside it; None where this program or the driver has no way to a GPU's memory."""
    _, help_text = _program(run, [program, "--help"], time.monotonic() + HELP_S)
    options = set(re.findall(r"--\w+", help_text))
    if _CUDA in options and any(map(os.path.exists, _PEERMEM)):
        return ()
    with contextlib.suppress(OSError):
        if {_CUDA, _DMABUF} <= options and "Open Kernel Module" in Path(_DRIVER).read_text(encoding="utf-8"):
            return (_DMABUF,)
    return None


def _words(program: str, order: RailsOrder, rail: RailRun, more: Iterable[str] = ()) -> list[str]:
    words = [program, "-d", rail.device, "-i", str(rail.port), "-p", str(order.tcp_port)]
    words += ["-s", str(BYTES), "-n", str(order.times), "-F", "--report_gbits"]
    words += ["-x", str(rail.gid)] if rail.gid is not None else []
    words += [f"--tclass={order.traffic_class}"] if order.traffic_class is not None else []
    words += ["-S", str(order.service_level)] if order.service_level is not None else []
    return [*words, *more, *(("--", rail.peer) if rail.peer else ())]


def _one(run: Run, words: list[str], until: float) -> tuple[int, str]:
    """Exit status, or STOPPED, and what it printed; again where the other end does not listen yet."""
    while True:
        status, text = _program(run, words, until)
        if NOBODY_LISTENS not in text or time.monotonic() + AGAIN_S > until:
            return status, text
        if reader_is_gone(AGAIN_S):
            raise BrokenPipeError


def _program(run: Run, words: list[str], until: float) -> tuple[int, str]:
    by_lines = shutil.which("stdbuf", path=_PLACES)  # what it says into a pipe is lost where it is ended
    child = subprocess.Popen(
        [by_lines, "-oL", *words] if by_lines else words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"PATH": _PLACES, "LANG": "C.UTF-8", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        preexec_fn=partial(guardian.become, run, os.getpid()),  # noqa: PLW1509 - one thread
    )
    output = job.Output()
    try:
        over = job.follow(child, output, until, results=False)
    finally:
        guardian.end(child)
    return STOPPED if not over or child.returncode is None else child.returncode, output.last


def _release(peer: str, port: int, until: float) -> None:
    """The other end may still wait for a program that failed before it came, or not wait yet: a connection that says
    nothing ends it."""
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection((peer, port), timeout=1.0).close()
            return
        if time.monotonic() + AGAIN_S > until:
            return
        if reader_is_gone(AGAIN_S):
            raise BrokenPipeError
