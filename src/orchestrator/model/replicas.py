"""One gang a node: a group of the inventory taken as replicas of a model that fits one node."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, Inventory


def replica_name(gang: str, rank: int) -> str:
    """GANG-0, GANG-1, ..., by the node's position in the inventory."""
    return f"{gang}-{rank}"


def replicas_of(gang: GangSpec) -> tuple[GangSpec, ...]:
    """A gang for each node, which leads it; a gang of one node is its own only replica and keeps its name."""
    if len(gang.nodes) == 1:
        return (gang,)
    names = [replica_name(gang.name, rank) for rank in range(len(gang.nodes))]
    return tuple(
        GangSpec(name=name, nodes=(replace(node, gang=name, node_rank=0),), replica_of=gang.name)
        for name, node in zip(names, gang.nodes, strict=True)
    )


def concerned(gang: GangSpec, names: Collection[str]) -> bool:
    """Whether these names mean the gang or a replica of it; no names mean every gang."""
    return not names or gang.name in names or any(one.name in names for one in replicas_of(gang))


def split(inventory: Inventory, gangs: Collection[str]) -> Inventory:
    """The inventory with these gangs as their replicas.

    Raises InputError where a replica would have the name of another gang.
    """
    parts = [replicas_of(gang) if gang.name in gangs else (gang,) for gang in inventory.gangs]
    found: dict[str, str] = {}
    for whole, its in zip(inventory.gangs, parts, strict=True):
        for one in its:
            if one.name in found:
                raise InputError(
                    f"the replicas of {found[one.name]} and of {whole.name} would both be called {one.name}",
                    where=f"{inventory.path}: gangs",
                    fix="rename one of these gangs",
                )
            found[one.name] = whole.name
    return replace(inventory, gangs=tuple(one for its in parts for one in its))
