"""Small libraries that every program of a node loads first (/etc/ld.so.preload), where no namespace can help."""

from __future__ import annotations

from pathlib import Path

from orchestrator.lab.nvml.library import compiled

_HERE = Path(__file__).parent


def build(name: str) -> Path:
    """The compiled form of NAME.c of this package; raises NodeError where there is no compiler."""
    return compiled(_HERE / f"{name}.c", f"lib{name}.so")
