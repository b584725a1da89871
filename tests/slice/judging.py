"""What the slice has to show: the plan beside the engine, and what `status` said of healthy nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

GIB = 1 << 30
WEIGHTS_OFF = 0.02
"""By which the planned weights of a rank may differ from the engine's."""
KV_OFF = 0.03
"""By which the planned KV tokens may."""


@dataclass(frozen=True)
class Planned:
    """`memory` of `plan --json`, in bytes and tokens."""

    weights: int
    kv_tokens: int
    kv_bytes_per_token: int
    fraction: float
    reserve: int
    gpu_total: int

    @classmethod
    def of(cls, memory: Mapping[str, Any]) -> Planned:
        return cls(
            weights=int(memory["weights"]),
            kv_tokens=int(memory["kv_tokens"]),
            kv_bytes_per_token=int(memory["kv_bytes_per_token"]),
            fraction=float(memory["static_fraction"]),
            reserve=int(memory["reserve"]),
            gpu_total=int(memory["gpu_total"]),
        )

    @property
    def overhead(self) -> float:
        """What it counts before the first weight: the reserve is a part of all the rest."""
        return self.gpu_total - self.reserve / (1 - self.fraction)

    @property
    def held(self) -> float:
        """What it counts for the weights, with the allocator's blocks: all that is not for the KV cache."""
        return self.gpu_total - self.overhead - self.reserve - self.kv_tokens * self.kv_bytes_per_token

    def with_less(self, taken: int) -> Planned:
        """The same arithmetic for a card of which so many bytes are taken away."""
        total = self.gpu_total - taken
        before = total - self.overhead
        reserve = before * (1 - self.fraction)
        tokens = int((before - reserve - self.held) // self.kv_bytes_per_token)
        return replace(self, kv_tokens=tokens, reserve=int(reserve), gpu_total=total)

    def figures(self) -> dict[str, Any]:
        return {
            "weights_gib": round(self.weights / GIB, 3),
            "kv_tokens": self.kv_tokens,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "fraction": self.fraction,
            "reserve_gib": round(self.reserve / GIB, 3),
            "overhead_gib": round(self.overhead / GIB, 3),
            "gpu_total_gib": round(self.gpu_total / GIB, 3),
        }


def compared(planned: Planned, engine: Mapping[str, Any]) -> dict[str, float]:
    """By how much the plan is above the engine, as a part of the engine's; what the engine does not say is left out."""
    found = {}
    if weights := engine.get("weights_gib"):
        found["weights"] = round(planned.weights / GIB / max(weights) - 1, 4)
    if tokens := engine.get("kv_tokens"):
        found["kv_tokens"] = round(planned.kv_tokens / min(tokens) - 1, 4)
    if before := engine.get("before_weights_gib"):
        found["before_weights_gib"] = round((planned.gpu_total - planned.overhead) / GIB - min(before), 3)
    return found


def off(differences: Mapping[str, float]) -> list[str]:
    """In words, what is further off than it may be."""
    limits = {"weights": WEIGHTS_OFF, "kv_tokens": KV_OFF}
    return [
        f"plan's {name.replace('_', ' ')} are {differences[name]:+.1%} off, {limit:.0%} allowed"
        for name, limit in limits.items()
        if name in differences and abs(differences[name]) > limit
    ]


def outside(start: Mapping[str, Any] | None, planned: Mapping[str, Any] | None) -> list[str]:
    """In words, where a start took no time that the plan has for a first one or a later one.

    start: of `status --json`; planned: gangs[].start of `plan --json`; of a stand-in nothing is known
    """
    if not start or not planned:
        return []
    spans = [[sum(phase[end] for phase in planned[kind].values()) for end in (0, 1)] for kind in ("first", "again")]
    if any(least <= start["seconds"] <= most for least, most in spans):
        return []
    said = " or ".join(f"{least:.0f} to {most:.0f}" for least, most in spans)
    return [f"the start took {start['seconds']:.0f} s, the plan says {said}"]


def called_behind(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """What `status` said of nodes of a healthy start that tell no progress of their own, as if they were behind.

    documents: gangs of `status --json`, one for each look
    """
    found = dict.fromkeys(words for seen in documents if (words := _called(seen)))
    return list(found)


def _called(gang: Mapping[str, Any]) -> str:
    words = str(gang.get("progress") or "")
    named = words.partition(" is at ")[0].partition(" are at ")[0]
    nodes: Sequence[Mapping[str, Any]] = gang.get("nodes") or ()
    silent = [node["name"] for node in nodes if node["name"] in named and not node.get("phase_of")]
    phases = {node.get("phase") for node in nodes}
    return words if silent and len(phases) == 1 else ""
