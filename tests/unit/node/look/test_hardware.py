"""The catalogue of files that a snapshot reads: from real files below a root to the topology that they describe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.machine_files import MachineFiles, reference_machine

from orchestrator.model.snapshot import Snapshot
from orchestrator.node.look.hardware import PARTS, one_block_a_socket
from orchestrator.node.look.reading import SnapshotReader
from orchestrator.topology.build import build


def read(machine: MachineFiles, root: Path) -> Snapshot:
    machine.put_below(root)
    reader = SnapshotReader(root=str(root))
    for read in PARTS.values():
        read(reader)
    return machine.snapshot(files=reader.files, links=reader.links, errors=reader.errors)


@pytest.mark.parametrize("right", [True, False])
def test_what_is_read_means_the_machine_that_was_written(tmp_path: Path, right: bool) -> None:
    machine = reference_machine(right=right)
    assert build(read(machine, tmp_path)) == build(machine.snapshot())


def test_more_than_a_topology_is_read(tmp_path: Path) -> None:
    machine = reference_machine()
    machine.files |= {
        "/proc/sys/kernel/numa_balancing": "1\n",
        "/proc/sys/vm/zone_reclaim_mode": "1\n",
        "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "/proc/sys/net/ipv4/conf/bond0/rp_filter": "2\n",
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module\n",
        "/proc/net/bonding/bond0": "Ethernet Channel Bonding Driver\n",
        "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance\n",
        "/sys/kernel/mm/memory_peers/nv_mem/version": "1.0\n",
        "/sys/module/nvidia_peermem/version": "570.86.10\n",
        "/sys/class/dmi/id/bios_version": "2.1\n",
        "/sys/kernel/iommu_groups/7/type": "DMA-FQ\n",
        "/etc/os-release": 'NAME="Ubuntu"\n',
    }
    gpu = next(path.rpartition("/")[0] for path, text in machine.files.items() if text == "0x26b9\n")
    machine.link(f"{gpu}/iommu_group", "/sys/kernel/iommu_groups/7")
    machine.link("/sys/devices/system/cpu/cpu0/cpufreq", "/sys/devices/system/cpu/cpufreq/policy0")
    snapshot = read(machine, tmp_path)
    for path, text in machine.files.items():
        assert snapshot.text(path) == text.strip(), path
    assert snapshot.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") == "performance"
    assert snapshot.text(f"{gpu}/iommu_group/type") == "DMA-FQ"


def test_of_devices_that_do_not_matter_only_the_identity_is_read(tmp_path: Path) -> None:
    machine = MachineFiles()
    serial = machine.function("/sys/devices/pci0000:00", "0000:00:16.0", ("0x8086", "0x1be0", "0x078000", "0x1"))
    snapshot = read(machine, tmp_path)
    assert {path.rpartition("/")[2] for path in snapshot.files if path.startswith(serial)} == {
        "class", "vendor", "device", "numa_node",
    }  # fmt: skip


def test_empty_gid_slots_are_not_shipped(tmp_path: Path) -> None:
    machine = reference_machine()
    port = next(path for path in machine.files if path.endswith("mlx5_0/ports/1/state")).rpartition("/")[0]
    machine.write(f"{port}/gids", {str(index): ":".join(["0000"] * 8) for index in range(4, 255)})
    machine.write(f"{port}/gids", {"255": "0000:0000:0000:0000:0000:ffff:0a01:00ff"})
    snapshot = read(machine, tmp_path)
    assert snapshot.names(f"{port}/gids") == ("0", "1", "2", "255", "3")


def test_a_port_without_any_gid_slot_is_one_whose_table_was_not_read(tmp_path: Path) -> None:
    """As in a recording that others made: seen through a look at it, it is the same as read from its files."""
    machine = reference_machine()
    port = next(path for path in machine.files if path.endswith("mlx5_0/ports/1/state")).rpartition("/")[0]
    machine.files = {path: text for path, text in machine.files.items() if not path.startswith(f"{port}/gid")}
    snapshot = replace(read(machine, tmp_path), host={"addresses": []})
    recorded = {one.device: one.gids_recorded for one in build(snapshot).rdma}
    assert (recorded.pop("mlx5_0"), set(recorded.values())) == (False, {True})


def test_functions_that_share_an_address_are_all_read_by_their_own_paths(tmp_path: Path) -> None:
    machine = reference_machine()
    snapshot = read(machine, tmp_path)
    assert len(build(snapshot).pci) == len(build(machine.snapshot()).pci)
    assert "/sys/class/net/lo" in snapshot.links and not snapshot.exists("/sys/class/net/bonding_masters")


def test_one_block_for_each_socket() -> None:
    blocks = [f"processor\t: {cpu}\nphysical id\t: {cpu // 2}\nmodel\t\t: 143" for cpu in range(4)]
    assert one_block_a_socket("\n\n".join(blocks) + "\n\n") == f"{blocks[0]}\n\n{blocks[2]}\n"
    assert one_block_a_socket("processor\t: 0\n\nprocessor\t: 1\n") == "processor\t: 0\n"
    assert one_block_a_socket("") == "\n"
