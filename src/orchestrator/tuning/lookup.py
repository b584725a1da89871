"""Where each engine version looks for tuned kernel configs, and by which names. Rules as data, one entry a version.

Sources, by the wheels' own files:

- 0.4.4.post1: `srt/layers/moe/fused_moe_triton/fused_moe.py` (get_config_file_name, get_moe_configs),
  `srt/layers/quantization/fp8_kernel.py` (get_w8a8_block_fp8_configs), `srt/models/deepseek_v2.py`.
- 0.5.23: `srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py` (the same names),
  `kernels/ops/gemm/fp8_kernel.py` (get_w8a8_block_fp8_configs), `srt/models/deepseek_v2.py`
  (DeepseekV2ForCausalLM.shared_experts_fusion_disable_reason, fused_qkv_a_proj_with_mqa).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.model.errors import InputError

MOE_DIRECTORY_VARIABLE = "SGLANG_MOE_CONFIG_DIR"
"""Replaces the built-in directory of MoE configs (0.5.23); `configs` below it must exist, or the engine fails."""

FUSING_ARCHITECTURES = ("DeepseekV3ForCausalLM",)
"""DeepseekV2ForCausalLM.fused_shared_experts_architecture and its subclasses that keep it (0.5.23)."""

_FUSED_EXPERTS = 256
"""The number of routed experts for which a plain checkpoint's one shared expert is fused (0.5.23)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """One version's rules.

    moe_parent, linear: folders below site-packages; MoE configs lie in `moe_parent`/configs
    by_triton:          MoE configs lie in a folder for each Triton version, searched newest first as a fallback
    channel_in_name:    `per_channel_quant=True` is part of a MoE config's name
    down:               a config of its own is looked for the down projection, the up projection's serves else
    fuses_shared:       a DeepSeek V3 model's shared expert becomes one more routed one (E=257)
    fuses_qkv_a:        q_a and kv_a are one matrix
    variable:           environment variable that replaces `moe_parent`, '' for none
    skips_compiled:     under torch.compile no tuned linear config is looked up
    """

    moe_parent: str
    linear: str
    by_triton: bool
    channel_in_name: bool
    down: bool
    fuses_shared: bool
    fuses_qkv_a: bool
    variable: str
    skips_compiled: bool


LOOKUPS: Mapping[str, Lookup] = {
    "sglang-0.4.4": Lookup(
        moe_parent="sglang/srt/layers/moe/fused_moe_triton",
        linear="sglang/srt/layers/quantization/configs",
        by_triton=False,
        channel_in_name=False,
        down=False,
        fuses_shared=False,
        fuses_qkv_a=False,
        variable="",
        skips_compiled=False,
    ),
    "sglang-0.5": Lookup(
        moe_parent="sglang/srt/layers/moe/moe_runner/triton_utils",
        linear="sglang/kernels/ops/gemm/configs",
        by_triton=True,
        channel_in_name=True,
        down=True,
        fuses_shared=True,
        fuses_qkv_a=True,
        variable=MOE_DIRECTORY_VARIABLE,
        skips_compiled=True,
    ),
}


def lookup_of(dialect: str) -> Lookup:
    """The rules of an engine adapter's versions. Raises InputError for an adapter that has none."""
    try:
        return LOOKUPS[dialect]
    except KeyError:
        raise InputError(
            f"where {dialect} looks for tuned configs is not known",
            where="stack: dialect",
            fix="one of: " + ", ".join(LOOKUPS),
        ) from None


def device_name(gpu: str) -> str:
    """A GPU's name as file names have it: torch.cuda.get_device_name with underscores (NVIDIA_L40S)."""
    return gpu.strip().replace(" ", "_")


def moe_name(
    experts: int,
    inner: int,
    device: str,
    dtype: str,
    block: tuple[int, int],
    *,
    channel: bool = False,
    down: bool = False,
) -> str:
    """A fused MoE config's file name. dtype: '' for bf16; block: (0, 0) for none; channel: named so by the version."""
    parts = [f"E={experts},N={inner},device_name={device}"]
    parts += [f"dtype={dtype}"] if dtype else []
    parts += [f"block_shape=[{block[0]}, {block[1]}]"] if all(block) else []
    parts += ["per_channel_quant=True"] if channel else []
    return ",".join(parts) + ("_down" if down else "") + ".json"


def linear_name(rows: int, columns: int, device: str, block: tuple[int, int]) -> str:
    """A block-FP8 GEMM config's file name, of a weight with `rows` (N) and `columns` (K)."""
    return f"N={rows},K={columns},device_name={device},dtype=fp8_w8a8,block_shape=[{block[0]}, {block[1]}].json"


def triton_folder(version: str) -> str:
    """`triton_3_8_0` for Triton 3.8.0."""
    return f"triton_{version.replace('.', '_')}"


def triton_version(folder: str) -> tuple[int, ...] | None:
    """(3, 8, 0) of `triton_3_8_0`; None for what is no such folder."""
    if not re.fullmatch(r"triton_\d+(?:_\d+)*", folder):
        return None
    return tuple(int(number) for number in folder.removeprefix("triton_").split("_"))


def fuses_shared_expert(lookup: Lookup, architecture: str, *, routed: int, shared: int, expert_parallel: int) -> bool:
    """Whether the shared expert is one of the routed ones on an NVIDIA GPU of compute capability 8.0 or newer."""
    return (
        lookup.fuses_shared
        and architecture in FUSING_ARCHITECTURES
        and routed == _FUSED_EXPERTS
        and shared == 1
        and expert_parallel == 1
    )
