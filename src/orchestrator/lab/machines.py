"""Which machine each node of a lab is."""

from __future__ import annotations

from orchestrator.lab.blueprint import Blueprint
from orchestrator.lab.hardware import realise, wiring
from orchestrator.lab.hardware.machine import NodeMachine


def machine_of(blueprint: Blueprint, index: int) -> NodeMachine:
    """The machine that this node was built as."""
    machine = wiring.parse(blueprint.wiring, blueprint.wiring_name, index)
    name = blueprint.nodes[index]
    return realise.realise(machine, lab=blueprint.name, node=name, index=index, address=blueprint.address(index))
