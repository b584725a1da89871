"""Decode speed of a layout, calculated: bytes and steps over memory, switch and network. Nothing here is measured.

A decode step of b requests takes T(b) = weights + all-reduces + hand-overs + rest. Weights: what one GPU reads of its
own, the hit share of the experts included, at 75 % of its memory bandwidth. All-reduces: two a layer over the TP group,
by the transport between the nodes where it spans them, or as `nettest` measured them. Hand-overs: what a pipeline stage
sends to the next one on another node. The rest (launches, small tiles, attention) is a constant and a share for each
request, a layer: fitted to the four speeds that the articles measured with right wiring (DeepSeek-R1 INT8, SGLang
0.4.4, TP32 on 4 x 8 L40S). Under PP so many micro-batches go round, each with its part of the requests.
With attention data parallelism one all-reduce of a layer goes over all ranks, where every group's tokens are filled up
to the largest one's, and the other over a token's own group; SGLang 0.4.4 has both over all ranks.

How wrong it is: see `leave_one_out`, which fits three of the four points of right wiring and predicts the fourth, with
right or with wrong wiring.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from orchestrator.model.gpu_facts import L40S, facts_of
from orchestrator.model.profile import BYTES_A_NUMBER, Dimensions, ModelProfile
from orchestrator.planning.memory import routed_experts_per_gpu, weights_per_gpu
from orchestrator.protocol.planned import Layout
from orchestrator.topology.speed import Traffic, all_reduce_s

BATCHES = (1, 4, 32, 128)
POINTS = {1: 49.02, 4: 153.98, 32: 457.66, 128: 777.92}
"""Tokens/s by requests: the articles, wiring right (yangwenbo.com/articles/update-bench-dsr1-int8-on-l40s.html)."""
WRONG_POINTS = {1: 26.00, 4: 42.30, 32: 260.73, 128: 565.73}
"""The same with wrong wiring: TCP between the nodes."""
OF_MEMORY = 0.75
"""Share of the data sheet's bandwidth that kernels reach when they read weights."""
MEMORY_GBS = {
    "L40S": 864, "L40": 864, "L20": 864, "L4": 300, "RTX 6000 Ada": 960, "RTX 4090": 1008,
}  # fmt: skip
"""NVIDIA's data sheets, of cards without NVLink."""
INSIDE_S, INSIDE_GBS = 35e-6, 11.0
"""An all-reduce of 8 GPUs in one node without NVLink: latency as between NCCL's figures for 4 GPUs below one switch and
for 32 ranks, bandwidth as the articles measured across the sockets."""
_HOP_S = {Traffic.RAILS: 14e-6, Traffic.TCP: 40e-6}
"""One message to another node: NCCL's tuning model (src/graph/tuning.cc, simple protocol) for RDMA; of TCP what the
articles' point of one request leaves for each hop of an all-reduce. A hand-over was not measured."""
REDUCES_A_LAYER = 2
"""All-reduces of a layer: after attention, and after the feed-forward part."""
HANDED_OVER = 2
"""Tensors that a pipeline stage hands to the next: hidden states and residual (PPProxyTensors of SGLang's models)."""
_LAYERS = 61
_WHOLE, _EXPERTS, _HIT = int(21.27 * (1 << 30)), 58 * 256 * (3 * 7168 * 64 + 4 * (2 * 64 + 7168)), 8 / 256
"""Of DeepSeek-R1 INT8 at TP32: bytes of a GPU's weights (the articles' log), of its experts with a float32 scale a row,
and the share of the experts that one request asks for."""
_OVER = {Traffic.RAILS: "RDMA", Traffic.TCP: "TCP"}


Line = Callable[[float], float]
"""Seconds of one layer by the requests in a step: of the rest, what neither memory nor network explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How the ranks communicate.

    traffic:  between nodes: RAILS or TCP; assumed: nobody has looked at the nodes
    everywhere, inside: seconds of an all-reduce by tokens of the model, as `nettest` measured them over all ranks and
        over the ranks of one node; test: which test that was, in words
    """

    traffic: Traffic = Traffic.RAILS
    assumed: bool = False
    everywhere: Mapping[int, float] = field(default_factory=dict)
    inside: Mapping[int, float] = field(default_factory=dict)
    test: str = ""

    def measured(self, layout: Layout) -> Mapping[int, float]:
        """Of the layout's TP group; {} where no test had just these ranks."""
        if layout.tensor_parallel == layout.nnodes * layout.gpus_per_node and layout.nnodes > 1:
            return self.everywhere
        return self.inside if layout.tensor_parallel == layout.gpus_per_node else {}


