"""A cluster without RDMA: `doctor` and `plan` give the same verdict, by the layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.faults import FAULTS
from tests.support.healthy_cluster import HealthyNode, cluster_of, healthy_nodes

from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.rules.support.registry import run_rules
from orchestrator.loading.profiles import load_profile
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.inventory import GangSpec
from orchestrator.planning.build import build_plan
from orchestrator.planning.options import PlanOptions
from orchestrator.protocol.layout import Layout

TP32 = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8)
PP4 = Layout(tensor_parallel=8, pipeline_parallel=4, nnodes=4, gpus_per_node=8)
(NO_RDMA,) = (fault.breaks for fault in FAULTS if fault.says == "TRANSPORT-TCP")


def asks_for_tcp(node: HealthyNode) -> None:
    node.spec["transport"] = "tcp"


def everywhere(breaks: object, layout: Layout | None) -> Cluster:
    nodes = healthy_nodes()
    for node in nodes.values():
        breaks(node)  # type: ignore[operator]
    return replace(cluster_of(nodes), layouts={"gang0": layout} if layout else {})


def of_tcp(findings: tuple[Finding, ...]) -> set[Severity]:
    return {finding.severity for finding in findings if finding.id == "TRANSPORT-TCP"}


@pytest.mark.parametrize("breaks", [NO_RDMA, asks_for_tcp])
@pytest.mark.parametrize(("layout", "severity"), [(TP32, Severity.SLOW), (PP4, Severity.NOTE), (None, Severity.SLOW)])
def test_the_verdict_is_the_layouts(breaks: object, layout: Layout | None, severity: Severity) -> None:
    assert of_tcp(run_rules(everywhere(breaks, layout))) == {severity}


@pytest.mark.parametrize("breaks", [NO_RDMA, asks_for_tcp])
@pytest.mark.parametrize(("model", "layout"), [("DeepSeek-V3-0324-Block64x64", TP32), ("DeepSeek-V3-0324", PP4)])
def test_the_plan_says_the_same(breaks: object, model: str, layout: Layout) -> None:
    cluster = everywhere(breaks, layout)
    gang = GangSpec(name="gang0", nodes=tuple(cluster.specs.values()))
    asked = PlanOptions(tensor_parallel=layout.tensor_parallel, pipeline_parallel=layout.pipeline_parallel)
    plan = build_plan([gang], load_profile(model), cluster.stacks["node0"], cluster.topologies, asked)
    assert plan.gangs[0].layout == layout
    assert of_tcp(plan.findings) == of_tcp(run_rules(cluster))
