"""What an engine is busy with, out of its own metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass

METRICS = "/metrics"
"""Where every version has them (--enable-metrics)."""
_LINE = re.compile(r"^sglang[:_](?P<name>\w+)(?P<labels>\{[^}]*\})? (?P<value>[0-9.eE+-]+)$", re.MULTILINE)
_OTHER_RANK = re.compile(r'\btp_rank="(?!0")')


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Requests that are answered now and that wait; tokens since the engine started; share of the KV cache in use,
    None where the engine does not tell."""

    running: int
    queued: int
    prompt_tokens: float
    generation_tokens: float
    cache_used: float | None = None


def serving(metrics: str) -> Serving | None:
    """Out of the answer to /metrics; None where that holds nothing of SGLang.

    With --enable-metrics-for-all-schedulers every TP rank reports the same requests: those of TP0 count.
    """
    sums: dict[str, float] = {}
    for line in _LINE.finditer(metrics):
        if _OTHER_RANK.search(line["labels"] or ""):
            continue
        try:
            value = float(line["value"])
        except ValueError:
            continue
        sums[line["name"]] = sums.get(line["name"], 0.0) + value
    if "num_running_reqs" not in sums:
        return None
    return Serving(
        running=int(sums["num_running_reqs"]),
        queued=int(sums.get("num_queue_reqs", 0)),
        prompt_tokens=sums.get("prompt_tokens_total", 0.0),
        generation_tokens=sums.get("generation_tokens_total", 0.0),
        cache_used=sums.get("token_usage"),
    )
