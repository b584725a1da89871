"""Advice where only the operator knows a name."""

from __future__ import annotations

import shlex


def start_with_a_model(gang: str, option: str = "") -> str:
    """How a gang is started whose model nobody knows: a sentence, since only the operator can name the model."""
    options = f"--gang {shlex.quote(gang)}" + (f", {option}" if option else "")
    return f"start it by `up` with {options} and a --model of those that `l40s-deploy models` lists"
