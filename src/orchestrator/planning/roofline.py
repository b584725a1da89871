"""Decode speed of a layout, calculated: bytes and steps over memory, switch and network. Nothing here is measured.

A decode step of b requests takes T(b) = weights + all-reduces + rest. Weights: what one GPU reads of its own, the hit
share of the experts included, at 75 % of its memory bandwidth. All-reduces: two a layer over the TP group. The rest
(launches, small tiles, attention) is a constant and a share for each request, a layer: fitted to the four speeds that
the articles measured with right wiring (DeepSeek-R1 INT8, SGLang 0.4.4, TP32 on 4 x 8 L40S), the only points there are.
Under PP so many micro-batches go round, each with its part of the requests, and no time is lost between stages.
With attention data parallelism one all-reduce of a layer goes over all ranks, where every group's tokens are filled up
to the largest one's, and the other over a token's own group; SGLang 0.4.4 has both over all ranks.

How wrong it is: see `leave_one_out`, which fits three of the four points and predicts the fourth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.model.gpu_facts import L40S, facts_of
from orchestrator.model.layout import Layout
from orchestrator.model.profile import Dimensions, ModelProfile
from orchestrator.planning.memory import routed_experts_per_gpu, weights_per_gpu
from orchestrator.planning.traffic import REDUCES_A_LAYER
from orchestrator.topology.speed import Traffic, all_reduce_s

BATCHES = (1, 4, 32, 128)
POINTS = {1: 49.02, 4: 153.98, 32: 457.66, 128: 777.92}
"""Tokens/s by requests: the articles, wiring right (yangwenbo.com/articles/update-bench-dsr1-int8-on-l40s.html)."""
OF_MEMORY = 0.75
"""Share of the data sheet's bandwidth that kernels reach when they read weights."""
MEMORY_GBS = {
    "L40S": 864, "L40": 864, "L20": 864, "L4": 300, "RTX 6000 Ada": 960, "RTX 4090": 1008, "A100": 2039, "H100": 3350,
    "H200": 4800,
}  # fmt: skip
"""NVIDIA's data sheets; of several forms the fastest."""
INSIDE_S, INSIDE_GBS = 35e-6, 11.0
"""An all-reduce of 8 GPUs in one node without NVLink: latency as between NCCL's figures for 4 GPUs below one switch and
for 32 ranks, bandwidth as the articles measured across the sockets."""
_BYTES_A_NUMBER = 2
_LAYERS = 61
_WHOLE, _EXPERTS, _HIT = int(21.27 * (1 << 30)), 58 * 256 * (3 * 7168 * 64 + 4 * (2 * 64 + 7168)), 8 / 256
"""Of DeepSeek-R1 INT8 at TP32: bytes of a GPU's weights (the articles' log), of its experts with a float32 scale a row,
and the share of the experts that one request asks for."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Seconds a layer that neither memory nor network explains: each step, and each request in it."""

    step_s: float
    request_s: float

    def of(self, batch: float) -> float:
        """Of one layer."""
        return self.step_s + self.request_s * batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Tokens/s by requests at once. basis: what they rest on, in words; error: largest of `leave_one_out`, a share"""

    tokens_per_s: Mapping[int, float]
    basis: str
    error: float


def speeds(
    profile: ModelProfile,
    layout: Layout,
    gpu: str = L40S.name,
    *,
    all_reduce: Mapping[int, float] | None = None,
    whole_reduces: int = REDUCES_A_LAYER,
) -> Speeds | None:
    """None where nothing can be said: a GPU whose memory bandwidth nobody wrote down, expert parallelism, or attention
    other than MLA, of which there is no measured point.

    all_reduce: seconds by tokens, measured by `nettest` over all ranks of this very layout
    whole_reduces: as for `traffic.bytes_a_token`
    """
    facts = facts_of(gpu)
    bandwidth = MEMORY_GBS.get(facts.name if facts else gpu)
    if bandwidth is None or layout.expert_parallel > 1 or not profile.dimensions.kv_lora_rank:
        return None
    rest = fitted(POINTS)
    found = {
        batch: batch
        / step_s(
            profile,
            layout,
            math.ceil(batch / layout.pipeline_parallel),
            bandwidth,
            rest,
            all_reduce,
            whole_reduces=whole_reduces,
        )
        for batch in BATCHES
    }
    measured = ", all-reduces by the last nettest" if all_reduce else ""
    error = max(leave_one_out().values())
    basis = (
        f"calculated: {100 * OF_MEMORY:.0f} % of {bandwidth} GB/s, NCCL's model of all-reduces{measured}, the rest "
        f"fitted to 4 points of TP32 on L40S, each of which it predicts from the others within {100 * error:.0f} %; "
        "no other layout was measured"
    )
    return Speeds(tokens_per_s=found, basis=basis, error=error)


def step_s(
    profile: ModelProfile,
    layout: Layout,
    batch: int,
    bandwidth: float,
    rest: Rest,
    measured: Mapping[int, float] | None = None,
    *,
    whole_reduces: int = REDUCES_A_LAYER,
) -> float:
    """One token for each of `batch` requests through all stages: meanwhile every stage has done the same for the other
    micro-batches."""
    layers = profile.dimensions.num_hidden_layers
    groups = layout.attention_data_parallel
    whole = whole_reduces if groups > 1 else REDUCES_A_LAYER
    filled = groups * math.ceil(batch / groups) if whole < REDUCES_A_LAYER else batch
    reduce_s = whole * ((measured or {}).get(filled) or reduces_s(profile.dimensions, layout, filled))
    if whole < REDUCES_A_LAYER:
        group = replace(layout, tensor_parallel=layout.tensor_parallel // groups, attention_data_parallel=1)
        reduce_s += (REDUCES_A_LAYER - whole) * reduces_s(profile.dimensions, group, filled // groups)
    return weights_s(profile, layout, batch, bandwidth) + layers * (reduce_s + rest.of(batch))


def weights_s(profile: ModelProfile, layout: Layout, batch: int, bandwidth: float) -> float:
    """Reading the weights of one GPU of each stage once: experts that no request of the batch asks for are not read."""
    dimensions, flat = profile.dimensions, replace(layout, pipeline_parallel=1)
    share = dimensions.num_experts_per_tok / dimensions.n_routed_experts if dimensions.n_routed_experts else 1.0
    read = _read_bytes(weights_per_gpu(profile, flat), routed_experts_per_gpu(profile, flat), share, batch)
    return read / (OF_MEMORY * bandwidth * 1e9)


def _read_bytes(whole: float, experts: float, share: float, batch: int) -> float:
    """share: of the experts that one request asks for, each of the batch another one by chance."""
    return whole - experts * (1 - share) ** batch


def reduces_s(dimensions: Dimensions, layout: Layout, batch: int) -> float:
    """One all-reduce of the TP group: over RDMA rails where it spans nodes, over PCIe where it lies in one."""
    if layout.tensor_parallel == 1:
        return 0.0
    if layout.tensor_parallel > layout.gpus_per_node:
        return _over_rails(batch)
    size, ranks = batch * dimensions.hidden_size * _BYTES_A_NUMBER, layout.tensor_parallel
    return INSIDE_S + size * 2 * (ranks - 1) / ranks / (INSIDE_GBS * 1e9)


def _over_rails(batch: int) -> float:
    """NCCL's model knows four sizes; between them the time is taken as linear."""
    below = max((one for one in BATCHES if one <= batch), default=BATCHES[0])
    above = min((one for one in BATCHES if one >= batch), default=BATCHES[-1])
    low, high = (all_reduce_s(Traffic.RAILS, one) for one in (below, above))
    return low if below == above else low + (high - low) * (batch - below) / (above - below)


