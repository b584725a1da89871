"""What a benchmark of the engine requests, and what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Wiring = Literal["right", "wrong"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a serving benchmark.

    more:    a higher value is better
    decides: it counts for the overall verdict; tails of a few hundred requests are judged but do not decide
    """

    name: str
    title: str
    unit: str
    more: bool = False
    decides: bool = False


FIGURES = (
    Figure("duration_s", "duration", "s", decides=True),
    Figure("requests_s", "requests", "1/s", more=True, decides=True),
    Figure("output_tok_s", "output", "tok/s", more=True, decides=True),
    Figure("total_tok_s", "input and output", "tok/s", more=True, decides=True),
    Figure("e2e_mean_ms", "whole request, mean", "ms", decides=True),
    Figure("e2e_median_ms", "whole request, median", "ms", decides=True),
    Figure("ttft_mean_ms", "first token, mean", "ms", decides=True),
    Figure("ttft_median_ms", "first token, median", "ms", decides=True),
    Figure("ttft_p99_ms", "first token, P99", "ms"),
    Figure("itl_mean_ms", "between tokens, mean", "ms", decides=True),
    Figure("itl_median_ms", "between tokens, median", "ms", decides=True),
    Figure("itl_p95_ms", "between tokens, P95", "ms"),
    Figure("itl_p99_ms", "between tokens, P99", "ms"),
    Figure("itl_max_ms", "between tokens, longest", "ms"),
    Figure("decode_tok_s", "decoding, all at once", "tok/s", more=True),
    Figure("decode_log_tok_s", "decoding, by the leader's log", "tok/s", more=True, decides=True),
)
"""What the articles' tables have, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of one run. input, output: tokens of each; rate: requests sent a second; concurrency: at once, at most.

    The defaults are the articles' (bench_serving, 200 in, 200 out).
    """

    input: int = 200
    output: int = 200
    prompts: int = 256
    rate: int = 128
    concurrency: int = 128

    def __str__(self) -> str:
        return (
            f"{self.prompts} requests, {self.input} tokens in, {self.output} out, "
            f"{self.rate} a second, {self.concurrency} at once"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedSpeeds:
    """Measured speeds. wiring: a run is compared with `right`; `wrong` shows what a bad one looks like.

    gpu: NVML's name; figures: by name (FIGURES); dataset: whose text the prompts were, '' for any
    """

    name: str
    source: str
    stack: str
    layout: str
    gpu: str
    wiring: Wiring = "right"
    load: Load
    figures: tuple[tuple[str, float], ...]
    dataset: str = ""


BYTES_A_NUMBER = 2
"""Of an activation between ranks: bfloat16, whatever the weights are."""


class Between(Enum):
    """What a measurement is between, as operators read it."""

    ALL = "all ranks"
    NODE = "the ranks of each node"
    SWITCH = "the GPUs below each switch"
    HALVES = "each half of the nodes"
    SAME_SWITCH = "two GPUs below one switch"
    ACROSS_SOCKETS = "two GPUs across the sockets"
    SAME_NODE = "two GPUs of one node"
    NODES = "the same GPU of two nodes"
    OTHER_HALF = "GPUs in different halves of two nodes"
    RAIL = "the same RDMA port of two nodes, host memory"
    OTHER_RAIL = "different RDMA ports of two nodes, host memory"
