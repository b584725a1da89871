"""One judgement of a port on every screen: findings, drawings, report, live page, figures of `status --wide`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.faults import FAULTS, ODD
from tests.support.healthy_cluster import HealthyNode, cluster_of, cluster_with, healthy_nodes

from orchestrator.doctor.rules.support.cluster import Cluster, Node
from orchestrator.doctor.rules.support.registry import COSTLY, marks_of, run_rules
from orchestrator.doctor.steps.doctor import Examination, diagnose
from orchestrator.doctor.steps.doctor_report import _cells, pictures
from orchestrator.doctor.steps.recordings import examine_given, given
from orchestrator.gang.commands.watching import load_cells
from orchestrator.gang.steps.status.live import NodeLoad
from orchestrator.gang.timeline import port_rates
from orchestrator.gang.view import NodeView
from orchestrator.loading.profiles import load_profile
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import NodeState
from orchestrator.model.inventory import GangSpec, Overrides
from orchestrator.model.topology import RdmaPort
from orchestrator.monitoring.steps.live_page import lights
from orchestrator.planning.build import PlanFacts, build_plan
from orchestrator.protocol.gauges import GaugesAnswer, PortGauges
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.severity import Severity
from orchestrator.protocol.staging import Asked
from orchestrator.topology.draw import TreeLine, tree
from orchestrator.topology.network import PortFault, port_fault
from orchestrator.topology.picture import Picture, lit

ROOT = Path(__file__).parents[4]
OF_PORTS = ("RDMA-PORT-DOWN", "RDMA-PORT-UNCONFIGURED")


def two_ports_differ(node: HealthyNode) -> None:
    """One without a link, its neighbour without an address."""
    next(one for one in FAULTS if one.name == "port without an address").breaks(node)
    node.set_port("mlx5_2", state="1: DOWN", phys_state="2: Polling")


def one_state_unread(node: HealthyNode) -> None:
    for path in [path for path in node.files if path.endswith("/infiniband/mlx5_1/ports/1/state")]:
        del node.files[path]


def machines() -> Iterator[tuple[str, Examination]]:
    for fault in FAULTS:
        yield fault.name, diagnose(cluster_with(ODD, fault.breaks, fault.trials), {})
    yield "two ports differ", diagnose(cluster_with(ODD, two_ports_differ), {})
    yield "a state unread", diagnose(cluster_with(ODD, one_state_unread), {})
    for folder in sorted((ROOT / "examples").iterdir()):
        yield folder.name, examine_given(given([str(folder)]))
    for file in sorted((ROOT / "tests/recorded/nccl-topologies").glob("*.xml")):
        yield file.name, examine_given(given([str(file)]))


@pytest.fixture(scope="module")
def examined() -> dict[str, Examination]:
    return dict(machines())


def lines(part: TreeLine) -> Iterator[TreeLine]:
    yield part
    for child in part.children:
        yield from lines(child)


def gauges(node: Node) -> GaugesAnswer:
    ports = (
        PortGauges(device=one.device, port=one.port, state=one.state and f"4: {one.state}")
        for one in node.topology.rdma
    )
    return GaugesAnswer(now=1.0, ports=tuple(ports))


def test_every_screen_says_the_same_of_every_port(examined: dict[str, Examination]) -> None:
    seen: set[PortFault | None] = set()
    for name, examination in examined.items():
        drawings = pictures(examination)
        for node in examination.cluster.nodes:
            shown = Shown(examination, node, drawings[node.name])
            for port in node.topology.rdma:
                seen.add(port_fault(port, node.topology))
                shown.check(port, f"{name}: {node.name}: {port.name}")
    assert seen == {None, *PortFault}


class Shown:
    """All screens of one node."""

    def __init__(self, examination: Examination, node: Node, drawn: Picture) -> None:
        self.node, self.drawn = node, drawn
        load = NodeLoad(gauges=gauges(node), ports=port_rates(None, gauges(node)))
        now = lights(NodeView(name=node.name, node_rank=0, state=NodeState.READY), load)
        self.live, self.wide = lit(drawn, now.gpus, now.ports), str(load_cells({"": load})("")[3])
        self.tree = list(lines(tree(node.topology, node.tcp, marks_of(node.topology, examination.findings))))
        self.found = [one for one in examination.findings if one.id in OF_PORTS and one.node == node.name]
        self.cells = {cell["name"]: cell for cell in _cells(node, len(node.rail_ports))}

    def check(self, port: RdmaPort, where: str) -> None:
        fault = port_fault(port, self.node.topology)
        colour = {None: "up", PortFault.NO_LINK: "down", PortFault.UNREAD: "old"}.get(fault, "idle")
        named = [one for one in self.found if port.device in one.devices and one.severity in COSTLY]
        if port in self.node.rail_ports and fault not in (None, PortFault.UNREAD):
            assert len(named) == 1, where
        (line,) = (one for one in self.tree if one.kind == "port" and f"{one.label} ".startswith(
            f"{port.device}  port {port.port} "))  # fmt: skip
        assert ("(RDMA-PORT" in line.fault) is bool(named), where
        assert not named or (fault is not None and line.fault.startswith(f"{fault.value} (RDMA-PORT")), where
        if port in self.node.rail_ports:
            assert self.cells[port.device]["state"].replace("far", "up") == colour, where
        tcp = bool(self.node.tcp and port.netdev and port.netdev == self.node.tcp.interface)
        dots = [one for one in self.drawn.ports if (one.device, one.number) == (port.device, port.port)]
        now = [one for one in self.live.ports if (one.device, one.number) == (port.device, port.port)]
        assert {one.state for one in dots} <= {"other" if tcp and colour not in ("down", "old") else colour}, where
        assert [one.state for one in dots] == [one.state for one in now], where
        assert (f"{port.device} down" in self.wide) is (fault is PortFault.NO_LINK), where


def test_a_fix_speaks_of_the_cable_of_ports_without_a_link_alone(examined: dict[str, Examination]) -> None:
    for examination in examined.values():
        for finding in examination.findings:
            topology = examination.cluster.topologies.get(finding.node)
            if finding.id in OF_PORTS and topology and "plug the cable" in finding.fix:
                cabled = finding.fix.partition(": plug the cable")[0].split(", ")
                dead = [one.device for one in topology.rdma if port_fault(one, topology) is PortFault.NO_LINK]
                assert set(cabled) <= set(dead)


def found(told: Any, **overrides: Any) -> list[Finding]:
    nodes = healthy_nodes(1)
    nodes["node0"].host["flow_control"] = told
    cluster = cluster_of(nodes)
    spec = replace(cluster.specs["node0"], overrides=Overrides(**overrides))
    return [one for one in run_rules(replace(cluster, specs={"node0": spec})) if one.id == "LOSSLESS-UNMARKED"]


def pfc(*priorities: int) -> str:
    return bytes([8, sum(1 << one for one in priorities), 0, 0, *bytes(132)]).hex()


@pytest.mark.parametrize(
    ("told", "overrides", "title"),
    [
        (pfc(3), {}, "ens2f1np1 is lossless for priority 3, but NCCL's packets have priority 0"),
        (pfc(3), {"ib_tc": 106}, ""),
        (pfc(3), {"env": (("NCCL_IB_TC", "106"),)}, ""),
        (pfc(3, 4), {"ib_tc": 136}, ""),
        (pfc(4), {"ib_tc": 106}, "ens2f1np1 is lossless for priority 4, but NCCL's packets have priority 3"),
        (pfc(0), {}, ""),
        (pfc(), {}, ""),
        (pfc(), {"ib_tc": 106}, "ens2f1np1 is lossless for no priority, but NCCL's packets have priority 3"),
        ("08", {}, ""),
        ("no hexadecimal digits", {}, ""),
    ],
)
def test_the_priority_is_compared_with_the_traffic_class(told: str, overrides: dict[str, Any], title: str) -> None:
    findings = found({"ens2f1np1": told}, **overrides)
    assert [one.title for one in findings] == ([title] if title else [])
    assert all(one.severity is Severity.NOTE for one in findings)


def test_the_fix_names_a_class_of_that_priority() -> None:
    (only,) = found({"ens2f1np1": pfc(3)})
    assert "l40s_ib_tc: 106 in the inventory (DSCP 26)" in only.fix


@pytest.mark.parametrize("told", [None, [], {}, {"eno1": pfc(3)}])
def test_nothing_is_said_of_what_was_not_read(told: Any) -> None:
    assert not found(told)


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
    asked = Asked(model=model, tp=layout.tensor_parallel, pp=layout.pipeline_parallel)
    known = PlanFacts(topologies=cluster.topologies)
    plan = build_plan([gang], load_profile(model), cluster.stacks["node0"], asked, known)
    assert plan.gangs[0].layout == layout
    assert of_tcp(plan.findings) == of_tcp(run_rules(cluster))
