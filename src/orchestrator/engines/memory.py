"""How an engine divides a GPU's memory: what it is asked for, and what it makes of that. Types, no arithmetic of a
version; that is in each dialect's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.protocol.planned import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAsked:
    """What decides how an engine divides a GPU.

    flags:   every flag of the command line but the layout's, by its first spelling, with its values
    gpu_mib: the GPU's memory in MiB, as NVML says it
    mla:     the model has multi-head latent attention
    vision:  layers and hidden size of a multimodal model's encoder
    """

    flags: Mapping[str, tuple[str, ...]]
    layout: Layout
    gpu_mib: int
    mla: bool
    vision: tuple[int, int] | None = None

    def number(self, flag: str) -> int | None:
        """A flag's only value as an integer; None where it is not given."""
        return int(self.text(flag)) if self.text(flag) else None

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

    fraction:    of the memory before the weights, for weights and KV cache; of_total: of the whole GPU
    explanation: how it was computed
    max_tokens:  most tokens that the KV cache is allowed, None for as many as fit
    kv_bytes:    of one element of the KV cache
    whole_embedding: with attention groups, every rank has the whole embedding, else a group's ranks share it
    chunk:       tokens that one attention group prefills at once, None where prefill is not divided
    window_share: tokens that a sliding-window layer keeps for each one that a full layer keeps
    draft:       a multi-token prediction layer is loaded as the draft, and has a KV cache of its own
    """

    fraction: float
    of_total: bool = False
    explanation: str
    max_tokens: int | None = None
    kv_bytes: int = 2
    whole_embedding: bool = False
    chunk: int | None = None
    window_share: float = 1.0
    draft: bool = False


def usual_requests(context: int, tokens: int) -> int:
    """Requests that every version of SGLang reserves space for by default: 512 full contexts' worth of the KV cache,
    but 2048 to 4096. context: tokens that one request may have; tokens: those of the KV cache"""
    return max(min(int(tokens / context * 512), 4096), 2048)


_CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
"""CONTEXT_LENGTH_KEYS of srt/utils/hf_transformers (0.4.4: srt/hf_transformers_utils.py)."""


def context_length(config: Mapping[str, Any]) -> int | None:
    """The context length that the engine reads out of a config.json (get_context_length); None where it has none."""
    text = config.get("text_config")
    config = text if isinstance(text, Mapping) else config
    scaling, factor = config.get("rope_scaling"), 1.0
    if isinstance(scaling, Mapping) and "original_max_position_embeddings" not in scaling:
        given = scaling.get("factor", 1)
        factor = given if isinstance(given, int | float) and scaling.get("rope_type") != "llama3" else 1.0
    found = next((value for key in _CONTEXT_KEYS if type(value := config.get(key)) is int and value > 0), None)
    return int(factor * found) if found else None


def element_bytes(kv_cache_dtype: str) -> int:
    """Of one element of the KV cache: 1 for FP8, else 2 (bf16, the engine's `auto`)."""
    return 1 if kv_cache_dtype.startswith("fp8") else 2
