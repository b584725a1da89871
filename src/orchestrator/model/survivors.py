"""A cluster without some of its nodes: the same gangs, ranked anew over those that are left. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from orchestrator.model.chosen import no_such
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, Inventory


def part(gang: GangSpec, names: Collection[str]) -> GangSpec:
    """The gang on these of its nodes alone, in their old order; the first of them leads."""
    left = [node for node in gang.nodes if node.name in names]
    return replace(gang, nodes=tuple(replace(node, node_rank=rank) for rank, node in enumerate(left)))


def without(inventory: Inventory, names: Sequence[str]) -> Inventory:
    """The inventory without these nodes. Raises InputError for a node that it does not have, and for a gang's last."""
    if not names:
        return inventory
    known = [node.name for node in inventory.nodes]
    for name in names:
        if name not in known:
            raise no_such("node", name, known, where=f"--without {name}")
    gangs = tuple(part(gang, {node.name for node in gang.nodes} - set(names)) for gang in inventory.gangs)
    for was, now in zip(inventory.gangs, gangs, strict=True):
        if not now.nodes:
            raise InputError(
                f"no node would be left in gang {was.name}",
                where=f"--without {' --without '.join(names)}",
                fix=f"choose the other gangs with --gang, or stop this one: l40s-deploy down --gang {was.name}",
            )
    return replace(inventory, gangs=gangs)
