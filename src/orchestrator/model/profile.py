"""What a checkpoint needs (model profile) and what serves it (stack)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.model.benchmark import Expected

Install = Literal["venv", "docker", "podman"]
"""What a stack runs in: a virtual environment, or a container that Docker or podman starts."""

Quantisation = Literal["none", "fp8-block", "fp8-channel", "int8-channel"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """One greedy generation that proves the engine answers, and what its text must hold (any of them)."""

    prompt: str
    max_tokens: int = 16
    expect_any: tuple[str, ...] = ()
    """Empty: any non-empty text will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """One checkpoint.

    directory: its name below the nodes' model root
    bytes:     size of all weight files; 0 where unknown
    shards:    number of weight files; 0 where unknown
    block:     FP8 block (n, k), (0, 0) for other quantisations
    tried:     dialects that it was tried with, the one to prefer first; () where nobody said
    measured:  what somebody has measured on L40S, as (stack, layout): sglang-0.4.4-l40s, TP32
    expected:  speeds that `bench` compares with
    flags:     engine flags that this checkpoint asks for, as (stack version prefix, flag, value or '')
    """

    name: str
    source: str
    directory: str
    architecture: str
    quantisation: Quantisation
    block: tuple[int, int] = (0, 0)
    dimensions: Dimensions
    bytes: int = 0
    shards: int = 0
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    expert_parallel: int | None = None
    tried: tuple[str, ...] = ()
    measured: tuple[tuple[str, str], ...] = ()
    expected: tuple[Expected, ...] = ()
    trust_remote_code: bool = False
    cuda_graph_max_bs: int | None = None
    torch_compile_max_bs: int | None = None
    flags: tuple[tuple[str, str, str], ...] = ()
    canary: Canary


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A pinned set of engine, kernels, NCCL and patches, and how it is launched.

    dialect:         which file of engines/ knows its versions: flags, log lines, endpoints, stop order
    python:          version of the interpreter in its virtual environment, as 3.11
    glibc_min, driver_min: oldest C library and NVIDIA driver it runs on, as 2.34 and 580.65.06; '' for no demand
    system_packages: Debian packages that the node needs beside the virtual environment
    install:         what it runs in; anything but venv needs an image
    image:           container image that holds it, by digest or id (NAME@sha256:..., sha256:...); '' for none
    contains:        what must be in it for this hardware, in words that a human can check
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
    evidence: tuple[tuple[str, str], ...] = ()
    device: Literal["cuda", "cpu"] = "cuda"
    launch: tuple[str, ...] = ("{venv}/bin/python3", "-m", "sglang.launch_server")
    """Command words before the flags; {venv} is the node's virtual environment."""
    env: tuple[tuple[str, str], ...] = ()
    flags: tuple[tuple[str, str], ...] = ()
    tested: str = ""
    """What was seen to work, in one honest sentence."""
