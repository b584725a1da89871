"""What the reference cluster should give, said before anybody has run it: 4 x 8 L40S, RDMA between the nodes.

Speeds come from two models that share no measured speed: the roofline, fitted to the articles' four speeds, and the
kernels of a step as they were profiled on H100 (`step_kernels`). A figure is their mean, in which either weighs by its
error; its range holds what each of them says with the error of its own check. Time to the first token and of a start
are counted from fewer facts, and have wider ranges. docs/prediction.md is made of this file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.model.gpu_facts import L40S, facts_of
from orchestrator.model.profile import BYTES_A_NUMBER, ModelProfile
from orchestrator.planning.memory import checkpoint_bytes
from orchestrator.planning.page_cache import FAST_DISK, SLOW_DISK, to_read
from orchestrator.planning.roofline import BATCHES, INSIDE_GBS, leave_one_out, left_out, speeds
from orchestrator.planning.step_kernels import TFLOPS, articles_speed, error_of, step
from orchestrator.protocol.planned import Layout
from orchestrator.topology.speed import Traffic

MADE = "2026-11-28"
"""The day from which no figure here was changed."""
ARTICLES = "DeepSeek-R1-Channel-INT8"
TP32 = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8)
STAGES = Layout(tensor_parallel=8, pipeline_parallel=4, nnodes=4, gpus_per_node=8)
CASES = (("DeepSeek-V3-0324-Block64x64", TP32), (ARTICLES, TP32), ("DeepSeek-V3-0324", STAGES))
"""Model and layout: FP8 in blocks of 64x64, INT8, and the stock checkpoint with blocks of 128x128."""
KV_ERROR = (-0.082, 0.01)
"""KV tokens of the engine beside `plan`'s, as a share. Fourteen starts of the slice in FP8 lie within 1.9 %; of two in
INT8 one had 4.4 % more weights than planned, which is as many tokens (tests/slice/measured.md)."""
INPUT, CHUNK = 200, 8192
"""Tokens of a prompt, as the articles sent them; tokens prefilled at once (their log)."""
_ACTIVE = 37e9
"""Parameters that a token uses (DeepSeek-V3 technical report)."""
FIRST_TOKEN_S = {ARTICLES: 7.22506, "DeepSeek-V3-0324-Block64x64": 7.76852}
"""Mean time to the first token with 128 requests: the articles' benchmarks of 256 prompts, wiring right."""
ALONE_S = (0.21, 0.60)
"""To the first token of one request of 200 tokens: the slice on H100, where launches take all of it."""
_RENDEZVOUS, _NCCL, _KV_CACHE, _WARM_UP = (22.6, 47.9), (1.8, 3.0), (0.2, 1.2), (1.7, 13.0)
"""Seconds of a start's phases: the slice on H100."""
_TENSORS_S = 42.0
"""The slice's least for loading weights, from RAM."""
_GRAPHS = (20.4, 411.41)
"""The slice's with kernels compiled before; the articles' with torch.compile."""


@dataclass(frozen=True, slots=True)
class Range:
    """A figure between two bounds."""

    low: float
    value: float
    high: float

    def holds(self, measured: float) -> bool:
        """Whether it lies within."""
        return self.low <= measured <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Of one case, by requests at once.

    roofline, kernels: tokens/s by either model; speeds: of both together; first_token_s: mean; start_s: low and high
    """

    model: str
    layout: Layout
    roofline: Mapping[int, float]
    kernels: Mapping[int, float]
    speeds: Mapping[int, Range]
    first_token_s: Mapping[int, Range]
    start_s: tuple[float, float]


def predicts(model: str, layout: str, gpus: Iterable[str]) -> bool:
    """Whether this is a case of the prediction. layout: its key; gpus: names of all GPUs as NVML says them"""
    facts = [facts_of(gpu) for gpu in gpus]
    all_same = bool(facts) and all(found is not None and found.name == L40S.name for found in facts)
    return all_same and any((name, case.key) == (model, layout) for name, case in CASES)


def predict(profile: ModelProfile, layout: Layout, articles: ModelProfile) -> Predicted:
    """Of one of CASES. articles: the profile of the INT8 checkpoint, which both models are checked with"""
    by_roofline = dict(speeds(profile, layout).tokens_per_s)
    by_kernels = {batch: batch / step(profile, layout, batch, gpu=L40S.name).seconds for batch in BATCHES}
    off = {batch: kernels_error(articles, batch, layout) for batch in BATCHES}
    return Predicted(
        model=profile.name,
        layout=layout,
        roofline=by_roofline,
        kernels=by_kernels,
        speeds={
            batch: _together(by_roofline[batch], roofline_error(), by_kernels[batch], off[batch]) for batch in BATCHES
        },
        first_token_s={batch: _first_token(layout, batch) for batch in BATCHES},
        start_s=_start(profile, layout),
    )


def roofline_error() -> float:
    """The largest of four points, each predicted from the other three."""
    return max(leave_one_out().values())


def kernels_error(articles: ModelProfile, requests: int, layout: Layout) -> float:
    """Of the micro-batch that a stage takes, at least of a few requests: where it was checked next."""
    batch = math.ceil(requests / layout.pipeline_parallel)
    nearest = min(BATCHES, key=lambda known: abs(math.log(known / batch)))
    return max(abs(error_of(articles, known)) for known in BATCHES if known <= nearest)


def checked(articles: ModelProfile) -> dict[int, float]:
    """Tokens/s that both models together say of the articles' points, the roofline without the point itself."""
    without, other = left_out(), roofline_error()
    return {
        batch: _together(
            without[batch], other, articles_speed(articles, batch), kernels_error(articles, batch, TP32)
        ).value
        for batch in BATCHES
    }


