"""The drawing: positions, and what is highlighted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import permutations

import pytest
from tests.support.faults import FAULTS, Fault
from tests.support.healthy_cluster import HealthyNode, cluster_of, cluster_with, healthy_node
from tests.support.machine_files import PLX, MachineFiles, reference_machine, virtual_functions
from tests.support.variants import gpus_alone_behind_their_own_switch, nested_node

from orchestrator.doctor.rules.support.cluster import Node
from orchestrator.model.snapshot import Snapshot
from orchestrator.topology.build import build
from orchestrator.topology.draw import TreeLine, summary, tree
from orchestrator.topology.network import tcp_interface
from orchestrator.topology.paths import shape
from orchestrator.topology.picture import Box, Mark, Picture, alike, picture, without_addresses
from orchestrator.topology.switches import empty_slots


def walk(part: TreeLine) -> Iterator[TreeLine]:
    yield part
    for child in part.children:
        yield from walk(child)


def tree_of(machine: MachineFiles) -> TreeLine:
    topology = build(machine.snapshot())
    return tree(topology, tcp_interface({topology.node: topology}).get(topology.node))


def part(root: TreeLine, kind: str, words: str) -> TreeLine:
    (found,) = [line for line in walk(root) if line.kind == kind and words in line.label]
    return found


def test_a_right_node() -> None:
    root = tree_of(reference_machine())
    assert root.label == "node0  driver 570.86.10  Intel(R) Xeon(R) Platinum 8462Y+"
    assert [part for part in walk(root) if part.fault] == []
    kinds = Counter(part.kind for part in walk(root))
    assert (kinds["gpu"], kinds["nic"], kinds["port"]) == (8, 3, 5)
    switch = part(root, "switch", "0000:98:00.0")
    assert part(root, "numa", "NUMA 1").children == (switch,)
    assert [part.kind for part in switch.children] == ["gpu"] * 4 + ["nic"]
    assert len("│   │   ├── " + switch.children[0].label) <= 80
    assert switch.children[0].label == "GPU 4  0000:9a:00.0  NVIDIA L40S  45.0 GiB  16 GT/s x16 (idle: 2.5)"
    nic = switch.children[-1]
    assert nic.label == "NIC  0000:9e:00  ConnectX-6 Dx  slot 6  16 GT/s x16"
    assert [port.label for port in nic.children] == [
        "mlx5_2  port 1  ACTIVE  100 Gb/s  Ethernet  ens3f0np0  10.3.0.11/24  MTU 9000  GID 3",
        "mlx5_3  port 1  ACTIVE  100 Gb/s  Ethernet  ens3f1np1  10.4.0.11/24  MTU 9000  GID 3",
    ]
    assert part(root, "root", "0000:37:01.0").children[0].label.startswith("NIC  0000:38:00")
    assert part(root, "interface", "bond of").label == (
        "bond0  bond of ens9f0np0, ens9f1np1  10.0.0.11/24  MTU 9000  200 Gb/s  TCP side"
    )


def test_the_drawing_judges_nothing_and_shows_the_marks_that_it_is_given() -> None:
    topology = build(reference_machine(right=False).snapshot())
    side = tcp_interface({topology.node: topology}).get(topology.node)
    assert not [part for part in walk(tree(topology, side)) if part.fault]
    marks = {
        "0000:c1:00": "away",
        "0000:98:00.0": "lonely",
        "mlx5_1": "no link",
        "ens3f0np0": "slow",
        "0000:9b:00.0": "x8",
    }
    root = tree(topology, side, marks)
    assert part(root, "nic", "0000:c1:00").fault == "away"
    assert part(root, "switch", "0000:98:00.0").fault == "lonely"
    assert part(root, "gpu", "0000:9b:00.0").fault == "x8"
    assert [part.fault for part in walk(root) if part.kind == "port" and part.fault] == ["no link", "slow"]
    assert "DOWN (Disabled)" in part(root, "port", "mlx5_1").label
    assert part(root, "port", "mlx5_4").label.endswith("10.0.0.11/24  MTU 9000  GID 3  TCP side")


def test_summaries() -> None:
    assert summary(build(reference_machine().snapshot())) == (
        "8 GPUs (NVIDIA L40S), 2 PCIe switches with 4 + 4 GPUs, 3 NICs, 5 of 5 RDMA ports active"
    )
    assert summary(build(reference_machine(right=False).snapshot())) == (
        "8 GPUs (NVIDIA L40S), 2 PCIe switches with 4 + 4 GPUs, 3 NICs, 1 of 6 RDMA ports active"
    )
    assert summary(build(MachineFiles().snapshot())) == "0 GPUs, 0 NICs, no RDMA port"


def test_states_of_gpus_and_links() -> None:
    machine = MachineFiles()
    upstream = machine.switch(machine.root_port(0x15), 0x16)
    machine.gpu(machine.downstream(upstream, 0x17, 0), 0x18, width=8)
    machine.gpu(machine.downstream(upstream, 0x17, 4), 0x19)
    machine.devices[1] = {"index": 1, "errors": {"nvmlDeviceGetHandleByIndex": "GPU is lost"}}
    machine.write(upstream, {"current_link_speed": "8.0 GT/s PCIe"})
    root = tree_of(machine)
    assert part(root, "gpu", "GPU 0").label.endswith("2.5 GT/s x8 (can 16 x16)")
    assert part(root, "gpu", "GPU 1").label.endswith("lost: GPU is lost")
    assert part(root, "switch", "0000:16:00.0").label.endswith("8 GT/s x16 (can 16)")


def test_a_nested_switch_hangs_below_the_one_above() -> None:
    machine = MachineFiles()
    upper = machine.switch(machine.root_port(0x10), 0x11, ids=PLX)
    lower = machine.switch(machine.downstream(upper, 0x12, 4), 0x20, ids=PLX)
    machine.gpu(machine.downstream(lower, 0x21, 0), 0x22)
    machine.nic(machine.downstream(upper, 0x12, 8), 0x30, ["eth0"])
    top = part(tree_of(machine), "switch", "0000:11:00.0")
    assert [part.kind for part in top.children] == ["switch", "nic"]
    assert [part.kind for part in top.children[0].children] == ["gpu"]


def test_a_gpu_that_only_nvml_shows_and_a_silent_driver() -> None:
    machine = MachineFiles()
    machine.gpu(machine.root_port(0x10), 0x11)
    bare = build(machine.snapshot(files={}, links={}))
    assert [part.kind for part in walk(tree(bare))] == ["node", "gpu"]
    silent = build(machine.snapshot(nvml={"error": "NVML did not answer within 5 s"}))
    assert part(tree(silent), "note", "NVML").label == "NVML: NVML did not answer within 5 s"
    assert part(tree(silent), "gpu", "GPU ?").label.endswith("on the bus, not shown by NVML")
    recorded = build(machine.snapshot(nvml={"error": "not recorded"}))
    assert "not shown by NVML" not in part(tree(recorded), "gpu", "GPU 0").label


def test_a_machine_with_one_domain_has_everything_in_it() -> None:
    machine = MachineFiles()
    machine.processors(1)
    machine.gpu(machine.root_port(0x10, numa=-1), 0x11, numa=-1)
    assert [part.label for part in walk(tree_of(machine)) if part.kind == "numa"] == ["NUMA 0  CPUs 0-31"]
    machine.processors(2)
    assert "NUMA domain not known" in [part.label for part in walk(tree_of(machine)) if part.kind == "numa"]


def test_ports_without_a_pci_function_are_drawn() -> None:
    machine = MachineFiles()
    machine.interface("eth1")
    machine.rdma("rxe0", "/sys/devices/virtual", "eth1", ipv4="10.1.0.1/24")
    root = tree_of(machine)
    assert part(root, "port", "rxe0").label.startswith("rxe0  port 1  ACTIVE")
    assert "1 of 1 RDMA port active" in summary(build(machine.snapshot()))


def drawn(node: Node, marks: dict[str, Mark] | None = None) -> Picture:
    return picture(
        node.topology,
        marks or {},
        rails=node.rail_ports,
        tcp=node.tcp.interface if node.tcp else "",
        slots=empty_slots(node.topology, node.snapshot),
    )


def only_node(made: HealthyNode | None = None) -> Node:
    (node,) = cluster_of({"node0": made or healthy_node()}).nodes
    return node


def lies_well(seen: Picture, *kinds: str) -> None:
    """Inside the frame, boxes of one kind beside each other."""
    for box in seen.boxes:
        assert 0 <= box.x < box.x + box.w <= seen.width and 0 <= box.y < box.y + box.h <= seen.height
    for one, other in permutations(seen.boxes, 2):
        if one.kind == other.kind and one.kind in kinds:
            beside = one.x + one.w <= other.x or other.x + other.w <= one.x
            assert beside or one.y + one.h <= other.y or other.y + other.h <= one.y


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
    assert {port.state for port in seen.ports} == {"up", "other"}
    lies_well(seen, "gpu", "card", "switch", "cpu")


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


def snapshot_of(node: HealthyNode) -> Snapshot:
    return node.machine.snapshot(host=node.host, nvml={"devices": list(node.gpus), **node.nvml})


def inside(one: Box, other: Box) -> bool:
    return (
        other.x < one.x and other.y < one.y and one.x + one.w < other.x + other.w and one.y + one.h < other.y + other.h
    )


@pytest.mark.parametrize("cards_on_top", [True, False])
def test_switches_are_drawn_in_each_other(cards_on_top: bool) -> None:
    seen = drawn(only_node(nested_node(cards_on_top=cards_on_top)))
    switches = {box.lines[0].removeprefix("PCIe switch "): box for box in seen.boxes if box.kind == "switch"}
    tops = [switches["0000:41:00.0"], switches["0000:81:00.0"]]
    assert len(switches) == 6
    for top, subs in zip(tops, (("0000:50:00.0", "0000:60:00.0"), ("0000:90:00.0", "0000:a0:00.0")), strict=True):
        for sub in subs:
            assert inside(switches[sub], top)
            assert sum(inside(box, switches[sub]) for box in seen.boxes if box.kind == "gpu") == 2
        assert sum(inside(box, top) for box in seen.boxes if box.kind == "card") == 1
    lies_well(seen, "gpu", "card", "cpu")


def test_a_box_keeps_the_pci_domain_that_is_not_0() -> None:
    machine = MachineFiles()
    machine.processors(1)
    for domain in range(1, 9):
        root = f"/sys/devices/pci{domain:04x}:00"
        folder = machine.function(root, f"{domain:04x}:00:00.0", ("0x10de", "0x2330", "0x030200", "0x16c1"))
        machine.devices.append({"index": domain - 1, "name": "NVIDIA H100", "pci_bus_id": folder.rpartition("/")[2]})
    boxes = [box for box in picture(build(machine.snapshot()), {}).boxes if box.kind == "gpu"]
    assert [box.lines[1] for box in boxes] == [f"{domain:04x}:00:00.0" for domain in range(1, 9)]


def test_the_summary_counts_what_is_behind_the_top_switches() -> None:
    nested, alone = snapshot_of(nested_node()), snapshot_of(gpus_alone_behind_their_own_switch())
    machines = (
        reference_machine().snapshot(),
        reference_machine(right=False).snapshot(),
        nested,
        alone,
        Snapshot(node="x", taken_at=0.0, files={}),
    )
    assert [shape(build(machine)).words for machine in machines] == [
        "2 switches with 4 GPUs + 1 NIC each, 1 NIC elsewhere; between GPUs PIX inside, SYS across",
        "2 switches with 4 GPUs + 1 NIC and 4 GPUs + 0 NICs, 2 NICs elsewhere; between GPUs PIX inside, SYS across",
        (
            "2 switches with 4 GPUs + 1 NIC (2 switches nested below) each, 1 NIC elsewhere; "
            "between GPUs PIX/PXB inside, SYS across"
        ),
        "8 GPUs, none behind a switch; between GPUs PHB/SYS",
        "no GPU",
    ]
    assert summary(build(nested)).startswith("8 GPUs (NVIDIA L40S), 2 PCIe switches with 4 + 4 GPUs, 3 NICs")


def test_virtual_functions_are_counted_with_their_card() -> None:
    node = healthy_node()
    virtual_functions(node.machine, node.key("0000:1c:00.0"), 4, bus=0x1C)
    label = part(tree_of(node.machine), "nic", "0000:1c:00").label
    assert label == "NIC  0000:1c:00  ConnectX-6 Dx  slot 2  16 GT/s x16  4 virtual functions"
    assert "5 of 5 RDMA ports active" in summary(build(snapshot_of(node)))
