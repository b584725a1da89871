"""How an engine divides a GPU's memory: what it is asked for, and what it makes of that. Types, no arithmetic of a
version; that is in each dialect's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAsked:
    """What decides how an engine divides a GPU.

    flags:   every flag of the command line, by its first spelling, with its values
    gpu_mib: the GPU's memory in MiB, as NVML says it
    mla:     the model has multi-head latent attention
    vision:  layers and hidden size of a multimodal model's encoder
    """

    flags: Mapping[str, tuple[str, ...]]
    tensor_parallel: int
    pipeline_parallel: int
    gpu_mib: int
    mla: bool
    vision: tuple[int, int] | None = None

    def number(self, flag: str) -> int | None:
        """A flag's only value as an integer; None where it is not given."""
        return int(self.flags[flag][0]) if self.flags.get(flag) else None

    def text(self, flag: str) -> str:
        """A flag's first value, '' where it is not given."""
        return self.flags[flag][0] if self.flags.get(flag) else ""

    @property
    def given(self) -> float | None:
        """--mem-fraction-static, which every version takes as it is."""
        value = self.text("--mem-fraction-static")
        return float(value) if value else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How one engine version divides a GPU.

    fraction:    of the memory before the weights, for weights and KV cache
    explanation: how it came to be, in words
    max_tokens:  most tokens that the KV cache is allowed, None for as many as fit
    kv_bytes:    of one element of the KV cache
    attention_parts: how many ways attention is cut by tensor parallelism (fewer under attention data parallelism)
    window_share: tokens that a sliding-window layer keeps for each one that a full layer keeps
    draft:       a multi-token prediction layer is loaded as the draft, and has a KV cache of its own
    """

    fraction: float
    explanation: str
    max_tokens: int | None = None
    kv_bytes: int = 2
    attention_parts: int = 1
    window_share: float = 1.0
    draft: bool = False


def element_bytes(kv_cache_dtype: str) -> int:
    """Of one element of the KV cache: 1 for FP8, else 2 (bf16, the engine's `auto`)."""
    return 1 if kv_cache_dtype.startswith("fp8") else 2
