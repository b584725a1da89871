"""Faults of machines whose switches nest: ACS on upper switches, P2P across switches, cards that are one level up."""

from __future__ import annotations

import pytest
from tests.support.healthy_cluster import HealthyNode, cluster_of, configuration_space
from tests.support.variants import nested_node

from orchestrator.doctor.rules.support.registry import run_rules
from orchestrator.model.finding import Finding
from orchestrator.model.topology import CpuModel, PathType, Topology
from orchestrator.topology.config_space import ConfigSpace
from orchestrator.topology.distance import p2p_level

REDIRECT = 0x1D
DOWNSTREAM = 6


def findings(node: HealthyNode) -> list[Finding]:
    return list(run_rules(cluster_of({"node0": node})))


@pytest.mark.parametrize("cards_on_top", [True, False])
def test_a_healthy_nested_node(cards_on_top: bool) -> None:
    assert findings(nested_node(cards_on_top=cards_on_top)) == []


@pytest.mark.parametrize(
    "port",
    [
        "0000:42:00.0",  # of the top switch, above a sub-switch
        "0000:42:04.0",
        "0000:42:10.0",  # of the top switch, above the card
        "0000:51:00.0",  # of a sub-switch, above a GPU
        "0000:a1:04.0",
    ],
)
def test_acs_is_judged_on_every_downstream_port_on_the_way(port: str) -> None:
    node = nested_node()
    node.config(port, kind=DOWNSTREAM, acs=REDIRECT)
    (found,) = findings(node)
    assert (found.id, found.devices) == ("ACS-REDIRECT", (port,))


@pytest.mark.parametrize("port", ["0000:40:01.0", "0000:37:01.0"])
def test_acs_of_root_ports_and_away_from_the_gpus_costs_nothing(port: str) -> None:
    node = nested_node()
    node.config(port, kind=4, acs=REDIRECT)
    assert findings(node) == []


@pytest.mark.parametrize("at", [0x100, 0x1FC, 0x220, 0x5A0, 0xF24])
@pytest.mark.parametrize("control", [REDIRECT, 0x0400])
def test_acs_at_the_end_of_a_space_whose_zeros_were_trimmed(at: int, control: int) -> None:
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 1 << 16 | (at if at > 0x100 else 0) << 20).to_bytes(4, "little")
    space[at : at + 4] = (0x000D | 1 << 16).to_bytes(4, "little")
    space[at + 6 : at + 8] = control.to_bytes(2, "little")
    trimmed = bytes(space[: max(512, len(bytes(space).rstrip(b"\0")))])
    assert ConfigSpace(trimmed).acs_control == control
    assert ConfigSpace(bytes(space)).acs_control == control


def test_a_space_that_ends_at_64_bytes_stays_unread() -> None:
    assert ConfigSpace(configuration_space(acs=REDIRECT)[:64]).acs_control is None
    assert ConfigSpace(configuration_space(acs=REDIRECT)[:256]).acs_control is None


@pytest.mark.parametrize(
    ("one", "other", "path"), [(0, "1", "PIX"), (0, "2", "PXB"), (1, "3", "PXB"), (0, "4", None), (3, "7", None)]
)
def test_p2p_is_judged_by_path(one: int, other: str, path: str | None) -> None:
    node = nested_node()
    node.gpus[one]["p2p"][other] = {"read": 1, "write": 1}
    found = findings(node)
    if path is None:
        assert found == []
    else:
        assert [finding.id for finding in found] == ["GPU-P2P-OFF"]
        assert f"1 pair of GPUs ({path})" in found[0].title


@pytest.mark.parametrize(
    ("vendor", "gpus", "version", "level"),
    [
        ("GenuineIntel", 8, (2, 30, 7), PathType.PXB),
        ("GenuineIntel", 2, (2, 21, 5), PathType.PXB),
        ("AuthenticAMD", 8, (2, 30, 7), PathType.PXB),
        ("AuthenticAMD", 2, (2, 30, 7), PathType.SYS),
        ("AuthenticAMD", 8, (2, 21, 5), PathType.SYS),
    ],
)
def test_how_far_nccl_goes_directly(vendor: str, gpus: int, version: tuple[int, ...], level: PathType) -> None:
    node = cluster_of({"node0": nested_node()}).topologies["node0"]
    topology = Topology(node="x", cpu=CpuModel(vendor=vendor), gpus=node.gpus[:gpus])
    assert p2p_level(topology, version) is level


def test_the_common_switch_is_named_where_a_branch_has_no_card() -> None:
    node = nested_node()
    for device in ("mlx5_2", "mlx5_3"):
        node.remove(node.port(device).removesuffix("/ports/1"))
    for index in (0, 1):
        node.remove(f"/sys/class/net/ens3f{index}np{index}")
        node.machine.addresses.pop(f"ens3f{index}np{index}")
        node.remove(node.key(f"0000:88:00.{index}"))
    (found,) = findings(node)
    assert (found.id, found.devices) == ("NIC-MISSING", ("0000:81:00.0",))


def test_a_card_that_left_its_branch_is_misplaced() -> None:
    node = nested_node()
    node.machine.root_port(0xD0, 3, numa=1)
    for function in (0, 1):
        node.move(node.key(f"0000:88:00.{function}"), f"/sys/devices/pci0000:d0/0000:d0:03.0/0000:d1:00.{function}")
    for path in [path for path in node.links if path.startswith("/sys/bus/pci/devices/0000:88:00")]:
        node.links[path.replace("88:00", "d1:00")] = node.links.pop(path).replace("88:00", "d1:00")
    found = [finding for finding in findings(node) if finding.severity.value == "slow"]
    assert [(finding.id, finding.devices[-1]) for finding in found] == [("NIC-NOT-UNDER-SWITCH", "0000:d1:00")]
    assert "4 of 8 GPUs have no nearby card" in found[0].effect
