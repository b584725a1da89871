"""A cluster without some of its nodes: the same gangs, with new node ranks for the remaining nodes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from orchestrator.model.chosen import no_such
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec


def part(gang: GangSpec, names: Collection[str]) -> GangSpec:
    """The gang on these of its nodes and spares alone, in their old order; the first of them leads."""
    return _ranked(gang, [node for node in gang.machines if node.name in names], spares=())


def in_order(gang: GangSpec, names: Sequence[str]) -> GangSpec:
    """The gang on these of its nodes and spares, in just this order."""
    known = {node.name: node for node in gang.machines}
    return _ranked(gang, [known[name] for name in names], spares=())


def as_written(gang: GangSpec) -> GangSpec:
    """The gang as its inventory has it: no spare is in a node's place."""
    nodes = [node for node in gang.machines if not node.spare]
    return _ranked(gang, nodes, spares=tuple(node for node in gang.machines if node.spare))


def all_machines(gang: GangSpec) -> GangSpec:
    """The gang with all of its spares after its nodes."""
    return with_spares(gang, [node.name for node in gang.spares])


def with_spares(gang: GangSpec, names: Collection[str]) -> GangSpec:
    """The gang with these of its spares after its nodes."""
    taken = [node for node in gang.spares if node.name in names]
    return _ranked(gang, [*gang.nodes, *taken], spares=tuple(node for node in gang.spares if node.name not in names))


def staffed(gang: GangSpec, left_out: Collection[str]) -> GangSpec:
    """The gang without these nodes: a spare takes the place, and so the node rank, of each as long as there are
    spares; the places that are left over close up."""
    waiting = [node for node in gang.spares if node.name not in left_out]
    nodes: list[NodeSpec] = []
    for node in gang.nodes:
        if node.name not in left_out:
            nodes.append(node)
        elif waiting:
            nodes.append(waiting.pop(0))
    found = _ranked(gang, nodes, spares=tuple(waiting))
    return replace(found, short=gang.short or len(nodes) < len([one for one in gang.nodes if not one.spare]))


def without(inventory: Inventory, names: Sequence[str]) -> Inventory:
    """The inventory without these nodes, and with spares in their places. Raises InputError for a node that it does
    not have, and for a gang's last."""
    if not names:
        return inventory
    known = [node.name for node in inventory.nodes]
    for name in names:
        if name not in known:
            raise no_such("node", name, known, where=f"--without {name}")
    gangs = tuple(staffed(gang, names) for gang in inventory.gangs)
    for was, now in zip(inventory.gangs, gangs, strict=True):
        if not now.nodes:
            raise InputError(
                f"no node would be left in gang {was.name}",
                where=f"--without {' --without '.join(names)}",
                fix=f"choose the other gangs with --gang, or stop this one: l40s-deploy down {was.name}",
            )
    return replace(inventory, gangs=gangs)


def _ranked(gang: GangSpec, nodes: Sequence[NodeSpec], *, spares: tuple[NodeSpec, ...]) -> GangSpec:
    ranked = tuple(replace(node, node_rank=rank) for rank, node in enumerate(nodes))
    return replace(gang, nodes=ranked, spares=spares)


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
