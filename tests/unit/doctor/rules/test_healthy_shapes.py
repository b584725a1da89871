"""A healthy machine has no findings, whatever its shape and however it was recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from tests.support.faults import FAULTS
from tests.support.healthy_cluster import cluster_of, cluster_with
from tests.support.random_machines import Shape, healthy_machine, healthy_shapes
from tests.unit.doctor.rules.test_inputs import bad, snapshot_of, through_xml, without_addresses

from orchestrator.doctor.rules.support.registry import run_rules
from orchestrator.doctor.steps.recordings import Given, examine_given
from orchestrator.model.finding import Severity
from orchestrator.topology.network import rails

VIRTUAL = {f"mlx5_{number}" for number in range(30, 34)}
COSTLY = (Severity.STOP, Severity.SLOW)
REFERENCE = Shape(2, 2, 4, 1, False, False, False, 2, "Ethernet", storage=False, virtual=0)


@settings(max_examples=60, deadline=None)
@given(healthy_shapes())
@example(REFERENCE)
@example(replace(REFERENCE, bonded=True))
@example(Shape(2, 4, 2, 3, True, True, True, 2, "InfiniBand", storage=True, virtual=4))
def test_no_stop_and_no_slow_on_healthy_machines(shape: Shape) -> None:
    node = healthy_machine(shape)
    assert bad(examine_given(Given({"node0": snapshot_of(node)}))) == []
    assert bad(examine_given(Given({"node0": without_addresses(node.machine)}))) == []
    assert bad(through_xml(snapshot_of(node))) == []


@settings(max_examples=15, deadline=None)
@given(healthy_shapes())
@example(replace(REFERENCE, bonded=True))
@example(replace(REFERENCE, bonded=True, levels=0, storage=True))
def test_no_stop_and_no_slow_on_gangs_of_them(shape: Shape) -> None:
    nodes = {f"node{n}": healthy_machine(shape, f"node{n}", n) for n in range(3)}
    for node in nodes.values():
        node.spec["gpus"] = shape.groups * shape.gpus
    cluster = cluster_of(nodes)
    assert [one for one in run_rules(cluster) if one.severity in COSTLY] == []
    for found in cluster.nodes:
        assert found.tcp is not None and found.tcp.interface == "bond0"
        meant = {port.device for port in found.topology.rdma} - {"mlx5_bond_0", "mlx5_20"}
        chosen = {rail.port.device for rail in rails(found.topology, found.tcp)} - {"mlx5_20"}
        assert chosen == {device for device in meant if device.startswith("mlx5_bond") is shape.bonded} - VIRTUAL


@pytest.mark.parametrize("one", FAULTS, ids=lambda one: one.name)
def test_a_fault_is_found_through_the_xml_or_said_to_be_unknown(one) -> None:  # type: ignore[no-untyped-def]
    examination = through_xml(cluster_with("node2", one.breaks).snapshots["node2"])
    said = {finding.id for finding in examination.findings if finding.severity is not Severity.UNKNOWN}
    (unknown,) = [finding for finding in examination.findings if finding.id == "NOT-RECORDED"]
    assert one.says in said | set(unknown.devices) | {"NOT-RECORDED"}
