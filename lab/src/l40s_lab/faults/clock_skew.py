"""A node whose clock is wrong."""

from __future__ import annotations

import re

from l40s_lab.faults import preloaded, words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.node.living import LivingNode
from orchestrator.model.errors import InputError

FAULT = Fault(
    name="clock-skew",
    argument="[SECONDS]",
    summary="the clock is SECONDS s ahead (default: 90; -90 is behind) for every program that starts from now on",
    shows="the time of day in new sessions and programs; running ones keep theirs",
    levels=(1, 2),
)


def strike(node: LivingNode, asked: Words) -> Undo:
    """The kernel's clock is shared with this machine, so only programs get a different time."""
    words.at_most(asked, 1)
    text = asked[0] if asked else "90"
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
        raise InputError(
            f"found {text!r}, wanted seconds",
            where="ARG",
            fix="for example: `l40s-deploy lab break NODE clock-skew 90`",
        )
    preloaded.load(node, "clock", "clock", f"{int(text)}\n")
    return {}


def heal(node: LivingNode, _: Undo) -> None:
    """New programs see the right time again."""
    preloaded.unload(node, "clock", "clock")
