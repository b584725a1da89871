"""Clocks that disagree between the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="CLOCK-SKEW",
    title="a node's clock is wrong",
    explain="l40s-deploy does not compare clocks of different nodes, but log lines of several nodes can't be put in"
    " order.",
    reads=("the node's clock when it was read, and the controller's before and after",),
    source="comparison with peers",
    weight=85,
)
LARGEST_S = 1.0


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note for each node that is more than a second away from the median of all, beyond what the way explains.

    host['clock_offset_s'] is the node's clock less the controller's, host['round_trip_s'] twice its error.
    """
    offsets = {
        node.name: float(offset)
        for node in cluster.nodes
        if isinstance(offset := node.snapshot.host.get("clock_offset_s"), (int, float))
    }
    if len(offsets) < 2:
        return
    middle = median(offsets.values())
    for name, offset in offsets.items():
        way = cluster.snapshots[name].host.get("round_trip_s")
        unsure = way / 2 if isinstance(way, (int, float)) else 0.0
        if abs(offset - middle) > LARGEST_S + unsure:
            yield Finding(
                id=RULE.id,
                severity=Severity.NOTE,
                node=name,
                title=f"the clock is {abs(offset - middle):.1f} s {'ahead' if offset > middle else 'behind'}",
                evidence=(
                    f"offset from the controller = {offset:+.2f} s ±{unsure:.2f}, median of all nodes {middle:+.2f} s",
                ),
                effect="log lines of several nodes can't be put in order by their timestamps",
                fix="run `timedatectl set-ntp true`, then check with `chronyc tracking`",
            )
