"""What a profile of SGLang holds: kernels by kind, waiting, and what a launch costs the host. Pure but for reading."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

KINDS = {
    "all-reduce": r"AllReduce|all_reduce",
    "other collectives": r"ncclDevKernel",
    "experts": r"fused_moe|moe_align|topk_kernel|count_and_sort|router_gemm|moe_sum",
    "quantised products": r"_w8a8_block|int8_scaled_mm|cutlass.*[Ss]8|scaled_mm",
    "attention": r"_fwd_|BatchMLA|flash|mla_",
    "quantisation": r"quant",
    "norms": r"RMSNorm",
    "bf16 products": r"nvjet|gemm|cublas|splitK",
}
"""Kernels by their names, first match wins; what is left is 'other'."""
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH = re.compile(r"^(?:cuda|cu)Launch|^cudaGraphLaunch|^cuGraphLaunch")
_TOP = 12


def read(files: Iterable[Path]) -> dict[int, dict[str, Any]]:
    """By TP rank: what `of_events` says of its trace."""
    found = {}
    for file in sorted(files):
        if rank := re.search(r"TP-(\d+)", file.name):
            with gzip.open(file, "rt", encoding="utf-8", errors="replace") as text:
                found[int(rank[1])] = of_events(json.load(text)["traceEvents"])
    return found


def of_events(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of one rank's trace.

    launch_us: median time of the host in one launch; between_us: median time from one launch to the next; span_ms: from
    the first kernel's begin to the last one's end; busy_ms: of all kernels
    """
    kernels = [event for event in events if event.get("cat") in _DEVICE]
    if not kernels:
        return {"kernels": 0}
    launches = sorted(
        (float(event["ts"]), float(event["dur"]), str(event["name"]))
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and _LAUNCH.match(str(event.get("name", "")))
    )
    by_name: dict[str, list[float]] = {}
    for event in kernels:
        by_name.setdefault(str(event["name"])[:80], []).append(float(event["dur"]))
    start = min(float(event["ts"]) for event in kernels)
    end = max(float(event["ts"]) + float(event["dur"]) for event in kernels)
    largest = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:_TOP]
    figures: dict[str, Any] = {
        "kernels": len(kernels),
        "span_ms": round((end - start) / 1e3, 2),
        "busy_ms": round(sum(map(sum, by_name.values())) / 1e3, 2),
        "by_kind_ms": _by_kind(by_name),
        "largest": [[name, len(times), round(sum(times) / 1e3, 2)] for name, times in largest],
        "launches": len(launches),
        "graph_launches": sum("GraphLaunch" in name for _, _, name in launches),
    }
    if len(launches) > 1:
        figures["launch_us"] = round(median(lasted for _, lasted, _ in launches), 2)
        figures["between_us"] = round(median(after[0] - before[0] for before, after in pairwise(launches)), 2)
    return figures


def kind_of(name: str) -> str:
    """A kernel's kind by its name."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "other")


def _by_kind(by_name: Mapping[str, Sequence[float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, times in by_name.items():
        kind = kind_of(name)
        found[kind] = found.get(kind, 0.0) + sum(times) / 1e3
    return {kind: round(found[kind], 2) for kind in sorted(found, key=lambda kind: -found[kind])}


def waiting_ms(ranks: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    """By rank: how much longer its all-reduces lasted than those of the rank that comes last to each, which waits for
    nobody. What the least has is moving data."""
    lasted = {rank: float(seen.get("by_kind_ms", {}).get("all-reduce", 0.0)) for rank, seen in ranks.items()}
    least = min(lasted.values(), default=0.0)
    return {rank: round(time - least, 2) for rank, time in lasted.items()}
