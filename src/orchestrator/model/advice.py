"""Advice that more than one step gives: how a gang is started whose model nobody knows, where nodes belong."""

from __future__ import annotations

import shlex


def start_with_a_model(gang: str, option: str = "") -> str:
    """How a gang is started whose model nobody knows: a sentence, since only the operator can name the model."""
    options = f"--gang {shlex.quote(gang)}" + (f", {option}" if option else "")
    return f"start it by `up` with {options} and a --model of those that `l40s-deploy models` lists"


def put_back(nodes: str, gang: str) -> str:
    """What helps where the inventory gives nodes of a gang that runs to another one. nodes: their names, as a text"""
    return (
        f"put {nodes} back into {gang} in the inventory; to move it, first run `l40s-deploy down {gang}` by the"
        " inventory that it was started with"
    )
