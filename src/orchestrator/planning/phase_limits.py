"""How long each phase of a healthy start may take on slow hardware. Pure.

It depends on the model: reading 640 GB from a cold disk takes an hour, and is no fault.
"""

from __future__ import annotations

SLOW_DISK = 200e6
"""Bytes per second for one node from the slowest disk or share worth waiting for; each node reads all weight files."""
_PLAIN_S = {
    "rendezvous": 900.0,  # importing the engine, then torch's own 10 minutes for all nodes to join (--dist-timeout)
    "nccl": 900.0,  # the same 10 minutes
    "weights": 300.0,
    "kv-cache": 600.0,
    "graphs": 1800.0,  # capture, with torch.compile for each batch size
    "warm-up": 900.0,  # SGLANG_WARMUP_TIMEOUT is 600 s
    "ready": 600.0,  # the canary may compile kernels
}


def allowed_s(model_bytes: int) -> dict[str, float]:
    """Seconds that each phase may take on slow hardware, by phase; an unknown model size counts as 0."""
    return {**_PLAIN_S, "weights": _PLAIN_S["weights"] + model_bytes / SLOW_DISK}
