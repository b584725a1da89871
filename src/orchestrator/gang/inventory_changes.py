"""What differs between an inventory as it was read before and as it is now, in words: gangs, nodes, and the variables
of nodes by the names that an operator writes. Values are left out: some are secrets. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Set
from typing import Any

from orchestrator.model.chosen import as_written, split
from orchestrator.model.inventory import GangPorts, GangSpec, Inventory, NodeSpec, Overrides, Reach, Recipient
from orchestrator.model.per_node import collected

_ANSIBLES = {
    "connection": "ansible_connection",
    "host": "ansible_host",
    "port": "ansible_port",
    "user": "ansible_user",
    "key_file": "ansible_ssh_private_key_file",
    "known_hosts_file": "ansible_ssh_common_args",
    "ssh_options": "ansible_ssh_common_args",
    "become": "ansible_become",
    "become_user": "ansible_become_user",
    "python": "ansible_python_interpreter",
}
_OURS = {"lease_s": "l40s_lease", "gpu_names": "l40s_gpus"}
_TOLD_APART = ("name", "gang", "node_rank", "spare")
"""Fields of a node that are said as changes of its gang."""


def variables_of(node: NodeSpec) -> Mapping[str, list[Any]]:
    """What the inventory says of a node, by the names of its variables."""
    return collected(_said_of(node))


def _said_of(node: NodeSpec) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if isinstance(value, Reach | GangPorts | Overrides):
            inner = (field.name for field in dataclasses.fields(value))
            yield from ((_variable(value, name), getattr(value, name)) for name in inner)
        elif field.name not in _TOLD_APART:
            yield _OURS.get(field.name, f"l40s_{field.name}"), value


def _variable(part: Reach | GangPorts | Overrides, field: str) -> str:
    if isinstance(part, Reach):
        return _ANSIBLES[field]
    return f"l40s_{field}_port" if isinstance(part, GangPorts) else f"l40s_{field}"


def as_it_stood(now: Inventory, before: Inventory) -> Inventory:
    """The inventory that was read now with the gangs as replicas that were some before, and no spare in a node's place.

    Raises InputError where a replica would have another gang's name.
    """
    replicas = {gang.replica_of for gang in before.gangs if gang.replica_of}
    written = dataclasses.replace(now, gangs=tuple(map(as_written, now.gangs)))
    return split(written, replicas)


def changes_of(before: Inventory, now: Inventory) -> tuple[str, ...]:
    """A sentence for each; () where they mean the same."""
    return (*_gangs(before, now), *_variables(before, now), *_router(before, now), *_receivers(before, now))


def _gangs(before: Inventory, now: Inventory) -> Iterator[str]:
    was, new = ({gang.name: gang for gang in inventory.gangs} for inventory in (before, now))
    gone, added = _only_in(was, new), _only_in(new, was)
    for nodes, name in gone.items():
        yield f"gang {name} is {f'called {added[nodes]} now' if nodes in added else 'gone'} ({nodes})"
    yield from (f"gang {name} is new ({nodes})" for nodes, name in added.items() if nodes not in gone)
    yield from (words for name, gang in was.items() if name in new for words in _nodes(gang, new[name]))


def _only_in(some: Mapping[str, GangSpec], others: Mapping[str, GangSpec]) -> dict[str, str]:
    """Names of gangs by those of their nodes."""
    return {_names(gang): name for name, gang in some.items() if name not in others}


def _names(gang: GangSpec) -> str:
    return ", ".join(node.name for node in gang.machines)


def _nodes(before: GangSpec, now: GangSpec) -> Iterator[str]:
    was, new = ({node.name: node for node in gang.machines} for gang in (before, now))
    for name, node in new.items():
        if name not in was:
            yield f"{now.name}: {name} is new{', a spare' if node.spare else ''}"
        elif node.spare is not was[name].spare:
            yield f"{now.name}: {name} is {'a spare now' if node.spare else 'no spare any more'}"
    yield from (f"{now.name}: {name} is gone" for name in was if name not in new)
    yield from _other_order(before, now, was.keys() & new.keys())


def _other_order(before: GangSpec, now: GangSpec, both: Set[str]) -> Iterator[str]:
    """Of the nodes that are in both."""
    was, new = ([node.name for node in gang.nodes if node.name in both] for gang in (before, now))
    if was != new and set(was) == set(new):
        yield f"{now.name}: the order of its nodes is {', '.join(new)} now"


def _variables(before: Inventory, now: Inventory) -> Iterator[str]:
    """A sentence for each variable, with all nodes where it differs."""
    was = {node.name: variables_of(node) for node in before.nodes}
    differing = collected(
        (variable, node.name)
        for node in now.nodes
        for variable in _differing(was.get(node.name, {}), variables_of(node))
    )
    yield from (f"{variable} of {', '.join(names)}" for variable, names in differing.items())


def _differing(was: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [name for name, value in new.items() if name in was and was[name] != value]


def _router(before: Inventory, now: Inventory) -> Iterator[str]:
    was, new = before.router, now.router
    if was is None or new is None:
        if new is not None:
            yield f"the router is new ({new.node.name})"
        if was is not None:
            yield f"the router is gone ({was.node.name})"
        return
    if was.node.name != new.node.name:
        yield f"the router is on {new.node.name} now, no longer on {was.node.name}"
    fields = [field.name for field in dataclasses.fields(new) if field.name != "node"]
    names = [_of_router(name) for name in fields if getattr(was, name) != getattr(new, name)]
    names += _differing(variables_of(was.node), variables_of(new.node))
    yield from (f"{name} of the router" for name in names)


def _of_router(field: str) -> str:
    return "l40s_api_key_file" if field == "gang_key_file" else f"l40s_router_{field}"


def _receivers(before: Inventory, now: Inventory) -> Iterator[str]:
    if before.notify != now.notify:
        yield f"l40s_notify: {_kinds(now.notify) or 'nobody'} is told from now on"


def _kinds(recipients: tuple[Recipient, ...]) -> str:
    return ", ".join(recipient.kind.value for recipient in recipients)
