"""Failures on demand, for tests: $STANDIN_FAIL = `rank=19,phase=weights,how=oom[,after=SECONDS][;...]`.

phase: rendezvous, nccl, weights, kv-cache, graphs, ready or request (the first generation after ready).
how:   a name of FAILURES, `signal:N`, or `hang`.
The messages are those of the real engine's log.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from .played import Played

FAILURES: dict[str, tuple[str, str]] = {
    "oom": (
        "torch.OutOfMemoryError",
        (
            "CUDA out of memory. Tried to allocate 448.00 MiB. GPU {gpu} has a total capacity of 44.40 GiB of which "
            "109.31 MiB is free. Including non-PyTorch memory, this process has 44.28 GiB memory in use."
        ),
    ),
    "shm": (
        "triton.runtime.errors.OutOfResources",
        (
            "out of resource: shared memory, Required: 102400, Hardware limit: 101376. Reducing block sizes or "
            "`num_stages` may help."
        ),
    ),
    "gemm": ("RuntimeError", "gemm executioin failed, error: Error Internal"),
    "fraction": ("RuntimeError", "Not enough memory. Please try to increase --mem-fraction-static."),
    "graph": (
        "Exception",
        (
            "Capture cuda graph failed: CUDA out of memory.\nPossible solutions:\n"
            "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)"
        ),
    ),
    "unbalanced": (
        "RuntimeError",
        (
            "The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
            "pre_model_load_memory=21.30, local_gpu_memory=43.70, local_gpu_memory * 0.9=39.33"
        ),
    ),
    "ifname": (
        "torch.distributed.DistBackendError",
        "NCCL error in: ProcessGroupNCCL.cpp, internal error. Bootstrap : no socket interface found",
    ),
    "ibv": (
        "torch.distributed.DistBackendError",
        (
            "NCCL error in: ProcessGroupNCCL.cpp, unhandled system error. Last error: Call to ibv_modify_qp failed "
            "with 110 Connection timed out"
        ),
    ),
    "nccl": (
        "torch.distributed.DistBackendError",
        (
            "NCCL error in: ProcessGroupNCCL.cpp, ncclSystemError: System call (e.g. socket, malloc) or external "
            "library call failed or device error."
        ),
    ),
    "remote": (
        "torch.distributed.DistBackendError",
        (
            "NCCL error in: ProcessGroupNCCL.cpp, ncclRemoteError: A call failed possibly due to a network error or a "
            "remote process exiting prematurely."
        ),
    ),
    "exception": ("RuntimeError", "CUDA error: an illegal memory access was encountered"),
}


@dataclass(frozen=True)
class Failure:
    """One failure to play. `after`: seconds from the start of the phase, for a rank that runs on meanwhile."""

    rank: int
    phase: str
    how: str
    after: float = 0.0


def read_failures(text: str) -> tuple[Failure, ...]:
    """Failures from the environment variable. Raises ValueError for an invalid one."""
    return tuple(_read(part) for part in text.split(";") if part.strip())


def _read(text: str) -> Failure:
    words = dict(word.split("=", 1) for word in text.strip().split(",") if "=" in word)
    if missing := {"rank", "phase", "how"} - words.keys():
        raise ValueError(f"STANDIN_FAIL: {text.strip()!r} lacks {', '.join(sorted(missing))}")
    failure = Failure(int(words["rank"]), words["phase"], words["how"], float(words.get("after", "0")))
    if failure.how not in (*FAILURES, "hang") and not failure.how.startswith("signal:"):
        raise ValueError(f"STANDIN_FAIL: unknown how={failure.how}")
    return failure


def arm(failures: tuple[Failure, ...], rank: int, phase: str, gpu: int) -> None:
    """Play the failures of this rank and phase: at once, or from a timer that interrupts whatever runs then."""
    for failure in failures:
        if (failure.rank, failure.phase) != (rank, phase):
            continue
        if not failure.after:
            _strike(failure, gpu)
        signal.signal(signal.SIGALRM, lambda *_, chosen=failure: _strike(chosen, gpu))
        signal.setitimer(signal.ITIMER_REAL, failure.after)


def _strike(failure: Failure, gpu: int) -> None:
    if failure.how == "hang":
        while True:
            time.sleep(3600)
    if failure.how.startswith("signal:"):
        os.kill(os.getpid(), int(failure.how.partition(":")[2]))
        return
    shown, text = FAILURES[failure.how]
    raise Played(shown, text.format(gpu=gpu))
