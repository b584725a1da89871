"""Rails that can't reach each other: a stop where NCCL will need that way, and nothing where it will not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.faults import across
from tests.support.healthy_cluster import HealthyNode, cluster_of, healthy_nodes

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.inventory import Overrides
from orchestrator.rules.support.cluster import Cluster
from orchestrator.rules.support.registry import run_rules

EVERY = tuple(f"node{number}" for number in range(4))


def cluster(*closed: str, nodes: dict[str, HealthyNode] | None = None) -> Cluster:
    return replace(cluster_of(nodes or healthy_nodes()), trials=across(*closed))


def isolated(seen: Cluster) -> list[Finding]:
    return [finding for finding in run_rules(seen) if finding.id == "RAILS-ISOLATED"]


def test_rails_that_reach_each_other_are_no_finding() -> None:
    assert run_rules(cluster()) == ()


def test_isolated_rails_are_told_of_the_cluster_with_the_way_out() -> None:
    (found,) = run_rules(cluster(*EVERY))
    assert (found.id, found.severity, found.node) == ("RAILS-ISOLATED", Severity.STOP, "")
    assert "mlx5_0 of node0 does not reach mlx5_2 of node1 (96 of 96" in found.title
    assert "NCCL_NET_DISABLE_INTRA" in found.fix and "route between the rails" in found.fix


def test_nodes_that_stay_whole_need_no_way_between_the_rails() -> None:
    nodes = healthy_nodes()
    for node in nodes.values():
        node.files["/proc/cpuinfo"] = node.files["/proc/cpuinfo"].replace("143", "207")  # 40 GB/s between the sockets
    assert isolated(cluster(*EVERY, nodes=nodes)) == []


def test_what_the_operator_keeps_inside_needs_none_either() -> None:
    nodes = healthy_nodes()
    for node in nodes.values():
        node.spec["overrides"] = Overrides(env=(("NCCL_NET_DISABLE_INTRA", "1"),))
    assert isolated(cluster(*EVERY, nodes=nodes)) == []


@pytest.mark.parametrize("count", [2, 4])
def test_ports_of_one_card_need_not_reach_each_other(count: int) -> None:
    seen = cluster(*EVERY[:count])
    kept = tuple(
        replace(trial, far="mlx5_1" if trial.side == "mlx5_0" else "mlx5_3")
        for trial in seen.trials
        if trial.side in ("mlx5_0", "mlx5_2")
    )
    assert isolated(replace(seen, trials=kept)) == []
