"""Which gangs and nodes are meant: names that an operator types, with the same message everywhere for unknown ones; and
a cluster without some of its nodes, with new node ranks for the remaining ones. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TypeVar

from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec
from orchestrator.protocol.errors import InputError

V = TypeVar("V")
MOST_NAMES = 32
"""A message names so many; a larger cluster's names are in its inventory."""


def chosen_gangs(inventory: Inventory, names: Sequence[str]) -> tuple[GangSpec, ...]:
    """The gangs with these names in the inventory's order; all of them where none is named. The name of a gang that
    is split into replicas means all of these."""
    return named_gangs(inventory.gangs, names, where=inventory.path)


def refuse_unnamed(inventory: Inventory, names: Sequence[str], command: str) -> None:
    """Several gangs are stopped where they are named, or all of them are asked for; never because nothing was said.

    command: as typed. Raises InputError.
    """
    gangs = [gang.name for gang in inventory.gangs]
    if not names and len(gangs) > 1:
        raise InputError(
            f"this would stop {len(gangs)} gangs, and none is named: {_listed(gangs)}",
            where="command line",
            fix=f"name those that are meant: `{command} {gangs[0]}`; or all of them: `{command} --all`",
        )


def the_one_gang(inventory: Inventory, names: Sequence[str], *, command: str, option: str = "") -> GangSpec:
    """The gang that is meant, for a command that takes one. Raises InputError where it is not just one.

    option: stands before the gang's name, where that is not taken by its position
    """
    chosen = chosen_gangs(inventory, names)
    if len(chosen) != 1:
        word = f"{option} {chosen[0].name}".strip()
        raise InputError(
            f"{command} takes one gang at a time, but {len(chosen)} were selected",
            where="command line",
            fix=f"name one of them alone, such as `{word}`",
        )
    return chosen[0]


def named_gangs(gangs: Iterable[GangSpec], names: Sequence[str], *, where: str) -> tuple[GangSpec, ...]:
    """The same of these gangs. where: the option. Raises InputError for a name that none of them has."""
    offered = tuple(gangs)
    known = dict.fromkeys(name for gang in offered for name in (gang.name, gang.replica_of) if name)
    for name in names:
        if name not in known:
            raise no_such("gang", name, known, where=where)
    return tuple(gang for gang in offered if not names or {gang.name, gang.replica_of} & set(names))


def chosen_nodes(nodes: Iterable[NodeSpec], names: Collection[str], where: str) -> dict[str, NodeSpec]:
    """The nodes of these names by name, in the inventory's order; all where none is named. where: the option."""
    return chosen({node.name: node for node in nodes}, names, where)


def chosen(known: Mapping[str, V], names: Collection[str], where: str) -> dict[str, V]:
    """The same of what is known of nodes, by name. Raises InputError for a name that is not there."""
    for name in names:
        if name not in known:
            raise no_such("node", name, known, where=where)
    return {name: facts for name, facts in known.items() if not names or name in names}


def no_such(kind: str, name: str, known: Iterable[str], *, where: str, lister: str = "") -> InputError:
    """Nothing of this kind has that name; what has one like it, and all names that there are.

    lister: the command that shows them, for more names than a message can hold
    """
    names = list(known)
    near = _near(name, names)
    rest = f"known: {_listed(names)}" if near else f"one of: {_listed(names) or 'there is none'}"
    rest = f"run `{lister}` for the list" if lister else rest
    fix = f"did you mean {' or '.join(near)}? {rest}" if near else rest
    return InputError(f"no {kind} is called {name!r}", where=where, fix=fix)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _near(name: str, names: Sequence[str]) -> list[str]:
    """Names that begin like this one, else those that look like it, whatever their case."""
    by_folded = {known.casefold(): known for known in names}
    longer = [known for folded, known in by_folded.items() if name and folded.startswith(name.casefold())]
    return longer[:3] or [by_folded[folded] for folded in get_close_matches(name.casefold(), by_folded, n=3)]


def part(gang: GangSpec, names: Collection[str]) -> GangSpec:
    """The gang on these of its nodes and spares alone, in their old order; the first of them leads."""
    return _ranked(gang, [node for node in gang.machines if node.name in names], spares=())


def in_order(gang: GangSpec, names: Sequence[str]) -> GangSpec:
    """The gang on these of its nodes and spares, in just this order."""
    known = {node.name: node for node in gang.machines}
    return _ranked(gang, [known[name] for name in names], spares=())


def same_nodes(first: GangSpec, second: GangSpec) -> bool:
    """Whether these are the same nodes, in whatever order."""
    return {node.name for node in first.nodes} == {node.name for node in second.nodes}


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
    nodes = []
    for node in gang.nodes:
        if node.name not in left_out:
            nodes.append(node)
        elif waiting:
            nodes.append(waiting.pop(0))
    ranked = _ranked(gang, nodes, spares=tuple(waiting))
    return replace(ranked, short=gang.short or len(nodes) < len([seat for seat in gang.nodes if not seat.spare]))


def without(inventory: Inventory, names: Sequence[str]) -> Inventory:
    """The inventory without these nodes, and with spares in their places. Raises InputError for a node that it does
    not have, and for a gang's last."""
    if not names:
        return inventory
    for name in names:
        chosen_nodes(inventory.nodes, [name], f"--without {name}")
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


def called(inventory: Inventory, gang: str, name: str) -> Inventory:
    """The inventory with another name for this gang; a gang that has that name gets its one."""
    now = {gang: name, name: gang}

    def renamed(spec: GangSpec) -> GangSpec:
        new = now.get(spec.name, spec.name)
        nodes, spares = (tuple(replace(node, gang=new) for node in part) for part in (spec.nodes, spec.spares))
        return replace(spec, name=new, nodes=nodes, spares=spares)

    return replace(inventory, gangs=tuple(map(renamed, inventory.gangs)))


def replicas_of(gang: GangSpec) -> tuple[GangSpec, ...]:
    """A gang for each node, which leads it: GANG-0, GANG-1, ..., by the node's position in the inventory; a gang of one
    node is its own only replica and keeps its name."""
    if len(gang.nodes) == 1:
        return (gang,)
    named = [(f"{gang.name}-{rank}", node) for rank, node in enumerate(gang.nodes)]
    return tuple(
        GangSpec(name=name, nodes=(replace(node, gang=name, node_rank=0),), replica_of=gang.name)
        for name, node in named
    )


def concerned(gang: GangSpec, names: Collection[str]) -> bool:
    """Whether these names mean the gang or a replica of it; no names mean every gang."""
    return not names or gang.name in names or any(replica.name in names for replica in replicas_of(gang))


def split(inventory: Inventory, gangs: Collection[str]) -> Inventory:
    """The inventory with these gangs as their replicas.

    Raises InputError where a replica would have the name of another gang.
    """
    parts = [replicas_of(gang) if gang.name in gangs else (gang,) for gang in inventory.gangs]
    wholes: dict[str, str] = {}
    for whole, its in zip(inventory.gangs, parts, strict=True):
        for replica in its:
            if replica.name in wholes:
                raise InputError(
                    f"the replicas of {wholes[replica.name]} and of {whole.name} would both be called {replica.name}",
                    where=f"{inventory.path}: gangs",
                    fix="rename one of these gangs",
                )
            wholes[replica.name] = whole.name
    return replace(inventory, gangs=tuple(part for its in parts for part in its))
