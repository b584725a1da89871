"""The last hour of a gang as small curves, out of moments that were looked at meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.gang.steps.status.live import GangLoad, NodeLoad
from orchestrator.gang.view import GangView

HOUR_S = 3600.0
EVERY_S = 10.0
"""Between two samples: 360 points for a curve."""
WIDTH, HEIGHT = 160, 32
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A gang at one time. at: our epoch seconds; None where it was not told. cache_used: a share; least_free: bytes of
    the GPU with the least free memory"""

    at: float
    tokens_s: float | None = None
    running: float | None = None
    queued: float | None = None
    cache_used: float | None = None
    least_free: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """points: of an SVG polyline in WIDTH x HEIGHT, the hour from left to right; newest: with its unit; extreme:
    'most 40.0', of what must not run out 'lowest 7.4 GiB'"""

    title: str
    newest: str
    extreme: str
    points: str


_CURVES = (
    ("tokens a second", "tokens_s", 1.0, "{:.1f}", "most"),
    ("running requests", "running", 1.0, "{:.0f}", "most"),
    ("queued requests", "queued", 1.0, "{:.0f}", "most"),
    ("KV cache in use", "cache_used", 0.01, "{:.0f} %", "most"),
    ("least free memory", "least_free", float(_GIB), "{:.1f} GiB", "lowest"),
)
"""Title, field, what its unit is, how it is written, and which of an hour's values is told."""
_EXTREME = {"most": max, "lowest": min}


def sample_of(view: GangView, load: GangLoad | None, nodes: Mapping[str, NodeLoad], at: float) -> Sample:
    """What is told of a gang now."""
    loads = [nodes[node.name] for node in view.nodes if node.name in nodes]
    gauges = [gpu for load in loads if load.gauges is not None for gpu in load.gauges.gpus]
    free = [
        gpu.memory_total_bytes - gpu.memory_used_bytes
        for gpu in gauges
        if gpu.memory_total_bytes is not None and gpu.memory_used_bytes is not None
    ]
    least = min(free, default=None)
    if load is None:
        return Sample(at=at, least_free=least)
    return Sample(
        at=at,
        tokens_s=load.tokens_s,
        running=load.now.running,
        queued=load.now.queued,
        cache_used=load.now.cache_used,
        least_free=least,
    )


def with_sample(samples: Sequence[Sample], new: Sample) -> tuple[Sample, ...]:
    """The samples of the last hour with another one."""
    return (*(sample for sample in samples if new.at - HOUR_S <= sample.at < new.at), new)


def curves(samples: Sequence[Sample]) -> tuple[Curve, ...]:
    """A curve for each figure that was told at least twice."""
    return tuple(_curves(samples))


def _curves(samples: Sequence[Sample]) -> Iterator[Curve]:
    for title, field, unit, written, extreme in _CURVES:
        curve = [(sample.at, value / unit) for sample in samples if (value := getattr(sample, field)) is not None]
        if len(curve) < 2:
            continue
        now, newest = curve[-1]
        values = [value for _, value in curve]
        most = max(values)
        yield Curve(
            title=title,
            newest=written.format(newest),
            extreme=f"{extreme} {written.format(_EXTREME[extreme](values))}",
            points=" ".join(_point(at - now, value / most if most > 0 else 0.0) for at, value in curve),
        )


def _point(ago_s: float, share: float) -> str:
    """Two pixels are left above and below for the line's width."""
    return f"{WIDTH * (1 + ago_s / HOUR_S):.1f},{2 + (HEIGHT - 4) * (1 - share):.1f}"