def fitted(points: Mapping[int, float]) -> Rest:
    """What is left of the measured steps, as a line through the batch sizes by least squares of relative errors."""
    left = {batch: _left_s(batch, speed) / _LAYERS for batch, speed in points.items()}
    weights = {batch: (speed / batch) ** 2 for batch, speed in points.items()}
    total = sum(weights.values())
    x = sum(weights[one] * one for one in left) / total
    y = sum(weights[one] * left[one] for one in left) / total
    over = sum(weights[one] * (one - x) ** 2 for one in left)
    slope = sum(weights[one] * (one - x) * (left[one] - y) for one in left) / over
    return Rest(step_s=y - slope * x, request_s=slope)


def _left_s(batch: int, speed: float) -> float:
    return batch / speed - _known_s(batch)


def _known_s(batch: int) -> float:
    """Weights and all-reduces of a step of the articles' engine."""
    read = _read_bytes(_WHOLE, _EXPERTS, _HIT, batch)
    return read / (OF_MEMORY * MEMORY_GBS[L40S.name] * 1e9) + _LAYERS * REDUCES_A_LAYER * _over_rails(batch)


def leave_one_out(points: Mapping[int, float] = POINTS) -> dict[int, float]:
    """By batch: how far the model is off (share of the measured speed) when it was fitted to the other points only."""
    found = {}
    for batch, speed in points.items():
        rest = fitted({one: value for one, value in points.items() if one != batch})
        step = _known_s(batch) + _LAYERS * rest.of(batch)
        found[batch] = abs(batch / step - speed) / speed
    return found


def words(found: Speeds, batches: Sequence[int] = BATCHES) -> str:
    """'49 / 154 / 458 / 778 tokens/s at 1 / 4 / 32 / 128 requests'."""
    figures = " / ".join(f"{found.tokens_per_s[one]:.0f}" for one in batches)
    return f"{figures} tokens/s at {' / '.join(map(str, batches))} requests ({found.basis})"
