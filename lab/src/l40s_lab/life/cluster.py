"""The nodes of a lab: a number of nodes in a number of gangs, those of an inventory, or those of recorded machines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from l40s_lab.hardware.wiring import plain
from l40s_lab.life.addressing import MAX_NODES
from l40s_lab.node.files import PLAYS
from orchestrator.loading.inventory import read_cluster
from orchestrator.model.inventory import Inventory
from orchestrator.protocol.errors import InputError

_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")
_KEPT = (
    "l40s_accept", "l40s_agent_port", "l40s_api_key_file", "l40s_args", "l40s_dist_init_port", "l40s_env",
    "l40s_gpus", "l40s_http_port", "l40s_lease", "l40s_nccl_port", "l40s_role", "l40s_stack", "l40s_transport",
)  # fmt: skip
_OF_THE_HARDWARE = ("l40s_gid_index", "l40s_ib_hca", "l40s_socket_ifname")
"""They name devices, so in a lab they only make sense if it shows the very same machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes in gangs.

    gangs:     gang -> its nodes, in node-rank order
    gpus:      node -> number of GPUs; other nodes have as many as their machine
    variables: node -> variables for the lab's inventory
    left_out:  variables of the original inventory that make no sense in a lab
    router:    its host in the original inventory, which a lab does not have; '' for none
    """

    gangs: Mapping[str, tuple[str, ...]]
    gpus: Mapping[str, int] = field(default_factory=dict)
    variables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    router: str = ""

    def without(self, variable: str) -> Cluster:
        """The same without one variable on all nodes."""
        kept = {
            node: {name: value for name, value in own.items() if name != variable}
            for node, own in self.variables.items()
        }
        return replace(self, variables=kept)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, gang by gang."""
        return tuple(node for gang in self.gangs.values() for node in gang)


def equal_gangs(nodes: Iterable[str], gangs: int) -> Cluster:
    """Nodes divided into gangs of equal size. Raises InputError if that is impossible."""
    names = tuple(nodes)
    if not 1 <= len(names) <= MAX_NODES:
        raise InputError(f"found {len(names)}, wanted 1 to {MAX_NODES}", where="--nodes", fix="--nodes 4")
    if not 1 <= gangs <= len(names) or len(names) % gangs:
        raise InputError(
            f"{len(names)} nodes cannot be divided into {gangs} equal gangs",
            where="--gangs",
            fix=f"use --gangs {gangs} --nodes {gangs * 4}" if gangs > 0 else "--gangs 1",
        )
    size = len(names) // gangs
    return Cluster(gangs={f"gang{gang}": names[gang * size : (gang + 1) * size] for gang in range(gangs)})


def like(path: str, *, same_hardware: bool) -> Cluster:
    """The gangs of an inventory, with those of its variables that make sense in a lab.

    same_hardware: the lab shows recordings of these very machines
    Raises InputError for an invalid inventory, and for a node name that can't be a host name.
    """
    inventory, known = read_cluster(path)
    _check_names(inventory)
    kept = (*_KEPT, *(_OF_THE_HARDWARE if same_hardware else ()))
    variables: dict[str, dict[str, Any]] = {}
    left_out: set[str] = set()
    for node in inventory.nodes:
        ours = {name: one.value for name, one in known[node.name].items() if name.startswith("l40s_")}
        if ours.get("l40s_stack", "") not in ("", *PLAYS):
            left_out.add(f"l40s_stack {ours.pop('l40s_stack')}")
        left_out |= ours.keys() - {*kept}
        variables[node.name] = {name: plain(value) for name, value in ours.items() if name in kept}
    return Cluster(
        gangs={gang.name: tuple(node.name for node in gang.machines) for gang in inventory.gangs},
        gpus={node.name: node.gpus for node in inventory.nodes},
        variables=variables,
        left_out=tuple(sorted(left_out)),
        router=inventory.router.node.name if inventory.router is not None else "",
    )


def _check_names(inventory: Inventory) -> None:
    names = [node.name for node in inventory.nodes]
    if len(names) > MAX_NODES:
        raise InputError(
            f"has {len(names)} nodes; a lab can have {MAX_NODES} at most", where=inventory.path, fix="--nodes"
        )
    for name in names:
        check_node_name(name, inventory.path)


def check_node_name(name: str, where: str) -> None:
    """A node's name becomes its host name. Raises InputError."""
    if not _HOST_NAME.fullmatch(name):
        raise InputError(
            f"found the node name {name!r}; wanted letters, digits, dots, dashes, at most 63, as a host name has",
            where=where,
            fix="rename it in a copy of the file",
        )
