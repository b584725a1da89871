"""What a checkpoint needs (model profile), what serves it (stack), and what a benchmark requests and is judged by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from orchestrator.model.engine_versions import holds_for
from orchestrator.protocol.staging import Canary

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
    Figure("accept_length", "tokens a step of each request", "", more=True),
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


Install = Literal["venv", "docker", "podman"]
"""What a stack runs in: a virtual environment, or a container that Docker or podman starts."""

Quantisation = Literal["none", "fp8-block", "fp8-channel", "int8-channel", "int4-group", "mxfp4"]
"""How weights are stored. int4-group: 4 bits and a bf16 scale a group; mxfp4: 4 bits and one byte of scale per 32."""

Part = Literal["attention", "dense", "shared", "experts"]
"""What a model is made of beside embeddings and head, which are always bf16: attention, the dense layers' feed-forward,
shared experts, routed experts."""

Attention = Literal["mla", "gqa", "dsa", "hybrid"]
"""mla: one latent for all heads; gqa: key-value heads; dsa: DeepSeek's sparse attention over a latent; hybrid: layers
of several kinds (sliding window or linear state beside full attention)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """The numbers that decide which layouts work, named as config.json names them."""

    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int = 0
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    n_routed_experts: int = 0
    n_shared_experts: int = 0
    num_experts_per_tok: int = 0
    first_k_dense_replace: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    num_nextn_predict_layers: int = 0
    head_dim: int = 0
    """Of models without MLA; 0 means hidden_size / num_attention_heads."""

    @property
    def head(self) -> int:
        """Size of one attention head of a model without MLA."""
        return self.head_dim or self.hidden_size // max(1, self.num_attention_heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRefusal:
    """Why some stacks can't serve a model on some GPUs.

    versions: the engine versions that it holds for, as `holds_for` reads them, '' for all
    below:    the compute capability from which it works, as 90 for 9.0; 0 where no GPU is known to work
    source:   where that was read or seen
    """

    versions: str
    below: int = 0
    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """A vision encoder, a copy of which is on every rank. bytes: its weights with the projector, as bf16."""

    layers: int
    hidden_size: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedLayout:
    """A layout that the profile's author names, for `plan --layout NAME`.

    attention_data_parallel: groups of ranks, each with its own requests
    micro_batch: most requests in a pipeline stage at once, None for the plan's own figure
    flags, env:  what this layout asks for beside the profile's, as (name, value)
    versions:    the engine versions that can, as `holds_for` reads them, '' for all
    note:        what is known about it, in one honest sentence
    """

    name: str
    tensor_parallel: int
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    attention_data_parallel: int = 1
    micro_batch: int | None = None
    flags: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    versions: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaGraphs:
    """What of decoding is captured as CUDA graphs, and compiled; a larger batch runs without.

    versions: the engine versions that it holds for, as `holds_for` reads them, '' for all
    sizes:    batch sizes that are captured, in order; () where the engine chooses them
    max_bs:   the largest batch that is captured; None for the engine's own, or the last of `sizes`
    torch_compile_max_bs: the largest batch that torch.compile compiles, 0 for none; None where nobody says
    """

    versions: str = ""
    sizes: tuple[int, ...] = ()
    max_bs: int | None = None
    torch_compile_max_bs: int | None = None

    def over(self, general: CudaGraphs) -> CudaGraphs:
        """These options, and where they say nothing those of another one."""
        captured = self if self.sizes or self.max_bs is not None else general
        compiled = self if self.torch_compile_max_bs is not None else general
        return CudaGraphs(
            sizes=captured.sizes, max_bs=captured.max_bs, torch_compile_max_bs=compiled.torch_compile_max_bs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """One checkpoint.

    directory: its name below the nodes' model root
    bytes:     size of all weight files; 0 where unknown
    shards:    number of weight files; 0 where unknown
    block:     FP8 block (n, k), (0, 0) for other quantisations
    group:     weights that share one scale, of int4-group and mxfp4
    parts:     parts that are stored in another way than `quantisation` says
    attention: kind of attention, which decides the KV cache's size
    window_layers: those with sliding-window attention, where the other layers have full attention
    micro_batch: most requests in a pipeline stage at once, None for the plan's own figure
    tried:     dialects that it was tried with, the one to prefer first; () where nobody said
    measured:  what somebody has measured on L40S, as (stack, layout): sglang-0.4.4-l40s, TP32
    expected:  speeds that `bench` compares with
    cuda_graph_max_bs, torch_compile_max_bs: as `graphs` has them, for every version
    graphs:    what is captured and compiled, by engine version; the longest prefix counts most
    flags:     engine flags that this checkpoint asks for, as (stack version prefix, flag, value or '')
    env:       environment variables that it asks for, as (stack version prefix, name, value)
    refused:   stacks and GPUs that can't serve it
    layouts:   layouts with a name
    vision:    of multimodal models
    """

    name: str
    source: str
    directory: str
    architecture: str
    quantisation: Quantisation
    block: tuple[int, int] = (0, 0)
    group: int = 0
    parts: tuple[tuple[Part, Quantisation], ...] = ()
    attention: Attention
    window_layers: int = 0
    dimensions: Dimensions
    bytes: int = 0
    shards: int = 0
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    expert_parallel: int | None = None
    attention_data_parallel: int | None = None
    micro_batch: int | None = None
    tried: tuple[str, ...] = ()
    measured: tuple[tuple[str, str], ...] = ()
    expected: tuple[ExpectedSpeeds, ...] = ()
    trust_remote_code: bool = False
    cuda_graph_max_bs: int | None = None
    torch_compile_max_bs: int | None = None
    graphs: tuple[CudaGraphs, ...] = ()
    flags: tuple[tuple[str, str, str], ...] = ()
    env: tuple[tuple[str, str, str], ...] = ()
    refused: tuple[ModelRefusal, ...] = ()
    layouts: tuple[NamedLayout, ...] = ()
    vision: Vision | None = None
    canary: Canary

    def graphs_of(self, version: str, *, compiles: bool) -> CudaGraphs:
        """What an engine version captures and compiles. compiles: a wish for every version to compile is one for this
        version too; otherwise only what names this version is."""
        of_all = CudaGraphs(max_bs=self.cuda_graph_max_bs, torch_compile_max_bs=self.torch_compile_max_bs)
        its = sorted(
            (graphs for graphs in self.graphs if holds_for(graphs.versions, version)),
            key=lambda graphs: len(graphs.versions),
        )
        merged = CudaGraphs()
        for layer in (of_all, *its):
            wanted = layer if layer.versions or compiles else replace(layer, torch_compile_max_bs=None)
            merged = wanted.over(merged)
        return merged

    def stored(self, part: Part) -> Quantisation:
        """How a part's weights are stored."""
        return dict(self.parts).get(part, self.quantisation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """A published vulnerability of something in a stack.

    id: CVE, or the project's own number; published: its date; package: which, with the version in the stack; what: what
    an attacker can do; when: what must be the case for that; source: where it was read
    """

    id: str
    published: str
    package: str
    what: str
    when: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A pinned set of engine, kernels, NCCL and patches, and how it is launched.

    dialect:         which file of engines/ knows its versions: flags, log lines, endpoints, stop order
    python:          version of the interpreter in its virtual environment, as 3.11
    glibc_min, driver_min: oldest C library and NVIDIA driver it runs on, as 2.34 and 580.65.06; '' for no demand
    system_packages: Debian packages that the node needs beside the virtual environment
    install:         what it runs in; anything but venv needs an image
    image:           container image that holds it, by digest or id (NAME@sha256:..., sha256:...); '' for none
    contains:        what must be in it for this hardware, so that a reader can check it
    bring:           (name==version, where it can be had) of packages that no index has
    evidence:        (file below the engine's root, text that must stand in it) of what can be read of that
    """

    name: str
    source: str
    dialect: str
    engine_version: str
    nccl_version: str = ""
    torch_version: str = ""
    triton_version: str = ""
    python: str = "3.10"
    glibc_min: str = ""
    driver_min: str = ""
    system_packages: tuple[str, ...] = ()
    install: Install = "venv"
    image: str = ""
    contains: tuple[str, ...] = ()
    bring: tuple[tuple[str, str], ...] = ()
    evidence: tuple[tuple[str, str], ...] = ()
    device: Literal["cuda", "cpu"] = "cuda"
    launch: tuple[str, ...] = ()
    """Command words before the flags, () for the engine's own; {venv} is the node's virtual environment."""
    env: tuple[tuple[str, str], ...] = ()
    flags: tuple[tuple[str, str], ...] = ()
    tested: str = ""
    """What was seen to work, in one honest sentence."""
    advisories: tuple[Advisory, ...] = ()
    looked_up: str = ""
    """When the advisories were looked up, as 2026-11-22; '' if never."""
