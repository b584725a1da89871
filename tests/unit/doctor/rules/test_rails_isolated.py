"""Rails that can't reach each other: a stop if NCCL needs that path, and nothing if it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.faults import across
from tests.support.healthy_cluster import HealthyNode, cluster_of, healthy_node, healthy_nodes

from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.rules.support.registry import run_rules
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.inventory import Overrides
from orchestrator.model.reach import Outcome, Trial

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


def within(outcome: Outcome, *, resolved: bool = True) -> tuple[Trial, ...]:
    """From card to card of each node, together with trials between the nodes that all pass."""
    inside = [
        replace(trial, target=trial.source, outcome=outcome, resolved=resolved)
        for trial in across()
        if trial.target == "node1" or (trial.source, trial.target) == ("node1", "node0")
    ]
    return (*across(), *inside)


def hearing(node: HealthyNode, netdev: str = "all", *, rp_filter: int = 0) -> None:
    node.machine.write(f"/proc/sys/net/ipv4/conf/{netdev}", {"accept_local": 1, "rp_filter": rp_filter})


def judged(trials: tuple[Trial, ...], nodes: dict[str, HealthyNode]) -> list[Finding]:
    return isolated(replace(cluster_of(nodes), trials=trials))


def test_cards_of_one_node_that_do_not_reach_each_other_are_a_stop_where_it_hears_itself() -> None:
    nodes = healthy_nodes()
    for node in nodes.values():
        hearing(node)
    (found,) = judged(within(Outcome.SILENT), nodes)
    assert (found.severity, found.node) == (Severity.STOP, "")
    assert "mlx5_0 of node0 does not reach mlx5_2 of node0 (32 of 128 paths" in found.title
    alone = tuple(trial for trial in within(Outcome.SILENT) if trial.source == trial.target == "node2")
    (found,) = judged(alone, nodes)
    assert found.node == "node2"
    assert judged(within(Outcome.OPEN), nodes) == []


def test_a_gang_of_one_node_needs_the_way_too() -> None:
    node = healthy_node()
    hearing(node)
    trials = tuple(trial for trial in within(Outcome.SILENT) if trial.source == trial.target == "node0")
    (found,) = judged(trials, {"node0": node})
    assert (found.severity, found.node) == (Severity.STOP, "node0")


def test_a_node_that_does_not_hear_itself_is_unknown_where_its_arp_gets_no_answer() -> None:
    nodes = healthy_nodes()
    (found,) = judged(within(Outcome.SILENT, resolved=False), nodes)
    assert (found.severity, found.node) == (Severity.UNKNOWN, "")
    assert "accept_local=1" in found.fix and found.evidence[0].endswith("no answer to ARP")
    hearing(nodes["node0"], rp_filter=1)  # strict: dropped as well
    (found,) = judged(within(Outcome.SILENT, resolved=False), nodes)
    assert found.severity is Severity.UNKNOWN
    assert judged(within(Outcome.SILENT), nodes) == []  # behind a router: as between the nodes
