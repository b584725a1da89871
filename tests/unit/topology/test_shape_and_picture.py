"""A node's shape in words, and its drawing: every device once, inside the frame, marked if it is broken."""

from __future__ import annotations

import pytest
from tests.support.faults import FAULTS, Fault
from tests.support.healthy_cluster import cluster_of, cluster_with, healthy_node
from tests.support.machine_files import reference_machine

from orchestrator.doctor.rules.support.cluster import Node
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import PathType
from orchestrator.topology.build import build
from orchestrator.topology.paths import shape
from orchestrator.topology.picture import Mark, Picture, alike, picture, without_addresses
from orchestrator.topology.switches import empty_slots


def drawn(node: Node, marks: dict[str, Mark] | None = None) -> Picture:
    return picture(
        node.topology,
        marks or {},
        rails=node.rail_ports,
        tcp=node.tcp.interface if node.tcp else "",
        slots=empty_slots(node.topology, node.snapshot),
    )


def only_node() -> Node:
    (node,) = cluster_of({"node0": healthy_node()}).nodes
    return node


def test_a_right_node_in_words() -> None:
    seen = shape(only_node().topology)
    assert [(group.switch, group.gpus, group.nics) for group in seen.groups] == [
        ("0000:16:00.0", 4, 1),
        ("0000:98:00.0", 4, 1),
    ]
    assert (seen.inside, seen.across) == ((PathType.PIX,), (PathType.SYS,))
    assert seen.words == "2 switches with 4 GPUs + 1 NIC each, 1 NIC elsewhere; between GPUs PIX inside, SYS across"


def test_a_wrong_node_and_an_empty_one_in_words() -> None:
    assert (
        "4 GPUs + 1 NIC and 4 GPUs + 0 NICs, 2 NICs elsewhere"
        in shape(build(reference_machine(right=False).snapshot())).words
    )
    assert shape(build(Snapshot(node="x", taken_at=0.0, files={}))).words == "no GPU"


def test_everything_is_drawn_once_and_inside_the_frame() -> None:
    seen = drawn(only_node())
    names = [box.lines[0] for box in seen.boxes if box.kind == "gpu"]
    assert names == [f"GPU {index}" for index in range(8)]
    assert [box.lines[0] for box in seen.boxes if box.kind == "switch"] == [
        "PCIe switch 0000:16:00.0",
        "PCIe switch 0000:98:00.0",
    ]
    cards = [box.lines[0] for box in seen.boxes if box.kind == "card"]
    assert cards == ["RDMA card in slot 2  1c:00", "main card (TCP)  38:00", "RDMA card in slot 6  9e:00"]
    for box in seen.boxes:
        assert 0 <= box.x < box.x + box.w <= seen.width
        assert 0 <= box.y < box.y + box.h <= seen.height
    assert {port.state for port in seen.ports} == {"up", "other"}


def test_boxes_of_one_kind_do_not_overlap() -> None:
    for kind in ("gpu", "card", "switch", "cpu"):
        boxes = [box for box in drawn(only_node()).boxes if box.kind == kind]
        for one in boxes:
            for other in boxes:
                apart = one.x + one.w <= other.x or other.x + other.w <= one.x
                apart = apart or one.y + one.h <= other.y or other.y + other.h <= one.y
                assert one is other or apart


def test_marks_are_on_what_they_name() -> None:
    marks = {name: Mark("slow", 3) for name in ("0000:9b:00.0", "0000:98:00.0", "0000:1c:00", "mlx5_2")}
    seen = drawn(only_node(), marks)
    assert [box.lines[0] for box in seen.boxes if box.mark] == [
        "RDMA card in slot 2  1c:00",
        "PCIe switch 0000:98:00.0",
        "GPU 5",
    ]
    assert [port.name for port in seen.ports if port.mark] == ["mlx5_2 ens3f0np0"]


def test_nodes_that_differ_in_addresses_only_are_alike() -> None:
    first, second = cluster_of({name: healthy_node(name, number) for number, name in enumerate(("a", "b"))}).nodes
    assert drawn(first) != drawn(second)
    assert alike(drawn(first), drawn(second))
    assert not alike(drawn(first), drawn(second, {"mlx5_0": Mark("slow", 1)}))
    assert not any(port.detail for port in without_addresses(drawn(first)).ports)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_broken_nodes_can_be_drawn(fault: Fault) -> None:
    node = next(node for node in cluster_with("node2", fault.breaks).nodes if node.name == "node2")
    seen = drawn(node)
    gpus = [gpu for gpu in node.topology.gpus if gpu.key in node.devices]
    assert sum(box.kind == "gpu" for box in seen.boxes) == len(gpus)
    assert shape(node.topology).words
