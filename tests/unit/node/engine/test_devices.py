"""What /sys shows of a dead rank's devices: a GPU off the bus, ports without a link."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.healthy_cluster import healthy_node
from tests.support.machine_files import reference_machine
from tests.support.variants import bonded_rails

from orchestrator.node.engine.devices import look, word
from orchestrator.node.engine.kernel_words import DeadProcess, Devices
from orchestrator.protocol.planned import NodeNetwork

NETWORK = NodeNetwork(hca="=mlx5_0:1,mlx5_2:1", sockets=("bond0",))
PLACE = "00000000:9B:00.0"
GPU = "sys/devices/pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:04.0/0000:9b:00.0"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    reference_machine().put_below(tmp_path)
    (tmp_path / GPU / "config").write_bytes(bytes.fromhex("de10b926") + bytes(60))
    return tmp_path


def test_the_ways_and_the_network_of_a_rank(machine: Path) -> None:
    around = look(PLACE, NETWORK, str(machine))
    assert around.above == ("0000:99:04.0", "0000:98:00.0", "0000:97:01.0")
    assert dict(around.network) == {"bond0": "", "ens2f0np0": "mlx5_0", "ens3f0np0": "mlx5_2"}
    assert dict(around.cards) == {"0000:1c:00.0": "mlx5_0", "0000:9e:00.0": "mlx5_2"}
    assert around.gone == "" and around.down == {}


def test_a_gpu_that_reads_ones_or_is_not_there_is_gone(machine: Path) -> None:
    (machine / GPU / "config").write_bytes(b"\xff" * 64)
    around = look(PLACE, NETWORK, str(machine))
    assert around.gone == "/sys/bus/pci/devices/0000:9b:00.0/config reads ones"
    found = word(DeadProcess(pid=1, gpu=5, around=around, signal=9), log_unread=False)
    assert found is not None and (found.signature, found.text) == ("GPU-LOST", "GPU 5 fell off the bus")
    (machine / "sys/bus/pci/devices/0000:9b:00.0").unlink()
    assert look(PLACE, NETWORK, str(machine)).gone.endswith("does not exist")


def test_a_port_without_a_link_counts_where_the_kernels_log_is_closed(machine: Path) -> None:
    port = machine / "sys/devices/pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:10.0/0000:9e:00.0/net/ens3f0np0"
    (port / "carrier").write_text("0\n")
    around = look(PLACE, NETWORK, str(machine))
    assert list(around.down) == ["ens3f0np0"]
    dead = DeadProcess(pid=1, gpu=5, around=around, signal=6)
    found = word(dead, log_unread=True)
    assert found is not None and found.text == "the link of ens3f0np0 (mlx5_2) went down"
    assert word(dead, log_unread=False) is None
    assert word(replace(dead, signal=9), log_unread=True) is None
    assert word(replace(dead, explained=True), log_unread=True) is None


def test_a_bond_lives_as_long_as_one_of_its_ports(tmp_path: Path) -> None:
    """A rail that is a bond: one port without a link is no fault, the bond without one is."""
    node = healthy_node()
    bonded_rails(node)
    node.machine.put_below(tmp_path)
    (tmp_path / node.interface("ens3f0np0a").lstrip("/") / "carrier").write_text("0\n")
    around = look("", NETWORK, str(tmp_path))
    assert dict(around.network) == {"bond0": "", "ens2f0np0": "mlx5_0", "ens3f0np0": "mlx5_2"} and around.down == {}
    assert dict(around.cards) == {"0000:1c:00.0": "mlx5_0", "0000:9e:00.0": "mlx5_2"}
    (tmp_path / node.interface("ens3f0np0").lstrip("/") / "carrier").write_text("0\n")
    assert list(look("", NETWORK, str(tmp_path)).down) == ["ens3f0np0"]


@pytest.mark.parametrize(
    ("place", "hca"), [("", ""), ("nonsense", "^mlx5_0"), ("0000:ff:00.0:x", "=../../etc,mlx5_77")]
)
def test_what_nobody_named_is_not_looked_at(place: str, hca: str, machine: Path) -> None:
    assert look(place, NodeNetwork(hca=hca), str(machine)) == Devices()


def test_a_machine_without_a_bus_has_lost_nothing(tmp_path: Path) -> None:
    assert look(PLACE, NETWORK, str(tmp_path)).gone == ""
