"""RDMA ports: states, GID tables, net devices."""

from __future__ import annotations

from tests.support.machine_files import MachineFiles, reference_machine

from orchestrator.model.snapshot import Snapshot
from orchestrator.topology.build import build
from orchestrator.topology.rdma import natural, ports_by_card


def test_a_port_as_sysfs_shows_it() -> None:
    port = build(reference_machine().snapshot()).rdma[0]
    assert (port.device, port.port, port.name) == ("mlx5_0", 1, "mlx5_0:1")
    assert (port.state, port.phys_state, port.rate_gbps, port.link_layer) == ("ACTIVE", "LinkUp", 100.0, "Ethernet")
    assert (port.netdev, port.firmware, port.board) == ("ens2f0np0", "22.41.1000", "MT_0000000359")
    assert [(gid.index, gid.type, gid.ipv4) for gid in port.gids] == [
        (0, "IB/RoCE v1", None), (1, "RoCE v2", None), (2, "IB/RoCE v1", "10.1.0.11"), (3, "RoCE v2", "10.1.0.11"),
    ]  # fmt: skip


def test_ports_come_in_the_order_people_count() -> None:
    machine = MachineFiles()
    for number in (10, 2, 1, 0):
        (card,) = machine.nic(machine.root_port(0x10 + 2 * number), 0x11 + 2 * number, [f"eth{number}"])
        machine.rdma(f"mlx5_{number}", card, f"eth{number}")
    assert [port.device for port in build(machine.snapshot()).rdma] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_10"]
    assert sorted(["mlx5_bond_0", "mlx5_9"], key=natural) == ["mlx5_9", "mlx5_bond_0"]


def test_the_ports_of_a_card_are_one_card() -> None:
    cards = ports_by_card(build(reference_machine().snapshot()).rdma)
    assert [tuple(port.device for port in ports) for ports in cards.values()] == [
        ("mlx5_0", "mlx5_1"), ("mlx5_2", "mlx5_3"), ("mlx5_bond_0",),
    ]  # fmt: skip


def test_empty_and_broken_slots_of_a_gid_table_are_left_out() -> None:
    machine = MachineFiles()
    (card,) = machine.nic(machine.root_port(0x10), 0x11, ["eth0"])
    port = machine.rdma("mlx5_0", card, "eth0", ipv4="10.1.0.1/24") + "/ports/1"
    machine.write(f"{port}/gids", {"4": ":".join(["0000"] * 8), "5": "cut off", "x": "nonsense"})
    machine.errors[f"{port}/gid_attrs/types/3"] = "EINVAL"
    del machine.files[f"{port}/gid_attrs/types/3"]
    (found,) = build(machine.snapshot()).rdma
    assert [(gid.index, gid.type) for gid in found.gids] == [
        (0, "IB/RoCE v1"), (1, "RoCE v2"), (2, "IB/RoCE v1"), (3, ""),
    ]  # fmt: skip


def test_a_net_device_is_found_without_a_gid_table() -> None:
    machine = MachineFiles()
    (card,) = machine.nic(machine.root_port(0x10), 0x11, ["eth0"])
    folder = machine.rdma("mlx4_0", card, "eth0")
    machine.files = {path: text for path, text in machine.files.items() if "/gid" not in path}
    second = machine.write(f"{folder}/ports/2", {"state": "1: DOWN"})
    machine.interface("eth1", card)
    machine.write(f"{card}/net/eth0", {"dev_port": 0})
    machine.write(f"{card}/net/eth1", {"dev_port": 1})
    assert second.endswith("/ports/2")
    assert [(port.name, port.netdev) for port in build(machine.snapshot()).rdma] == [
        ("mlx4_0:1", "eth0"), ("mlx4_0:2", "eth1"),
    ]  # fmt: skip


def test_software_roce_has_no_card() -> None:
    folder = "/sys/devices/virtual/infiniband/rxe0"
    snapshot = Snapshot(
        node="n",
        taken_at=0.0,
        files={f"{folder}/ports/1/state": "4: ACTIVE\n", f"{folder}/ports/1/link_layer": "Ethernet\n"},
        links={"/sys/class/infiniband/rxe0": "../../devices/virtual/infiniband/rxe0"},
    )
    (port,) = build(snapshot).rdma
    assert (port.key, port.address, port.switch, port.active) == ("", "", "", True)
