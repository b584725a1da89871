"""The machine of each node of a lab."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from l40s_lab.hardware import realise, recording, wiring
from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.life.blueprint import Blueprint
from orchestrator.model.snapshot import Snapshot, snapshot_from_json

RECORDED = "recorded"
"""Directory of a lab with the snapshots that its nodes imitate."""


def machine_of(blueprint: Blueprint, index: int) -> NodeMachine:
    """The machine that this node was built as."""
    if blueprint.recorded:
        return _recorded(blueprint, index)
    machine = wiring.parse(blueprint.wiring, blueprint.wiring_name, index)
    name = blueprint.nodes[index]
    return realise.realise(machine, lab=blueprint.name, node=name, index=index, address=blueprint.address(index))


def _recorded(blueprint: Blueprint, index: int) -> NodeMachine:
    file = blueprint.recorded[index]
    return recording.realise(
        _snapshot(blueprint.path / RECORDED / file),
        blueprint.cabling,
        lab=blueprint.name,
        node=blueprint.nodes[index],
        index=index,
        address=blueprint.address(index),
        copy=file in blueprint.recorded[:index],
    )


@lru_cache(maxsize=8)
def _snapshot(path: Path) -> Snapshot:
    return snapshot_from_json(json.loads(path.read_bytes()))
