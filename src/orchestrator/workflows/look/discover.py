"""`discover`: every node's topology, from the nodes themselves or from saved snapshots. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.model.errors import DeployError
from orchestrator.model.inventory import Inventory
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Topology
from orchestrator.remote.fleet import Fleet
from orchestrator.topology.build import BuildOptions, build
from orchestrator.topology.network import Choice, tcp_interface
from orchestrator.workflows.look.look import look
from orchestrator.workflows.look.redacting import redacted
from orchestrator.workflows.look.saved import load_saved, save_snapshots

__all__ = ["Discovery", "discover_inventory", "discover_saved", "load_saved", "save_snapshots"]


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was seen, by node; nodes that did not answer are among the failures only.

    tcp: the TCP side of each node of a gang whose nodes share a network
    """

    snapshots: Mapping[str, Snapshot]
    topologies: Mapping[str, Topology]
    failures: Mapping[str, DeployError]
    tcp: Mapping[str, Choice]


def discover_inventory(
    inventory: Inventory, only: Sequence[str] = (), options: BuildOptions | None = None, *, redact: bool = False
) -> Discovery:
    """Look at every node of an inventory (or those named) over connections of its own.

    redact: everything that was seen is under pseudonyms, nodes' names too; failures keep theirs
    """
    nodes = [node for node in inventory.nodes if not only or node.name in only]
    with Fleet(nodes) as fleet:
        looked = look(fleet, nodes)
    seen = redacted(looked.values) if redact else looked.values
    gangs = [[seen[node.name].node for node in gang.nodes if node.name in seen] for gang in inventory.gangs]
    return _discovery(_by_name(seen), looked.failures, gangs, options)


def discover_saved(
    snapshots: Mapping[str, Snapshot], options: BuildOptions | None = None, *, redact: bool = False
) -> Discovery:
    """The same from snapshots; all of them are taken for one gang."""
    seen = _by_name(redacted(snapshots)) if redact else snapshots
    return _discovery(seen, {}, [list(seen)], options)


def _by_name(snapshots: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
    return {snapshot.node: snapshot for snapshot in snapshots.values()}


def _discovery(
    snapshots: Mapping[str, Snapshot],
    failures: Mapping[str, DeployError],
    gangs: Sequence[Sequence[str]],
    options: BuildOptions | None,
) -> Discovery:
    topologies = {name: build(snapshot, options) for name, snapshot in snapshots.items()}
    tcp: dict[str, Choice] = {}
    for gang in gangs:
        tcp |= tcp_interface({name: topologies[name] for name in gang if name in topologies})
    return Discovery(snapshots=snapshots, topologies=topologies, failures=failures, tcp=tcp)
