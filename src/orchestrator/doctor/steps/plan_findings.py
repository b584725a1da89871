"""What all rules find about a plan, beside what planning itself found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from orchestrator.doctor.rules.support.registry import in_order, run_rules, with_limits
from orchestrator.doctor.steps.doctor import check_accept, cluster_of, sort_out
from orchestrator.doctor.steps.trials import try_ways
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import GangSpec
from orchestrator.model.plan import Plan
from orchestrator.planning.steps.plan import PlanResult
from orchestrator.remote.fleet import Fleet

_TOLD_BETTER: Mapping[str, tuple[str, ...]] = {
    "TRANSPORT-TCP": ("TRAFFIC-ON-TCP", "TRANSPORT-TCP"),
    "RDMA-PORTS-UNEVEN": ("RDMA-PORT-DOWN", "RDMA-PORT-UNCONFIGURED", "NIC-MISSING", "NIC-NOT-UNDER-SWITCH"),
}
"""A finding of planning, and the rules that name the node and the device where planning sees only the result."""


def examined(
    planned: PlanResult, gangs: Sequence[GangSpec], fleet: Fleet | None = None, *, accept: Sequence[str] = ()
) -> Plan:
    """The plan with the findings of all rules, and what of them is accepted. No node is read a second time.

    fleet: tests the paths between the nodes too; None where engines run already
    Raises InputError for a word in `accept` that names nothing.
    """
    layouts = {gang.name: gang.layout for gang in planned.plan.gangs}
    served = {name: (planned.profile, its_layout) for name, its_layout in layouts.items()}
    models = {gang.name: gang.model for gang in planned.plan.gangs}
    nodes = (node for gang in gangs for node in gang.nodes if node.name in planned.topologies)
    seen = cluster_of(nodes, planned.topologies, planned.snapshots)
    cluster = replace(seen, served=served, layouts=layouts, models=models)
    own = planned.plan.findings
    check_accept(accept, cluster.specs, {finding.id for finding in own})
    if fleet is not None:
        cluster = replace(cluster, trials=try_ways(fleet, cluster))
    findings_of_rules = run_rules(cluster)
    remaining = (with_limits(finding, cluster) for finding in _not_told_better(own, findings_of_rules))
    findings, accepted = sort_out(
        in_order([*remaining, *findings_of_rules], list(cluster.topologies)), cluster.specs, accept
    )
    return replace(planned.plan, findings=findings, accepted=accepted)


def _not_told_better(own: Sequence[Finding], better: Sequence[Finding]) -> Iterator[Finding]:
    ids = {finding.id for finding in better}
    return (finding for finding in own if ids.isdisjoint(_TOLD_BETTER.get(finding.id, ())))
