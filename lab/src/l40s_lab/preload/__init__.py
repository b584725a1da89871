"""Small libraries that every program of a node preloads (/etc/ld.so.preload), for what no namespace can change."""

from __future__ import annotations

from pathlib import Path

from l40s_lab.nvml.library import compiled

_HERE = Path(__file__).parent


def build(name: str) -> Path:
    """NAME.c of this package, compiled; raises NodeError if there is no compiler."""
    return compiled(_HERE / f"{name}.c", f"lib{name}.so")
