"""Nested switches on the screen and in the report: each inside the one above, and a cross only for a finding."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.healthy_cluster import HealthyNode, cluster_of, healthy_node
from tests.support.machine_files import MachineFiles, virtual_functions
from tests.support.variants import gpus_alone_behind_their_own_switch, nested_node

from orchestrator.cli.main import main
from orchestrator.doctor.steps.recordings import save_snapshots
from orchestrator.model.snapshot import Snapshot
from orchestrator.topology.build import build
from orchestrator.topology.draw import summary
from orchestrator.topology.paths import shape
from orchestrator.topology.picture import Box, Picture, picture


def snapshot_of(node: HealthyNode) -> Snapshot:
    return node.machine.snapshot(host=node.host, nvml={"devices": list(node.gpus), **node.nvml})


def drawn(node: HealthyNode) -> Picture:
    (known,) = cluster_of({"node0": node}).nodes
    return picture(known.topology, {}, rails=known.rail_ports, tcp=known.tcp.interface if known.tcp else "")


def inside(one: Box, other: Box) -> bool:
    return (
        other.x < one.x and other.y < one.y and one.x + one.w < other.x + other.w and one.y + one.h < other.y + other.h
    )


@pytest.mark.parametrize("cards_on_top", [True, False])
@pytest.mark.parametrize("domains", [2])
def test_switches_are_drawn_in_each_other(cards_on_top: bool, domains: int) -> None:
    seen = drawn(nested_node(cards_on_top=cards_on_top))
    switches = {box.lines[0].removeprefix("PCIe switch "): box for box in seen.boxes if box.kind == "switch"}
    tops = [switches["0000:41:00.0"], switches["0000:81:00.0"]]
    assert len(switches) == 3 * domains
    for top, subs in zip(tops, (("0000:50:00.0", "0000:60:00.0"), ("0000:90:00.0", "0000:a0:00.0")), strict=True):
        for sub in subs:
            assert inside(switches[sub], top)
            assert sum(inside(box, switches[sub]) for box in seen.boxes if box.kind == "gpu") == 2
        assert sum(inside(box, top) for box in seen.boxes if box.kind == "card") == 1
    for box in seen.boxes:
        assert 0 <= box.x < box.x + box.w <= seen.width and 0 <= box.y < box.y + box.h <= seen.height
    for one in seen.boxes:
        for other in seen.boxes:
            if one is not other and one.kind == other.kind and one.kind in ("gpu", "card"):
                assert (
                    one.x + one.w <= other.x
                    or other.x + other.w <= one.x
                    or (one.y + one.h <= other.y or other.y + other.h <= one.y)
                )


def test_a_box_keeps_the_pci_domain_that_is_not_0() -> None:
    machine = MachineFiles()
    machine.processors(1)
    for domain in range(1, 9):
        root = f"/sys/devices/pci{domain:04x}:00"
        folder = machine.function(root, f"{domain:04x}:00:00.0", ("0x10de", "0x2330", "0x030200", "0x16c1"))
        machine.devices.append({"index": domain - 1, "name": "NVIDIA H100", "pci_bus_id": folder.rpartition("/")[2]})
    boxes = [box for box in picture(build(machine.snapshot()), {}).boxes if box.kind == "gpu"]
    assert [box.lines[1] for box in boxes] == [f"{domain:04x}:00:00.0" for domain in range(1, 9)]


@pytest.mark.parametrize(
    "node",
    [nested_node(), nested_node(cards_on_top=False), gpus_alone_behind_their_own_switch(), healthy_node()],
    ids=["card one level up", "card below one of them", "switches on the cards", "flat"],
)
def test_a_healthy_node_has_no_cross(node: HealthyNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_snapshots({"node0": snapshot_of(node)}, tmp_path)
    assert main(["discover", "--from", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "✗" not in out
    assert out.count("GPU ") >= 8


def test_the_summary_counts_what_is_behind_the_top_switches() -> None:
    topology = build(snapshot_of(nested_node()))
    assert shape(topology).words == (
        "2 switches with 4 GPUs + 1 NIC (2 switches nested below) each, 1 NIC elsewhere; "
        "between GPUs PIX/PXB inside, SYS across"
    )
    assert summary(topology).startswith("8 GPUs (NVIDIA L40S), 2 PCIe switches with 4 + 4 GPUs, 3 NICs")
    alone = shape(build(snapshot_of(gpus_alone_behind_their_own_switch())))
    assert alone.words == "8 GPUs, none behind a switch; between GPUs PHB/SYS"


def test_virtual_functions_are_counted_with_their_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = healthy_node()
    virtual_functions(node.machine, node.key("0000:1c:00.0"), 4, bus=0x1C)
    save_snapshots({"node0": snapshot_of(node)}, tmp_path)
    assert main(["discover", "--from", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "NIC  0000:1c:00  ConnectX-6 Dx  slot 2  16 GT/s x16  4 virtual functions" in out
    assert "5 of 5 RDMA ports active" in out and "✗" not in out
