"""A network card whose link came up at a lower speed than both ends can do."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.link_training import change_link
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.machine import NodeMachine
from orchestrator.model.errors import InputError

FAULT = Fault(
    name="gen-downgraded",
    argument="[DEV]",
    summary="the link of DEV's card (default: the first on a rail) comes up at PCIe generation 3",
    shows="current_link_speed and configuration space of card and port",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """Not for GPUs: an idle one is at generation 1 anyway."""
    words.at_most(asked, 1)
    if asked and asked[0].isdigit():
        raise InputError(
            f"found {asked[0]!r}, wanted a network card: an idle GPU always shows a low generation",
            where="ARG",
            fix="l40s-deploy lab break NODE width-x8 G",
        )
    return change_link(node, asked, lambda port: replace(port, trained_gen=3))
