"""The tuned kernel file that the MoE layers would look for, and the log line if it is missing."""

from __future__ import annotations

import sys
from pathlib import Path

from .log import Log
from .model import Model
from .settings import Settings

_DEVICE = "NVIDIA_L40S"


def tell(settings: Settings, model: Model, log: Log) -> None:
    """Log one line per rank, as fused_moe_triton_config.py (0.5) and fused_moe.py (0.4.4) do.

    $SGLANG_MOE_CONFIG_DIR is searched as in 0.5. Neither version has a built-in file for 64x64 blocks or for these
    expert counts on an L40S.
    """
    name = config_name(settings, model)
    if name is None:
        return
    new = settings.version.watches_ranks
    own = settings.environment.get("SGLANG_MOE_CONFIG_DIR", "")
    found = next(iter(sorted(Path(own).glob(f"configs/triton_*/{_escaped(name)}"))), None) if own and new else None
    if found is not None:
        log.line(f"Using MoE kernel config from {found}.")
        return
    packages = Path(sys.prefix) / "lib/python3/site-packages/sglang/srt/layers/moe"
    if new:
        place = (Path(own) if own else packages / "moe_runner/triton_utils") / "configs/triton_3_5_1" / name
        log.line(
            f"Using default MoE kernel config. Performance might be sub-optimal! Config file not found at {place}, "
            "you can create them with "
            "https://github.com/sgl-project/sglang/tree/main/benchmark/kernels/fused_moe_triton"
        )
        return
    place = packages / "fused_moe_triton/configs" / name
    log.line(f"Using default MoE config. Performance might be sub-optimal! Config file not found at {place}")


def config_name(settings: Settings, model: Model) -> str | None:
    """The file name; None for a model without experts. 0.5 counts DeepSeek's shared expert with the routed ones."""
    experts = model.routed_experts
    if not experts:
        return None
    fused = (
        settings.version.watches_ranks
        and settings.ep_size == 1
        and "disable_shared_experts_fusion" not in settings.given
    )
    if fused and model.architecture.startswith("Deepseek"):
        experts += model.number("n_shared_experts")
    block = (model.config.get("quantization_config") or {}).get("weight_block_size")
    words = [
        f"E={experts // settings.ep_size}",
        f"N={model.number('moe_intermediate_size') // max(settings.tp_size // settings.ep_size, 1)}",
        f"device_name={_DEVICE}",
    ]
    if settings.given.get("quantization") == "w8a8_int8":
        words.append("dtype=int8_w8a8")
    elif model.quantization:
        words.append("dtype=fp8_w8a8")
    if block:
        words.append(f"block_shape={list(block)}")
    return ",".join(words) + ".json"


def _escaped(name: str) -> str:
    return name.replace("[", "[[]")
