"""Which models SGLang's per-rank weight files (`--load-format presharded`) do not keep as they were."""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestrator.model.profile import ModelProfile

FORMAT, _EXTRA = "--load-format", "--model-loader-extra-config"

_DEQUANTISED = (128, 128)
"""Blocks whose absorbed matrices are kept in bfloat16, for kernels that take any layout."""


def loses_layout(profile: ModelProfile) -> str:
    """Why a GPU would answer wrongly from such files, '' where it would not.

    MLA's w_kc and w_vc stay FP8 unless the blocks are 128x128, transposed in memory (post_load_weights in
    deepseek_weight_loader.py, sglang 0.5.17 and 0.5.23). The files hold them contiguous (loader.py,
    PreshardedModelLoader), and bmm_fp8 takes what it gets for transposed. docs/decisions/0010 has
    the figures.
    """
    stored = profile.stored("attention")
    if not profile.dimensions.kv_lora_rank or stored not in ("fp8-block", "fp8-channel"):
        return ""
    if stored == "fp8-block" and tuple(profile.block) == _DEQUANTISED:
        return ""
    kept = f"blocks of {profile.block[0]}x{profile.block[1]}" if stored == "fp8-block" else "FP8 per channel"
    return (
        f"{profile.name} has MLA in {kept}: SGLang would answer wrongly from per-rank weight files, without a message"
        " (their absorbed matrices are read back in another memory layout)"
    )


def folder(argv: Sequence[str]) -> str:
    """Where an engine's command line has it read per-rank files, whoever asked for it; '' where it does not."""
    return _folder(argv) if _after(FORMAT, argv) == "presharded" else ""


def flags(argv: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The flags that say so, with their values."""
    return ((FORMAT, _after(FORMAT, argv)), (_EXTRA, _after(_EXTRA, argv))) if folder(argv) else ()


def without(argv: Sequence[str]) -> tuple[str, ...]:
    """The command line for the checkpoint itself."""
    kept = list(argv)
    for flag, _ in flags(argv):
        place = kept.index(flag)
        del kept[place : place + 2]
    return tuple(kept)


def _after(flag: str, argv: Sequence[str]) -> str:
    return argv[argv.index(flag) + 1] if flag in argv[:-1] else ""


def _folder(argv: Sequence[str]) -> str:
    try:
        found = json.loads(_after(_EXTRA, argv) or "{}")
    except ValueError:
        return ""
    return str(found.get("presharded_path", "")) if isinstance(found, dict) else ""