def _together(first: float, first_error: float, second: float, second_error: float) -> Range:
    """Either weighs by the inverse square of its error."""
    trust, other = first_error**-2, second_error**-2
    value = math.exp((trust * math.log(first) + other * math.log(second)) / (trust + other))
    low = min(first * (1 - first_error), second * (1 - second_error))
    high = max(first * (1 + first_error), second * (1 + second_error))
    return Range(low, value, high)


def prefill_s(layout: Layout, tokens: int) -> float:
    """The least that a chunk of a prompt takes in one stage: its arithmetic at the GPU's peak, and its all-reduces at
    the bandwidth that the articles measured."""
    ranks, stages = layout.tensor_parallel, layout.pipeline_parallel
    bandwidth = INSIDE_GBS if layout.inside_nodes else Traffic.RAILS.busbw_gbs
    size = tokens * 7168 * BYTES_A_NUMBER
    reduces = 122 / stages * size * 2 * (ranks - 1) / ranks / (bandwidth * 1e9)
    return reduces + 2 * _ACTIVE * tokens / (ranks * stages) / (TFLOPS[L40S.name] * 1e12)


def least_first_token_s(layout: Layout, requests: int) -> float:
    """Mean of so many prompts that are sent at once and prefilled in full chunks, one after the other; with stages the
    chunks follow each other through them."""
    chunks = [math.ceil((place + 1) * INPUT / CHUNK) for place in range(requests)]
    chunk = prefill_s(layout, min(CHUNK, requests * INPUT))
    return chunk * (sum(chunks) / requests + layout.pipeline_parallel - 1)


def first_token_factors() -> dict[str, float]:
    """How many times the least the articles' benchmarks took, by model."""
    return {model: seconds / least_first_token_s(TP32, 128) for model, seconds in FIRST_TOKEN_S.items()}


def _first_token(layout: Layout, requests: int) -> Range:
    """From the least to half more than the articles' factor makes of it, and never below one request's launches."""
    least, factors = least_first_token_s(layout, requests), first_token_factors().values()
    usual = least * sum(factors) / len(factors)
    low, alone = ALONE_S
    return Range(max(least, low), max(usual, math.sqrt(low * alone)), max(usual * 1.5, alone))


def _start(profile: ModelProfile, layout: Layout) -> tuple[float, float]:
    """Seconds from nothing to ready: of fast disks and compiled kernels, of slow disks and torch.compile.

    By figures of the day when the page was written: `start_estimate`, by which plans go, may follow what is measured
    later, and a prediction may not.
    """
    read = to_read(checkpoint_bytes(profile), layout)
    weights = (max(_TENSORS_S, read / FAST_DISK), read / SLOW_DISK)
    phases = (_RENDEZVOUS, _NCCL, weights, _KV_CACHE, _GRAPHS, _WARM_UP)
    return sum(low for low, _ in phases), sum(high for _, high in phases)


def compared(found: Predicted, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What somebody has measured beside it. rows: `bench`'s `decode`: requests, tok_s, source"""
    points = []
    for row in rows:
        requests, measured = row.get("requests"), row.get("tok_s")
        if isinstance(requests, int) and isinstance(measured, int | float) and requests in found.speeds:
            speed = found.speeds[requests]
            points.append(
                {
                    "requests": requests,
                    "tok_s": measured,
                    "source": row.get("source", ""),
                    "predicted": round(speed.value, 1),
                    "low": round(speed.low, 1),
                    "high": round(speed.high, 1),
                    "within": speed.holds(float(measured)),
                }
            )
    return points
