"""Where one engine version looks for tuned kernel configs, and how it names them. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """One version's rules.

    moe_parent, linear: folders below site-packages; MoE configs are in `moe_parent`/configs
    by_triton:          MoE configs are in a folder for each Triton version, searched newest first as a fallback
    channel_in_name:    `per_channel_quant=True` is part of a MoE config's name
    down:               the down projection has a config of its own; without one the up projection's serves
    fuses_shared:       a DeepSeek V3 model's shared expert becomes one more routed one (E=257)
    fuses_qkv_a:        q_a and kv_a are one matrix
    variable:           environment variable that replaces `moe_parent`, '' for none; `configs` below it must exist
    spaced:             a block is `[64, 64]` in a name, else `[64,64]`
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
    spaced: bool = True


def moe_root(lookup: Lookup, moe_directory: str = "") -> str:
    """The directory that holds MoE configs, or folders of them by Triton version."""
    parent = moe_directory.rstrip("/") if moe_directory and lookup.variable else lookup.moe_parent
    return f"{parent}/configs"
