"""How long a start takes, as an interval for each of its phases: the first one, and one with everything cached. Pure.

Loading takes as long as its slowest part: bytes by the disk, tensors by the host (each rank goes through all of the
checkpoint's, and takes its share), or the copies of a rank's share. Where memory holds less than the files, every start
reads from the disk: what is missing at least, all at most, since the cache forgets the oldest pages first.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.engines.cuts import attention_matrices
from orchestrator.model.plan import Memory, Seconds, StartEstimate
from orchestrator.model.profile import ModelProfile, Part
from orchestrator.planning.page_cache import FAST_DISK, SLOW_DISK, Fits
from orchestrator.protocol.planned import Layout

_SOURCE = "sixteen starts of the slice of DeepSeek-V3 on 2 and 4 H100 and on 1 and 2 H200"
_TENSOR_S = (0.34e-3, 0.65e-3)
"""Of each tensor, from RAM: 90,427 tensors took 31 to 57 s, of files of 22, 43 and 85 GB alike (tests/slice)."""
_COPY = (8e9, 1e9)
"""Bytes a second of one rank's share to its GPU: an allowance; the slice's 22 GB of each took less than its tensors."""
_IMPORTS: Seconds = (20.0, 50.0)
"""Until all ranks have met: 23 to 48 s for 2 and 4 ranks of one machine."""
_NCCL_S, _NCCL_RANK_S = 1.5, 0.5
"""2 to 3 s were seen for 4 ranks; more of them take up to so much each: an allowance, until 32 were measured."""
_POOL: Seconds = (0.1, 2.0)
_WARM_UP: Mapping[bool, Seconds] = {True: (8.5, 26.0), False: (1.3, 5.0)}
"""First: 8.5 to 13 s with empty kernel caches, 25 on two nodes; else 1.3 to 4."""


def tensors(profile: ModelProfile) -> int:
    """In the checkpoint's files; a quantised matrix has its scales as another one. The slice has 90,427."""
    dims = profile.dimensions
    layers = dims.num_hidden_layers + dims.num_nextn_predict_layers
    sparse = layers - dims.first_k_dense_replace if dims.n_routed_experts else 0
    experts = (dims.n_routed_experts + dims.n_shared_experts) * 3 * _each(profile, "experts")
    attention = len(tuple(attention_matrices(dims, 1))) * _each(profile, "attention")
    norms = 4 if dims.kv_lora_rank else 2
    dense = 3 * _each(profile, "dense")
    return layers * (attention + norms) + sparse * (experts + 2) + (layers - sparse) * dense + 3


def _each(profile: ModelProfile, part: Part) -> int:
    return 1 if profile.stored(part) == "none" else 2


def estimate(profile: ModelProfile, layout: Layout, memory: Memory, *, read: int, fits: Fits) -> StartEstimate | None:
    """Graphs that were not measured for such a rank are left out; None where the engine was not measured at all.

    read: bytes of the files that a node reads
    """
    if memory.graphs is None or memory.weights is None:
        return None
    weights, kept = memory.weights, bool(fits) and all(fit.fits for fit in fits.values())
    missing = max((fit.needed - fit.room for fit in fits.values()), default=0)
    first = {
        **_before(layout),
        "weights": _loading(profile, layout, weights, disk=(0, read)),
        "kv-cache": _POOL,
        **_graphs(memory, first=True),
        "warm-up": _WARM_UP[True],
    }
    again = {
        **first,
        "weights": _loading(profile, layout, weights, disk=(0, 0) if kept else (max(0, missing), read)),
        **_graphs(memory, first=False),
        "warm-up": _WARM_UP[False],
    }
    return StartEstimate(first=first, again=again)


def _before(layout: Layout) -> dict[str, Seconds]:
    ranks = layout.tensor_parallel * layout.pipeline_parallel
    return {"rendezvous": _IMPORTS, "nccl": (_NCCL_S, 2 * _NCCL_S + _NCCL_RANK_S * ranks)}


def _loading(profile: ModelProfile, layout: Layout, weights: int, *, disk: tuple[int, int]) -> Seconds:
    """disk: bytes that a node reads from there, at least and at most."""
    count = tensors(profile) / layout.pipeline_parallel
    least, most = (
        max(read / speed, count * each, weights / copied)
        for read, speed, each, copied in zip(disk, (FAST_DISK, SLOW_DISK), _TENSOR_S, _COPY, strict=True)
    )
    return round(least, 1), round(most, 1)


def _graphs(memory: Memory, *, first: bool) -> dict[str, Seconds]:
    if memory.capture_s is None or memory.compile_s is None:
        return {}
    more = memory.compile_s if first else (0.0, 0.0)
    return {"graphs": (round(memory.capture_s[0] + more[0], 1), round(memory.capture_s[1] + more[1], 1))}


def words(found: StartEstimate | None) -> str:
    """One line for a gang; '' where nothing was measured."""
    if found is None:
        return ""
    kinds = (("the first one", found.first), ("later ones", found.again))
    parts = [f"{name} {span(total(phases))} ({_parts(phases)})" for name, phases in kinds]
    beside = "" if "graphs" in found.first else ", beside its graphs, which are not measured for such a rank"
    return f"start{beside}: {'; '.join(parts)}; calculated from {_SOURCE}, for disks of 1 GB/s or more"


def total(phases: Mapping[str, Seconds]) -> Seconds:
    """Of all of them."""
    return sum(least for least, _ in phases.values()), sum(most for _, most in phases.values())


def _parts(phases: Mapping[str, Seconds]) -> str:
    return ", ".join(f"{name} {span(phases[name])}" for name in ("weights", "graphs") if name in phases)


def span(seconds: Seconds) -> str:
    """'40 to 59 s', '4 to 16 min'."""
    least, most = seconds
    if most < 180:
        return f"{least:.0f} to {most:.0f} s"
    return f"{least / 60:.1f} to {most / 60:.1f} min"