RDMA = Network()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPoint:
    """What somebody has measured of the model on these nodes: tokens/s of decoding with so many requests at once."""

    layout: Layout
    requests: int
    tokens_per_s: float


OWN = 4
"""Own points from which on the rest is fitted to them, as the articles' table has so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Seconds of one decode step: reading the weights; all-reduces, and hand-overs between stages; the rest, which is
    launches, attention and small products"""

    weights_s: float
    reduces_s: float
    rest_s: float

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.weights_s + self.reduces_s + self.rest_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """A decode step by requests at once. basis: what it rests on, in words; error: the largest of the points that were
    predicted from the others (`leave_one_out`), a share"""

    steps: Mapping[int, StepParts]
    basis: str
    error: float

    @property
    def tokens_per_s(self) -> dict[int, float]:
        """Of all requests together."""
        return {batch: batch / parts.seconds for batch, parts in self.steps.items()}


def unsaid(profile: ModelProfile, layout: Layout, gpu: str) -> str:
    """Why nothing can be said of a case, in words; '' where `speeds` says something."""
    facts = facts_of(gpu)
    if facts is not None and facts.nvlink:
        return f"{facts.name} may have NVLink, and the model knows all-reduces over PCIe only"
    if (facts.name if facts else gpu) not in MEMORY_GBS:
        return f"the memory bandwidth of {gpu or 'these GPUs'} is not known here"
    if layout.expert_parallel > 1:
        return "no layout with expert parallelism was measured"
    if not profile.dimensions.kv_lora_rank:
        return "no model with attention other than MLA was measured"
    return ""


def speeds(
    profile: ModelProfile,
    layout: Layout,
    gpu: str = L40S.name,
    *,
    network: Network = RDMA,
    whole_reduces: int = REDUCES_A_LAYER,
    own: Sequence[OwnPoint] = (),
) -> Speeds:
    """Of a case of which `unsaid` says nothing. whole_reduces: as for `bytes_a_token`; own: of this model and stack,
    which the rest is fitted to instead of the articles' points where there are enough"""
    facts = facts_of(gpu)
    case = _Case(profile, MEMORY_GBS[facts.name if facts else gpu], network, whole_reduces)
    if len(own) >= OWN and _spread(own) and (fitted := _by_own(case, layout, own)) is not None:
        return fitted
    rest, bandwidth = _fitted(POINTS), case.bandwidth
    over_tcp = network.traffic is Traffic.TCP and layout.nnodes > 1 and not layout.inside_nodes
    error = max(leave_one_out(Traffic.TCP if over_tcp else Traffic.RAILS).values())
    return Speeds(
        steps={batch: case.parts(layout, batch, rest) for batch in BATCHES},
        basis=_basis(layout, network, bandwidth, error, over_tcp),
        error=error,
    )


@dataclass(frozen=True, slots=True)
class _Case:
    """What a step's time depends on beside the layout and the requests."""

    profile: ModelProfile
    bandwidth: int
    network: Network
    whole_reduces: int

    def parts(self, layout: Layout, requests: int, rest: Line) -> StepParts:
        """One token for each request. Through all stages: meanwhile each has done the same for the other
        micro-batches. rest: of what neither memory nor network explains"""
        batch, dimensions = math.ceil(requests / layout.pipeline_parallel), self.profile.dimensions
        return StepParts(
            weights_s=_weights_s(self.profile, layout, batch, self.bandwidth),
            reduces_s=network_s(dimensions, layout, batch, self.network, self.whole_reduces),
            rest_s=dimensions.num_hidden_layers * rest(batch),
        )

    def step_s(self, layout: Layout, requests: int, rest: Line) -> float:
        """The whole of it."""
        return self.parts(layout, requests, rest).seconds

    def fitted(self, points: Collection[OwnPoint]) -> Line:
        """What is left of the measured steps for each layer, by the requests in a step, as `_fitted`."""
        layers, each = self.profile.dimensions.num_hidden_layers, list(points)
        left = [
            (point.requests / point.tokens_per_s - self.step_s(point.layout, point.requests, _nothing)) / layers
            for point in each
        ]
        batches = [math.ceil(point.requests / point.layout.pipeline_parallel) for point in each]
        weights = [(point.tokens_per_s / point.requests) ** 2 for point in each]
        return _through(batches, left, weights)

    def missed(self, point: OwnPoint, others: Collection[OwnPoint]) -> float:
        """How far the others' prediction of a point is off, as a share of what was measured."""
        predicted = point.requests / self.step_s(point.layout, point.requests, self.fitted(others))
        return abs(predicted - point.tokens_per_s) / point.tokens_per_s


