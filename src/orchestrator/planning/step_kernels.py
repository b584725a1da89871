"""A decode step from the kernels of a step, seen on another GPU: no measured speed of the L40S is in it.

A rank of DeepSeek-V3 cut so that a few H100 have the shapes and weights of 1 of 32 was profiled with 4 and with 128
requests (`SEEN`). Of each kind of kernels, what does not grow between them is launches and latency: the same on any
GPU. What grows is bound by memory or by arithmetic, and takes longer by the ratio of the data sheets. All-reduces are
not taken from there: they are `roofline.network_s`, of the network that is asked about.

`error_of` is the check: nothing of the speeds that it is compared with is in this model. With 128 requests it is too
fast by a third; why is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from orchestrator.model.gpu_facts import facts_of
from orchestrator.model.profile import Dimensions, ModelProfile
from orchestrator.planning.memory import routed_experts_per_gpu, weights_per_gpu
from orchestrator.planning.roofline import MEMORY_GBS, OF_MEMORY, RDMA, Network, network_s
from orchestrator.protocol.planned import Layout

SEEN_GBS, SEEN_TFLOPS = 3350.0, 989.0
"""Of the H100 SXM: memory, and dense bf16 products; NVIDIA's data sheet."""
TFLOPS = {"L40S": 362.0}
"""Dense bf16 products; NVIDIA's data sheet. FP8's ratio to the H100 is the same."""
SEEN_AT = (4, 128)
SEEN_TOKENS = 300
"""Of each request while it was profiled: 200 of the prompt, and half of the answer's 200; the log does not say."""
GAP_S = 1.1e-3
"""Between two steps, on the host: a step by the engine's log less the busy time of its rank that waited for none."""


class Grows(Enum):
    """What a kernel's work grows with: requests of a step, experts that they ask for, tokens of their KV cache."""

    REQUESTS = "requests"
    EXPERTS = "experts"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Kind:
    """Kernels of one kind. few_s, many_s: of a step with so many requests as `SEEN_AT`, on the rank that waited for
    none; memory: what grows is bound by memory, else by arithmetic"""

    name: str
    few_s: float
    many_s: float
    grows: Grows
    memory: bool


