"""What a benchmark ran under, for its record: what is wrong with the machines, and the tuned kernel configs there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.doctor.rules.support.registry import run_rules
from orchestrator.doctor.steps.doctor import cluster_of, layouts_of
from orchestrator.gang.view import GangView
from orchestrator.loading.stacks import load_stack
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec
from orchestrator.model.snapshot import Snapshot
from orchestrator.remote.fleet import Fleet
from orchestrator.topology.build import build
from orchestrator.tuning.steps.tuning import ask_holdings


def findings_now(gang: GangSpec, view: GangView, snapshots: Mapping[str, Snapshot]) -> list[dict[str, Any]]:
    """What `doctor` finds on these snapshots, accepted or not; the ways between nodes are not tried."""
    topologies = {name: build(snapshot) for name, snapshot in snapshots.items()}
    cluster = cluster_of([gang], topologies, snapshots)
    cluster = replace(cluster, layouts=layouts_of([view]), models={gang.name: view.model})
    return [finding.as_json() for finding in run_rules(cluster)]


def tuned_now(fleet: Fleet, gang: GangSpec, stack: str, gpu: str) -> dict[str, list[str]]:
    """By node: the tuned configs for its GPU that its environment has. {} for an engine on CPU; a node that does not
    answer is left out."""
    try:
        known = load_stack(stack)
    except InputError:  # its file is gone since
        return {}
    if known.device != "cuda":
        return {}
    names = [node.name for node in gang.nodes]
    held = ask_holdings(fleet, names, known, dict.fromkeys(names, gpu)).holdings
    return {
        name: sorted(f"{folder}/{file}" for folder, files in one.folders.items() for file in files)
        for name, one in held.items()
    }
