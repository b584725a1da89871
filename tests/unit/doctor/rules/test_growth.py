"""The cost of the rules grows linearly with the nodes, not quadratically: the benchmark has the figures."""

from __future__ import annotations

import time
from dataclasses import replace

from tests.support.healthy_cluster import cluster_of, healthy_nodes

from orchestrator.doctor.steps.recordings import Given, examine_given
from orchestrator.model.snapshot import Snapshot


def spent(snapshots: list[Snapshot], size: int) -> float:
    cluster = {f"node{n}": replace(snapshots[n % 4], node=f"node{n}") for n in range(size)}
    began = time.process_time()
    examine_given(Given(cluster))
    return time.process_time() - began


def test_eight_times_the_nodes_cost_about_eight_times_as_much() -> None:
    snapshots = list(cluster_of(healthy_nodes()).snapshots.values())
    spent(snapshots, 4)
    small = min(spent(snapshots, 8) for _ in range(3))
    large = min(spent(snapshots, 64) for _ in range(2))
    assert large < small * 8 * 2.5