def _nothing(_: float) -> float:
    return 0.0


def _spread(points: Collection[OwnPoint]) -> bool:
    """Whether any point can be left out, and the others still lie at two loads: else no line goes through them."""
    batches = [math.ceil(point.requests / point.layout.pipeline_parallel) for point in points]
    return all(len(set(batches[:place] + batches[place + 1 :])) > 1 for place in range(len(batches)))


def _by_own(case: _Case, layout: Layout, own: Sequence[OwnPoint]) -> Speeds | None:
    """From the points that were measured here; the error is the largest of those that the others predict. None where
    it is as large as a speed itself: these points do not lie on one line."""
    rest = case.fitted(own)
    error = max(case.missed(point, [*own[:place], *own[place + 1 :]]) for place, point in enumerate(own))
    steps = {batch: case.parts(layout, batch, rest) for batch in BATCHES}
    if error >= 1 or min(parts.seconds for parts in steps.values()) <= 0:
        return None
    basis = (
        f"calculated: {100 * OF_MEMORY:.0f} % of {case.bandwidth} GB/s and the network's all-reduces, the rest fitted"
        f" to {len(own)} points measured here; each of which it predicts from the others within {100 * error:.0f} %"
    )
    return Speeds(steps=steps, basis=basis, error=error)


def _basis(layout: Layout, network: Network, bandwidth: int, error: float, over_tcp: bool) -> str:
    assumed = ", assumed" if network.assumed else ""
    over = "one node" if layout.nnodes == 1 else f"{_OVER[network.traffic]} between the nodes{assumed}"
    reduces = "all-reduces inside a node estimated" if layout.inside_nodes else "NCCL's model of all-reduces"
    if over_tcp:
        reduces = "all-reduces over TCP fitted to the 4 points of wrong wiring"
    if network.measured(layout):
        reduces += f", and measured by {network.test}"
    return (
        f"calculated for {over}: {100 * OF_MEMORY:.0f} % of {bandwidth} GB/s, {reduces}, the rest fitted to 4 points of"
        f" TP32 on L40S; each {'point over TCP' if over_tcp else 'of which'} it predicts from the others within"
        f" {100 * error:.0f} %; no other layout was measured"
    )


