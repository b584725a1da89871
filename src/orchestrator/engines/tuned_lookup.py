"""Names of tuned kernel configs: what an engine looks for, by the rules of its version (engines/).

The same in every version that was read: `get_config_file_name` of fused_moe.py (0.4.4) and fused_moe_triton_config.py
(0.5), `get_w8a8_block_fp8_configs` of fp8_kernel.py. Which shared experts are fused: `srt/models/deepseek_v2.py`.
"""

from __future__ import annotations

import re

from orchestrator.engines.tuned_files import Lookup

FUSING_ARCHITECTURES = ("DeepseekV3ForCausalLM",)
"""DeepseekV2ForCausalLM.fused_shared_experts_architecture and its subclasses that keep it (0.5.23)."""

_FUSED_EXPERTS = 256
"""The number of routed experts for which a plain checkpoint's one shared expert is fused (0.5.23)."""


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
    spaced: bool = True,
) -> str:
    """A fused MoE config's file name. dtype: '' for bf16; block: (0, 0) for none; channel: named so by the version;
    spaced: as in Lookup."""
    parts = [f"E={experts},N={inner},device_name={device}"]
    parts += [f"dtype={dtype}"] if dtype else []
    parts += [f"block_shape={_block(block, spaced)}"] if all(block) else []
    parts += ["per_channel_quant=True"] if channel else []
    return ",".join(parts) + ("_down" if down else "") + ".json"


def linear_name(rows: int, columns: int, device: str, block: tuple[int, int], *, spaced: bool = True) -> str:
    """A block-FP8 GEMM config's file name, of a weight with `rows` (N) and `columns` (K)."""
    return f"N={rows},K={columns},device_name={device},dtype=fp8_w8a8,block_shape={_block(block, spaced)}.json"


def _block(block: tuple[int, int], spaced: bool) -> str:
    return f"[{block[0]},{' ' * spaced}{block[1]}]"


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
