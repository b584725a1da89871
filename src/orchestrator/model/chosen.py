"""Looks up names that an operator types; unknown names give the same message everywhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec

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
    if names or len(gangs) < 2:
        return
    listed = ", ".join(gangs[:MOST_NAMES]) + (f" and {len(gangs) - MOST_NAMES} more" if gangs[MOST_NAMES:] else "")
    raise InputError(
        f"this would stop {len(gangs)} gangs, and none is named: {listed}",
        where="command line",
        fix=f"name those that are meant: `{command} {gangs[0]}`; or all of them: `{command} --all`",
    )


def the_one_gang(inventory: Inventory, names: Sequence[str], *, command: str) -> GangSpec:
    """The gang that is meant, for a command that takes one. Raises InputError where it is not just one."""
    chosen = chosen_gangs(inventory, names)
    if len(chosen) != 1:
        raise InputError(
            f"{command} takes one gang at a time, but {len(chosen)} were selected",
            where="command line",
            fix=f"select one: `l40s-deploy {command} {chosen[0].name if chosen else 'NAME'}`",
        )
    return chosen[0]


def named_gangs(gangs: Iterable[GangSpec], names: Sequence[str], *, where: str) -> tuple[GangSpec, ...]:
    """The same of these gangs. where: the option. Raises InputError for a name that none of them has."""
    found = tuple(gangs)
    known = dict.fromkeys(name for gang in found for name in (gang.name, gang.replica_of) if name)
    for name in names:
        if name not in known:
            raise no_such("gang", name, known, where=where)
    return tuple(gang for gang in found if not names or {gang.name, gang.replica_of} & set(names))


def chosen_nodes(nodes: Iterable[NodeSpec], names: Collection[str], where: str) -> dict[str, NodeSpec]:
    """The nodes of these names by name, in the inventory's order; all where none is named. where: the option."""
    return chosen({node.name: node for node in nodes}, names, where)


def chosen(known: Mapping[str, V], names: Collection[str], where: str) -> dict[str, V]:
    """The same of what is known of nodes, by name. Raises InputError for a name that is not there."""
    for name in names:
        if name not in known:
            raise no_such("node", name, known, where=where)
    return {name: one for name, one in known.items() if not names or name in names}


def no_such(kind: str, name: str, known: Iterable[str], *, where: str, lister: str = "") -> InputError:
    """Nothing of this kind has that name; what has one like it, and all names that there are.

    lister: the command that shows them, for more names than a message can hold
    """
    names = list(known)
    near = _near(name, names)
    listed = ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")
    if lister:
        rest = f"run `{lister}` for the list"
    else:
        rest = f"known: {listed}" if near else f"one of: {listed or 'there is none'}"
    fix = f"did you mean {' or '.join(near)}? {rest}" if near else rest
    return InputError(f"no {kind} is called {name!r}", where=where, fix=fix)


def _near(name: str, names: Sequence[str]) -> list[str]:
    """Names that begin like this one, else those that look like it, whatever their case."""
    by_folded = {known.casefold(): known for known in names}
    longer = [known for folded, known in by_folded.items() if name and folded.startswith(name.casefold())]
    return longer[:3] or [by_folded[folded] for folded in get_close_matches(name.casefold(), by_folded, n=3)]
