"""The doctor on an inventory: every node and the paths between them, with what the gangs run at that moment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from orchestrator.doctor.rules.support.cluster import Cluster, gangs_of
from orchestrator.doctor.steps.doctor import Examination, check_accept, cluster_of, diagnose
from orchestrator.doctor.steps.trials import try_ways
from orchestrator.gang.paths import layout_of
from orchestrator.gang.steps.operation import Operation, connected
from orchestrator.gang.steps.status.reports import see
from orchestrator.gang.view import GangView
from orchestrator.loading.profiles import reported_profile
from orchestrator.model.chosen import chosen_nodes
from orchestrator.model.inventory import Inventory, NodeSpec
from orchestrator.planning import page_cache
from orchestrator.planning.memory import checkpoint_bytes
from orchestrator.planning.steps.look import look
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout
from orchestrator.remote.deadline import ahead
from orchestrator.remote.fleet import Fleet
from orchestrator.topology.build import build


def examine_inventory(
    inventory: Inventory, *, accept: Collection[str] = (), nodes: Collection[str] = ()
) -> Examination:
    """`examined_nodes` over connections of its own."""
    with connected(inventory) as operation:
        return examined_nodes(operation, accept=accept, nodes=nodes)


def examined_nodes(operation: Operation, *, accept: Collection[str] = (), nodes: Collection[str] = ()) -> Examination:
    """The nodes of these names, or all of the inventory.

    Raises InputError for a node that is not there and an unknown word in `accept`.
    """
    inventory = operation.inventory
    chosen = chosen_nodes(inventory.nodes, nodes, f"{inventory.path}: --node")
    gangs = {node.gang for node in chosen.values()}
    specs = {node.name: node for node in inventory.nodes if node.gang in gangs}
    check_accept(accept, {node.name for node in inventory.nodes}, (page_cache.ID,))
    return examine(operation.fleet, specs, accept=accept, only=chosen)


def examine(
    fleet: Fleet, specs: Mapping[str, NodeSpec], *, accept: Iterable[str] = (), only: Collection[str] = ()
) -> Examination:
    """All nodes at once. A node that does not answer is among the failures, the others are examined.

    only: examine these; the others of their gangs are asked for what runs, since that is the gang's
    """
    running = ahead(lambda: see(fleet, gangs_of(specs.values())))
    looked = look(fleet, [node for node in specs.values() if not only or node.name in only])
    topologies = {name: build(snapshot) for name, snapshot in looked.values.items()}
    views = running.result()
    models = {view.name: view.model for view in views if view.running}
    cluster = replace(cluster_of(specs.values(), topologies, looked.values), layouts=layouts_of(views), models=models)
    cluster = replace(cluster, trials=try_ways(fleet, cluster))
    caches = caches_of(cluster, views)
    more = [finding for fits in caches.values() for finding in page_cache.findings(fits)]
    return replace(diagnose(cluster, looked.failures, accept=accept, more=more), caches=caches)


def caches_of(cluster: Cluster, views: Iterable[GangView]) -> dict[str, page_cache.Fits]:
    """For each gang that runs, the weight files that its nodes read beside what their page caches hold. What a gang
    that is to be started needs, its plan says."""
    gangs = {gang.name: gang for gang in gangs_of(cluster.specs.values())}
    examined = {}
    for view in views:
        layout, gang = cluster.layouts.get(view.name), gangs[view.name]
        if layout is None or not view.model:
            continue
        names = [node.name for node in gang.nodes if not view.members or node.name in view.members]
        with suppress(InputError):  # a profile that is gone since
            model_bytes = checkpoint_bytes(reported_profile(view.model))
            examined[view.name] = page_cache.fits(model_bytes, layout, names, cluster.topologies)
    return {name: fits for name, fits in examined.items() if fits}


def layouts_of(views: Iterable[GangView]) -> dict[str, Layout]:
    """The layout of each gang that runs."""
    examined = {
        view.name: layout_of([node.ranks for node in view.nodes if node.name not in view.missing])
        for view in views
        if view.running
    }
    return {name: layout for name, layout in examined.items() if layout is not None}