SEEN = (
    Kind("quantised products", 5.05e-3, 5.14e-3, Grows.REQUESTS, memory=False),
    Kind("bf16 products", 0.37e-3, 0.85e-3, Grows.REQUESTS, memory=False),
    Kind("experts", 4.52e-3, 13.71e-3, Grows.EXPERTS, memory=True),
    Kind("attention", 2.09e-3, 6.47e-3, Grows.TOKENS, memory=False),
    Kind("quantisation", 0.42e-3, 0.59e-3, Grows.REQUESTS, memory=True),
    Kind("other", 1.73e-3, 1.96e-3, Grows.REQUESTS, memory=True),
)
"""Milliseconds of 'one node, graphs to 128' of 2026-11-28 on two H100, SGLang 0.5.17, FP8 of 64x64 blocks
(tests/slice/figures.json). Experts: what grows moves weights at 58 % of the H100's memory bandwidth, so it is bound by
memory. Attention moves the KV cache at 18 %: it is not."""
SEEN_LAYOUT = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8)
_SEEN = Dimensions(
    hidden_size=7168, intermediate_size=18432, moe_intermediate_size=2048, num_hidden_layers=61,
    num_attention_heads=128, num_key_value_heads=128, vocab_size=129280, n_routed_experts=256, n_shared_experts=1,
    num_experts_per_tok=8, first_k_dense_replace=3, q_lora_rank=1536, kv_lora_rank=512,
)  # fmt: skip
_SHAPES = (
    "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers", "num_attention_heads",
    "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "first_k_dense_replace", "kv_lora_rank",
)  # fmt: skip
_FULL_EXPERTS = 19.05 * (1 << 30)
"""Bytes of the routed experts on the rank that was profiled."""
POINTS = {1: (482, 49.02), 4: (1437, 153.98), 32: (8923, 457.66), 128: (86816, 777.92)}
"""Tokens in the KV cache, and tokens/s, by requests, in the log of DeepSeek-R1 INT8 at TP32 on 4 x 8 L40S by SGLang
0.4.4, wiring right (yangwenbo.com/articles/update-bench-dsr1-int8-on-l40s.html)."""


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of one decode step: kernels by kind, all-reduces and hand-overs, what passes on the host."""

    kernels: Mapping[str, float]
    network_s: float
    gap_s: float

    @property
    def seconds(self) -> float:
        """The whole step."""
        return sum(self.kernels.values()) + self.network_s + self.gap_s


def known(profile: ModelProfile, layout: Layout, gpu: str) -> bool:
    """Whether the profiled shapes say something of this case: the same model on a GPU that was looked up, without
    expert or attention parallelism, by ranks that are no narrower than those that were seen."""
    facts = facts_of(gpu)
    same = all(getattr(profile.dimensions, name) == getattr(_SEEN, name) for name in _SHAPES)
    plain = layout.expert_parallel == layout.attention_data_parallel == 1
    return same and plain and (facts.name if facts else gpu) in TFLOPS


def step(
    profile: ModelProfile,
    layout: Layout,
    requests: int,
    *,
    gpu: str,
    tokens: float | None = None,
    network: Network = RDMA,
) -> Step:
    """Of a case that is `known`. tokens: in the KV cache of all requests, by default as many as were profiled

    With pipeline stages a token goes through all of them, in a micro-batch of its own: what is latency is the same
    layers, what grows is the micro-batch's, and each stage's ranks are as much wider as they are fewer.
    """
    facts = facts_of(gpu)
    name = facts.name if facts else gpu
    stages = layout.pipeline_parallel
    batch = math.ceil(requests / stages)
    held = (requests * SEEN_TOKENS if tokens is None else tokens) / stages
    flat = replace(layout, pipeline_parallel=1)
    width = SEEN_LAYOUT.tensor_parallel / layout.tensor_parallel
    experts = routed_experts_per_gpu(profile, flat)
    slower = {True: SEEN_GBS / MEMORY_GBS[name], False: SEEN_TFLOPS / TFLOPS[name]}
    wider = {Grows.REQUESTS: width, Grows.EXPERTS: experts / _FULL_EXPERTS, Grows.TOKENS: 1.0}
    work = _work(profile.dimensions, batch, held)
    kernels = {kind.name: _kernel_s(kind, work[kind.grows], slower[kind.memory] * wider[kind.grows]) for kind in SEEN}
    dense = (weights_per_gpu(profile, flat) - experts) / (OF_MEMORY * MEMORY_GBS[name] * 1e9)
    kernels["quantised products"] = max(kernels["quantised products"], dense - kernels["bf16 products"])
    return Step(kernels, network_s(profile.dimensions, layout, batch, network), GAP_S * stages)


def _work(dimensions: Dimensions, batch: float, tokens: float) -> Mapping[Grows, float]:
    """Experts: those that any request asks for, each request others by chance."""
    share = dimensions.num_experts_per_tok / dimensions.n_routed_experts
    return {
        Grows.REQUESTS: batch,
        Grows.EXPERTS: dimensions.n_routed_experts * (1 - (1 - share) ** batch),
        Grows.TOKENS: tokens,
    }


def _kernel_s(kind: Kind, work: float, slower: float) -> float:
    """What stays, and what grows from nothing on."""
    few, many = (_work(_SEEN, batch, batch * SEEN_TOKENS)[kind.grows] for batch in SEEN_AT)
    each = (kind.many_s - kind.few_s) / (many - few)
    return kind.few_s - each * few + each * work * slower


def articles_speed(profile: ModelProfile, requests: int) -> float:
    """Tokens/s of what the articles measured with so many requests, one of POINTS; no speed of theirs is in it.

    profile: of their INT8 checkpoint
    """
    tokens, _ = POINTS[requests]
    return requests / step(profile, SEEN_LAYOUT, requests, gpu="L40S", tokens=tokens).seconds


def error_of(profile: ModelProfile, requests: int) -> float:
    """How far `articles_speed` is above what they measured (a share; below it: negative)."""
    return articles_speed(profile, requests) / POINTS[requests][1] - 1
