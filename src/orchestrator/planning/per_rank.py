"""Which models SGLang's per-rank weight files (`--load-format presharded`) do not keep as they were."""

from __future__ import annotations

from orchestrator.model.profile import ModelProfile

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
        " (their absorbed matrices come back in another memory layout)"
    )