def network_s(
    dimensions: Dimensions, layout: Layout, batch: int, network: Network, whole_reduces: int = REDUCES_A_LAYER
) -> float:
    """Seconds of a step's all-reduces over all layers, and of what stages hand over. batch: requests of a micro-batch;
    whole_reduces: as for `bytes_a_token`"""
    groups = layout.attention_data_parallel
    whole = whole_reduces if groups > 1 else REDUCES_A_LAYER
    filled = groups * math.ceil(batch / groups) if whole < REDUCES_A_LAYER else batch
    reduce_s = whole * _reduces_s(dimensions, layout, filled, network)
    if whole < REDUCES_A_LAYER:
        group = replace(layout, tensor_parallel=layout.tensor_parallel // groups, attention_data_parallel=1)
        reduce_s += (REDUCES_A_LAYER - whole) * _reduces_s(dimensions, group, filled // groups, network)
    handed_s = _crossings(layout) * _hand_over_s(dimensions, layout, batch, network)
    return dimensions.num_hidden_layers * reduce_s + handed_s


def _hand_over_s(dimensions: Dimensions, layout: Layout, batch: int, network: Network) -> float:
    """Hidden states and residual from one stage to the next on another node: every rank sends its part, and the
    receivers put them together, which takes no longer than an all-reduce of as much (parallel_state.py,
    send_tensor_dict)."""
    size = batch * HANDED_OVER * dimensions.hidden_size * BYTES_A_NUMBER
    together = _reduces_s(dimensions, layout, batch * HANDED_OVER, network)
    return _HOP_S[network.traffic] + size / (network.traffic.busbw_gbs * 1e9) + together


def _weights_s(profile: ModelProfile, layout: Layout, batch: int, bandwidth: float) -> float:
    """Reading the weights of one GPU of each stage once: experts that no request of the batch asks for are not read."""
    dimensions, flat = profile.dimensions, replace(layout, pipeline_parallel=1)
    share = dimensions.num_experts_per_tok / dimensions.n_routed_experts if dimensions.n_routed_experts else 1.0
    read = _read_bytes(weights_per_gpu(profile, flat), routed_experts_per_gpu(profile, flat), share, batch)
    return read / (OF_MEMORY * bandwidth * 1e9)


def _read_bytes(whole: float, experts: float, share: float, batch: int) -> float:
    """share: of the experts that one request asks for, each of the batch another one by chance."""
    return whole - experts * (1 - share) ** batch


def _reduces_s(dimensions: Dimensions, layout: Layout, batch: int, network: Network) -> float:
    """One all-reduce of the TP group: as it was measured, else between nodes where it spans them, and over PCIe where
    it lies in one."""
    if layout.tensor_parallel == 1:
        return 0.0
    measured_s = _between(network.measured(layout), batch)
    if measured_s is not None:
        return measured_s
    if not layout.inside_nodes:
        return _over_nodes(network.traffic, batch)
    size, ranks = batch * dimensions.hidden_size * BYTES_A_NUMBER, layout.tensor_parallel
    return INSIDE_S + size * 2 * (ranks - 1) / ranks / (INSIDE_GBS * 1e9)


def _over_nodes(traffic: Traffic, batch: int) -> float:
    """NCCL's model knows four sizes, TCP's fit any."""
    if traffic is Traffic.TCP:
        return all_reduce_s(traffic, batch)
    known = {size: all_reduce_s(traffic, size) for size in BATCHES}
    between_s = _between(known, batch)
    return known[BATCHES[-1]] if between_s is None else between_s


def _between(known: Mapping[int, float], batch: int) -> float | None:
    """Between two known sizes the time is taken as linear; None beyond them."""
    below = max((size for size in known if size <= batch), default=None)
    above = min((size for size in known if size >= batch), default=None)
    if below is None or above is None:
        return None
    if below == above:
        return known[below]
    return known[below] + (known[above] - known[below]) * (batch - below) / (above - below)


def _fitted(points: Mapping[int, float]) -> Line:
    """What is left of the measured steps, as a line through the batch sizes by least squares of relative errors."""
    known = {batch: _read_s(batch) + _LAYERS * REDUCES_A_LAYER * _over_nodes(Traffic.RAILS, batch) for batch in points}
    left = {batch: (batch / speed - known[batch]) / _LAYERS for batch, speed in points.items()}
    return _line(left, {batch: (speed / batch) ** 2 for batch, speed in points.items()})


def _line(values: Mapping[int, float], weights: Mapping[int, float]) -> Line:
    """Least squares."""
    return _through(list(values), list(values.values()), [weights[batch] for batch in values])


def _through(places: Sequence[float], values: Sequence[float], weights: Sequence[float]) -> Line:
    """The same of points of which several may be at one place."""
    total = sum(weights)
    x = sum(weight * place for weight, place in zip(weights, places, strict=True)) / total
    y = sum(weight * value for weight, value in zip(weights, values, strict=True)) / total
    over = sum(weight * (place - x) ** 2 for weight, place in zip(weights, places, strict=True))
    each = zip(weights, places, values, strict=True)
    slope = sum(weight * (place - x) * (value - y) for weight, place, value in each) / over
    return lambda batch: y - slope * x + slope * batch


def _read_s(batch: int) -> float:
    """Weights of a step of the articles' engine."""
    return _read_bytes(_WHOLE, _EXPERTS, _HIT, batch) / (OF_MEMORY * MEMORY_GBS[L40S.name] * 1e9)


def leave_one_out(traffic: Traffic = Traffic.RAILS) -> dict[int, float]:
    """By batch: how far `left_out` is off, a share of the measured speed."""
    points = WRONG_POINTS if traffic is Traffic.TCP else POINTS
    return {batch: abs(speed - points[batch]) / points[batch] for batch, speed in left_out(traffic).items()}


def left_out(traffic: Traffic = Traffic.RAILS) -> dict[int, float]:
    """By batch: tokens/s by the model when nothing of this number of requests, right or wrong, is in the fit.

    An all-reduce over TCP is then a line through those that the other points of wrong wiring tell of. That one request
    is faster than this line (a message below 16 KB) only its own point tells: its error is the largest.
    """

    def predicted(batch: int) -> float:
        rest = _fitted({one: value for one, value in POINTS.items() if one != batch})
        reduce_s = _wrong_line(rest, batch)(batch) if traffic is Traffic.TCP else _over_nodes(traffic, batch)
        return batch / (_read_s(batch) + _LAYERS * (REDUCES_A_LAYER * reduce_s + rest(batch)))

    return {batch: predicted(batch) for batch in (WRONG_POINTS if traffic is Traffic.TCP else POINTS)}


def _wrong_line(rest: Line, without: int) -> Line:
    """An all-reduce over TCP by batch, through the points of wrong wiring but this one and that of one request."""
    reduces = {
        one: (one / value - _read_s(one) - _LAYERS * rest(one)) / (_LAYERS * REDUCES_A_LAYER)
        for one, value in WRONG_POINTS.items()
        if one not in (without, 1)
    }
    return _line(reduces, dict.fromkeys(reduces, 1.0))


def words(found: Speeds) -> str:
    """'49 / 154 / 458 / 778 tokens/s at 1 / 4 / 32 / 128 requests: a step of 20 / 26 / 70 / 165 ms, of it weights 4 / 6
    / 23 / 34, all-reduces 6 / 8 / 19 / 35, the rest 10 / 12 / 28 / 96'."""
    parts = list(found.steps.values())
    of = {
        "weights": [each.weights_s for each in parts],
        "all-reduces": [each.reduces_s for each in parts],
        "the rest": [each.rest_s for each in parts],
    }
    return (
        f"{_each(found.tokens_per_s.values())} tokens/s at {' / '.join(map(str, found.steps))} requests: a step of"
        f" {_ms([each.seconds for each in parts])} ms,"
        f" of it {', '.join(f'{name} {_ms(values)}' for name, values in of.items())} ({found.basis})"
    )


def _ms(seconds: Iterable[float]) -> str:
    return _each(1000 * each for each in seconds)


def _each(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.0f}" for value in values)


def bytes_a_token(dimensions: Dimensions, layout: Layout, *, whole_reduces: int = REDUCES_A_LAYER) -> int:
    """What all nodes together send to each other per token.

    Two all-reduces a layer where a tensor parallel group spans nodes: in a ring of its ranks each link carries
    2 (n - 1) / n of the tensor, and as many links cross nodes as the group has nodes. Between stages on different nodes
    each rank sends its part of hidden states and residual once (parallel_state.py, send_tensor_dict).

    whole_reduces: those of a layer that go over the whole group where attention has groups of its own; what is left of
        the two goes over a token's own group
    """
    tensor = layout.tensor_parallel
    number = dimensions.hidden_size * BYTES_A_NUMBER
    whole = whole_reduces if layout.attention_data_parallel > 1 else REDUCES_A_LAYER
    total = whole * _reduce(tensor, layout.gpus_per_node)
    total += (REDUCES_A_LAYER - whole) * _reduce(tensor // layout.attention_data_parallel, layout.gpus_per_node)
    return int(total * (dimensions.num_hidden_layers * number)) + _crossings(layout) * HANDED_OVER * number


def _crossings(layout: Layout) -> int:
    """How often a token goes from a stage on one node to the next stage on another."""
    firsts = [stage * layout.tensor_parallel // layout.gpus_per_node for stage in range(layout.pipeline_parallel)]
    return sum(before != after for before, after in pairwise(firsts))


def _reduce(ranks: int, gpus_per_node: int) -> float:
    """Tensors that cross nodes in one all-reduce of neighbouring ranks."""
    spanned = -(-ranks // gpus_per_node)
    return spanned * 2 * (ranks - 1) / ranks if spanned > 1 else 0.0
