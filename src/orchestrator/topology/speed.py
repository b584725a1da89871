"""What a wiring costs: decode speed predicted from how fast the gang's all-reduce is.

The model is T(B) = T_c(B) + 122 t_AR(S) with S = B x 7168 x 2 bytes: DeepSeek-R1/V3's 61 layers with two
all-reduces each. It is calibrated on the four points that the articles measured on 4 x 8 L40S at TP32
(200 tokens in, channel INT8), wiring right and wiring wrong; between them it predicts order of magnitude
and ranking, no more. Sources: yangwenbo.com/articles/update-bench-dsr1-int8-on-l40s.html for the points,
NCCL src/graph/tuning.cc (ncclTopoTuneModel) for the latency of a rightly wired all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from orchestrator.model.words import counted
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.severity import Severity

BATCHES = (1, 4, 32, 128)
RANKS = 32
PRICED_ON = "DeepSeek-R1 INT8 by SGLang 0.4.4, TP32 on 4 x 8 L40S"
"""The only case that prices were measured on; every price ends with it."""
_PRICED_LAYOUT, _PRICED_MODEL = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8), "DeepSeek-R1-Channel-INT8"
HANDED_OVER = (
    "each tensor parallel group is inside a node; only pipeline stages communicate between nodes, at almost no cost"
    " (calculated, not measured)"
)
"""What a slow network between nodes costs a layout whose all-reduces stay inside them."""
_HIDDEN_BYTES = 7168 * 2
_ALL_REDUCES = 122
_MEASURED_RIGHT = {1: 49.02, 4: 153.98, 32: 457.66, 128: 777.92}
_MEASURED_WRONG = {1: 26.00, 4: 42.30, 32: 260.73, 128: 565.73}
_ALL_REDUCE_RIGHT_S = {1: 48e-6, 4: 63e-6, 32: 158e-6, 128: 283e-6}


class Traffic(Enum):
    """How the gang's all-reduce travels, with the bus bandwidth in GB/s that bounds it.

    19 and 11 GB/s were measured by the articles (two GPUs of different NUMA domains over GPUDirect RDMA and
    over PCIe); the others follow from PCIe arithmetic; TCP is fitted to the articles' wrong points.
    """

    RAILS = ("RDMA rails under the GPUs' switches", 19.0)
    CARD_ON_ROOT_PORT = ("RDMA, with a card away from its GPUs", 11.0)
    HALF_THE_PORTS = ("RDMA over one of a card's two ports", 11.5)
    HOST_STAGED = ("RDMA through host memory, no GPUDirect", 11.0)
    NARROW_LINK = ("RDMA over a PCIe link at half width or half speed", 6.2)
    THROUGH_ROOT = ("ACS sends peer traffic up through the root port", 4.2)
    TCP = ("TCP sockets", 4.0)

    def __init__(self, words: str, busbw_gbs: float) -> None:
        self.words = words
        self.busbw_gbs = busbw_gbs


@dataclass(frozen=True, slots=True)
class Speed:
    """Decode tokens/s of all requests together, with a spread in per cent and where the figure comes from."""

    batch: int
    tokens_per_s: float
    spread_percent: int
    basis: str


def all_reduce_s(traffic: Traffic, batch: int) -> float:
    """Seconds of one all-reduce of `batch` hidden states over 32 ranks."""
    size = batch * _HIDDEN_BYTES
    if traffic is Traffic.TCP:
        return 0.196e-3 if size <= 16384 else 0.55e-3 + size / 5.7e9
    slower = 1 / (traffic.busbw_gbs * 1e9) - 1 / (Traffic.RAILS.busbw_gbs * 1e9)
    return _ALL_REDUCE_RIGHT_S[batch] + size * 2 * (RANKS - 1) / RANKS * slower


def decode_speed(traffic: Traffic, batch: int) -> Speed:
    """Predicted decode speed of the reference gang at one of BATCHES."""
    if traffic in (Traffic.RAILS, Traffic.TCP):
        measured = _MEASURED_RIGHT if traffic is Traffic.RAILS else _MEASURED_WRONG
        return Speed(batch, measured[batch], 0, "measured by the articles")
    compute = batch / _MEASURED_RIGHT[batch] - _ALL_REDUCES * _ALL_REDUCE_RIGHT_S[batch]
    step = compute + _ALL_REDUCES * all_reduce_s(traffic, batch)
    return Speed(batch, batch / step, 30, "calibrated on the articles' four points")


def tcp_severity(layout: Layout | None) -> Severity:
    """How grave TCP between nodes is: slow where tensor parallelism crosses nodes, a note where only pipeline stages
    hand over. None: no layout is known, and tensor parallelism over all nodes is assumed."""
    return Severity.NOTE if layout is not None and layout.inside_nodes else Severity.SLOW


def limits(layout: Layout | None, model: str = "", gpus: Iterable[str] = ()) -> str:
    """What of a case prices were not measured for: 'not measured at PP4 x TP8, nor on H100'; '' for nothing.

    model: a profile's name, '' where nobody knows; gpus: those that are not the L40S
    """
    words = [f"at {layout}"] if layout is not None and layout != _PRICED_LAYOUT else []
    if layout is not None and words == [f"at {_PRICED_LAYOUT}"]:
        words = [f"at {layout} on {layout.nnodes} x {layout.gpus_per_node} GPUs"]
    words += [f"with {model}"] if model not in ("", _PRICED_MODEL) else []
    words += [f"on {' and '.join(gpus)}"] if (gpus := tuple(gpus)) else []
    return f"not measured {', nor '.join(words)}" if words else ""


def price_of(traffic: Traffic, layout: Layout | None, model: str) -> str:
    """`price`, and what of this very case it was not measured for."""
    cost = price(traffic, layout)
    unmeasured = limits(layout, model) if PRICED_ON in cost else ""
    return f"{cost}; {unmeasured}" if unmeasured else cost


def price(traffic: Traffic, layout: Layout | None = None) -> str:
    """What a wiring costs, in words: 'at 4 requests: about 42 instead of 154 tokens/s'; small losses are left out.

    layout: what runs, where it is known: TCP between nodes costs one that stays inside them next to nothing
    """
    if traffic is Traffic.TCP and layout is not None and layout.inside_nodes:
        return HANDED_OVER
    speeds = [(batch, decode_speed(traffic, batch).tokens_per_s, _MEASURED_RIGHT[batch]) for batch in BATCHES]
    parts = [
        f"at {counted(batch, 'request')}: about {now:.0f} instead of {right:.0f} tokens/s"
        for batch, now, right in speeds
        if now < right * 0.97
    ]
    first = decode_speed(traffic, BATCHES[0])
    sure = f"{first.basis}, ±{first.spread_percent} %" if first.spread_percent else first.basis
    if not parts:
        return f"less than 3 % of decode speed by the model ({sure}: {PRICED_ON})"
    return f"decoding {', '.join(parts)} ({sure}: {PRICED_ON})"
