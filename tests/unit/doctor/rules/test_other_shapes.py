"""Rules on healthy machines of other shapes: virtual functions, storage cards, other link layers, other GPUs."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from tests.support.faults import fault
from tests.support.healthy_cluster import (
    TUNED_PATH,
    HealthyNode,
    cluster_of,
    configuration_space,
    dressed,
    healthy_node,
    healthy_nodes,
    tuned,
)
from tests.support.machine_files import SUB, MachineFiles, main_card, storage_card, virtual_functions
from tests.support.random_machines import Shape, healthy_machine, healthy_shapes
from tests.support.variants import bonded_rails, nested_node, on_root_ports
from tests.support.waiting import examples
from tests.unit.doctor.rules.test_inputs import bad, snapshot_of, through_xml, without_addresses

from orchestrator.doctor.netplan import lacking
from orchestrator.doctor.rules.support.registry import COSTLY, run_rules
from orchestrator.doctor.steps.recordings import Given, examine_given
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import Overrides
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import CpuModel, PathType, Topology
from orchestrator.protocol.severity import Severity
from orchestrator.topology.build import build
from orchestrator.topology.distance import gpu_groups, p2p_level
from orchestrator.topology.network import rails
from orchestrator.topology.pci import ConfigSpace


def costly(findings: tuple[Finding, ...]) -> list[Finding]:
    return [finding for finding in findings if finding.severity in COSTLY]


def of_rule(name: str, *nodes: HealthyNode) -> list[Finding]:
    found = run_rules(cluster_of({f"node{number}": node for number, node in enumerate(nodes)}))
    return [one for one in found if one.id == name]


def with_infiniband_rails(name: str, number: int) -> HealthyNode:
    """GPUs and two InfiniBand cards on root ports, beside an Ethernet card for storage."""
    return on_root_ports(name, number, link_layer="InfiniBand", storage=True)


def test_infiniband_rails_beside_an_ethernet_storage_card_are_no_fault() -> None:
    assert not of_rule("RAIL-LINK-LAYER", *(with_infiniband_rails(f"node{n}", n) for n in range(4)))


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_port_of_another_kind_than_its_peers_is_found(nodes: int) -> None:
    made = [with_infiniband_rails(f"node{n}", n) for n in range(nodes)]
    made[1].set_port("mlx5_2", link_layer="Ethernet")
    found = of_rule("RAIL-LINK-LAYER", *made)
    assert [(one.node, one.devices) for one in found] == [("node1", ("mlx5_2",))]


@pytest.mark.parametrize(
    ("written", "domains", "found"), [("1", 2, True), ("0", 2, False), (None, 2, False), ("1", 1, False)]
)
def test_dropping_cached_files_by_numa_domain_is_noted_where_there_are_several(
    written: str | None, domains: int, found: bool
) -> None:
    node, path = healthy_node(), "/proc/sys/vm/zone_reclaim_mode"
    del node.files[path]
    if written is not None:
        node.files[path] = f"{written}\n"
    for domain in range(domains, 2):
        node.remove(f"/sys/devices/system/node/node{domain}")
    notes = [one for one in of_rule("HOST-SETTING", node) if one.devices == ("zone_reclaim_mode",)]
    assert [(one.severity, one.fix) for one in notes] == (
        [(Severity.NOTE, "run `sudo sysctl -w vm.zone_reclaim_mode=0`")] if found else []
    )


def test_a_single_node_is_not_judged_against_itself() -> None:
    node = healthy_node()
    fault("port set to InfiniBand").breaks(node)
    assert not of_rule("RAIL-LINK-LAYER", node)


def test_a_slow_storage_card_on_one_node_is_no_slow_rail() -> None:
    nodes = healthy_nodes()
    for number, node in enumerate(nodes.values()):
        storage_card(node.machine, number=number)
    nodes["node1"].set_port("mlx5_20", rate="25 Gb/sec (1X EDR)")
    assert not of_rule("NODE-DIFFERS", *nodes.values())


def with_virtual_functions() -> dict[str, HealthyNode]:
    nodes = healthy_nodes()
    for node in nodes.values():
        virtual_functions(node.machine, node.key("0000:1c:00.0"), 4, bus=0x1C)
    return nodes


def test_nothing_is_expected_of_virtual_functions() -> None:
    assert costly(run_rules(cluster_of(with_virtual_functions()))) == []


def test_virtual_functions_that_the_inventory_names_are_judged() -> None:
    nodes = with_virtual_functions()
    for node in nodes.values():
        node.spec["overrides"] = Overrides(ib_hca="=mlx5_30,mlx5_0")
    found = costly(run_rules(cluster_of(nodes)))
    assert {one.id for one in found} == {"RDMA-PORT-DOWN"}
    assert {one.devices for one in found} == {("mlx5_30",)}


@pytest.mark.parametrize("read", [True, False])
def test_a_machine_of_another_makers_gpus_says_how_to_count_them_where_its_maker_was_read(read: bool) -> None:
    node = healthy_node()
    fault("GPUs of another vendor").breaks(node)
    snapshot = without_addresses(node.machine)
    files = {path: text if read or not path.endswith("/vendor") else "" for path, text in snapshot.files.items()}
    examination = examine_given(Given({"node0": replace(snapshot, files=files)}))
    hints = [one for one in examination.findings if one.id == "GPU-OTHER-MAKER"]
    assert not read or costly(examination.findings) == []
    assert [("--accelerator 1002:0302" in one.fix, len(one.devices)) for one in hints] == [(True, 8)] * read


MANAGEMENT = ("0x1000", "0x00b2", "0x010700", "0x0000")
EMULATED = ("0x104c", "0x8232", "0x060400", "0x0000")


def groups(*switches: int, ids: tuple[str, str, str, str] = SUB, managed: bool = False, guest: bool = False) -> str:
    """What GPU-GROUPS-UNEVEN says of a machine: 0 stands for a GPU on a root port, n for a switch with n of them."""
    machine = MachineFiles()
    machine.processors()
    for place, count in enumerate(switches):
        bus = 0x20 + 0x10 * place
        root = machine.root_port(bus, numa=0)
        above = machine.switch(root, bus + 1, ids=ids) if count else root
        for index in range(max(1, count)):
            machine.gpu(machine.downstream(above, bus + 2, index) if count else above, bus + 3 + index)
        if managed and count:
            machine.function(machine.downstream(above, bus + 2, 0x10), f"0000:{bus + 0xE:02x}:00.0", MANAGEMENT)
    main_card(machine, 0, bus=0x10)
    if guest:
        machine.files["/proc/cpuinfo"] += "flags\t\t: fpu vme hypervisor avx2\n"
    node = dressed(machine)
    node.spec["gpus"] = len(node.gpus)
    found = run_rules(cluster_of({"node0": node}))
    return "; ".join(one.title for one in found if one.id in ("GPU-GROUPS-UNEVEN", "PCIE-TREE-HIDDEN"))


def test_a_switchs_management_endpoint_is_no_card() -> None:
    assert groups(1, 1, 1, 1, managed=True) == groups(1, 1, 1, 1) == ""
    assert groups(2, 2, managed=True) == ""
    assert groups(1, 0, 0, 0, managed=True) == groups(1, 0, 0, 0) == "", "a switch on the GPU's own card"


def test_a_lone_gpu_behind_a_switch_with_slots_is_on_no_root_port() -> None:
    assert groups(3, 1) == "the GPUs are spread unevenly: 3 + 1 behind the switches"
    assert groups(3, 0) == "the GPUs are spread unevenly: 3 behind the switches, 1 on a root port"


def test_an_emulated_tree_is_not_judged() -> None:
    for switches in ((3, 1), (1, 1), (2, 0)):
        assert "unevenly" not in groups(*switches, ids=EMULATED, guest=True)


def test_a_recording_in_which_nvml_showed_fewer_gpus_than_the_bus_proves_nothing() -> None:
    node = healthy_node()
    del node.gpus[2:]
    some = {"node0": node.machine.snapshot(nvml={"devices": node.gpus}, host={})}
    (found,) = [one for one in examine_given(Given(some)).findings if one.id == "GPU-MISSING"]
    assert (found.severity, found.title.partition(":")[0]) == (Severity.UNKNOWN, "2 GPUs respond, 8 are needed")
    (live,) = of_rule("GPU-MISSING", node)
    assert live.severity is Severity.STOP


def test_tuned_configs_that_the_engine_ships_are_no_fault_and_nothing_asks_to_delete_one() -> None:
    node, folder = healthy_node(), TUNED_PATH.rpartition("/")[0]
    names = ("dtype=fp8_w8a8_down", "dtype=fp8_w8a8,block_shape=[64, 64]_down", "dtype=of_a_later_version")
    node.files.update({f"{folder}/E=8,N=64,device_name=NVIDIA_L40S,{name}.json": tuned() for name in names})
    assert "TUNED-CONFIGS" not in {one.id for one in run_rules(cluster_of({"node0": node}))}
    node.files[TUNED_PATH] = tuned(BLOCK_SIZE_K=128)
    (found,) = of_rule("TUNED-CONFIGS", node)
    assert "delete" not in found.fix and "tuning run" in found.fix


ALL_OFF = (("NCCL_P2P_DISABLE", "1"), ("NCCL_NET_GDR_LEVEL", "LOC"))


@pytest.mark.parametrize(
    ("also", "env", "wanted"),
    [
        ((), (), Severity.SLOW),
        (("ACS redirects above a GPU",), (), Severity.STOP),
        (("configuration space readable to root only",), (), Severity.SLOW),
        (("ACS redirects above a GPU",), ALL_OFF, Severity.SLOW),
        (("ACS redirects above a GPU",), ALL_OFF[:1], Severity.STOP),
        (("ACS redirects above a GPU", "GPUDirect RDMA missing"), ALL_OFF[:1], Severity.SLOW),
        (("ACS redirects above a GPU", "guest"), (), Severity.SLOW),
    ],
)
def test_a_translating_iommu_stops_what_is_planned_and_known_to_fail(
    also: tuple[str, ...], env: tuple[tuple[str, str], ...], wanted: Severity
) -> None:
    node = healthy_node()
    node.spec["overrides"] = Overrides(env=env)
    for name in ("IOMMU translating", *also):
        if name == "guest":
            node.files["/proc/cpuinfo"] += "flags\t\t: fpu vme hypervisor avx2\n"
        else:
            fault(name).breaks(node)
    (found,) = of_rule("IOMMU-TRANSLATING", node)
    assert found.severity is wanted
    assert ("silently wrong" in found.effect) is (wanted is Severity.STOP)
    unread = "configuration space readable to root only" in also
    assert ("could not be read" in found.effect) is unread
    assert ("GPUDirect RDMA" in found.effect) is (wanted is Severity.STOP or unread)


def test_each_port_gets_its_own_fix() -> None:
    nodes = healthy_nodes()
    fault("port without an address").breaks(nodes["node1"])
    nodes["node1"].set_port("mlx5_2", state="1: DOWN", phys_state="2: Polling")
    (found,) = [one for one in run_rules(cluster_of(nodes)) if one.id == "RDMA-PORT-DOWN"]
    cabled, addressed = found.fix.split("; mlx5_1: ")
    assert cabled.startswith("mlx5_2: plug the cable")
    assert addressed.startswith("give ens2f1np1 an address") and "cable" not in addressed


def test_a_gpu_without_a_near_card_joins_both_halves_into_one_group() -> None:
    """NCCL joins a GPU to any earlier one that it reaches: 8, where comparing with each group's first says 4 + 4."""
    node = healthy_node()
    node.machine.root_port(0x10, 3, numa=0)
    node.move(node.key("0000:1b:00.0"), "/sys/devices/pci0000:10/0000:10:03.0/0000:1b:00.0")
    topology = build(node.machine.snapshot())
    assert gpu_groups(topology, (2, 21, 5)).groups == (tuple(range(8)),)
    whole = build(healthy_node().machine.snapshot())
    assert gpu_groups(replace(whole, rdma=()), (2, 21, 5)).groups == (tuple(range(8)),)


def test_each_port_without_a_pci_function_has_a_place_of_its_own() -> None:
    machine = MachineFiles()
    for number in range(2):
        machine.interface(f"eth{number}")
        machine.address(f"eth{number}", f"10.{number}.0.1/24")
        machine.rdma(f"rxe{number}", "/sys/devices/virtual", f"eth{number}", ipv4=f"10.{number}.0.1/24")
    main_card(machine, 0)
    (node,) = cluster_of({"node0": dressed(machine)}).nodes
    assert [(place.card, place.port, port.device) for place, port in node.rail_places.items()] == [
        (1, 1, "rxe0"),
        (2, 1, "rxe1"),
    ]


def test_a_rail_that_is_a_bond_on_one_port_is_named_as_a_rail() -> None:
    node = healthy_node()
    bonded_rails(node)
    node.machine.write(f"{node.interface('ens3f0np0b')}/bonding_slave", {"mii_status": "down"})
    node.machine.write(f"{node.interface('ens9f1np1')}/bonding_slave", {"mii_status": "down"})
    rail, main = sorted(of_rule("BOND-SHORT", node), key=lambda one: one.devices, reverse=True)
    assert rail.devices == ("ens3f0np0", "ens3f0np0b") and "it is a rail" in rail.effect
    assert main.devices == ("bond0", "ens9f1np1") and "requests arrive over it" in main.effect


def test_a_narrow_slot_shows_in_nccls_file_beside_others_of_the_same_part() -> None:
    node = healthy_node()
    above = node.key("0000:19:00.0").split("/")[-2]
    node.write(above, max_link_speed="8.0 GT/s PCIe")  # of an idle GPU the file may show any
    assert bad(through_xml(snapshot_of(node))) == []
    node.write(above, max_link_width=8)
    (found,) = bad(through_xml(snapshot_of(node)))
    assert (found.id, found.devices) == ("PCIE-LINK-REDUCED", ("0000:19:00.0",))
    assert "GPU 1 at 0000:19:00.0 runs at x8, but supports x16" in found.title and "16 lanes" in found.fix


def on_vlans() -> dict[str, HealthyNode]:
    """Nodes whose rails have their addresses on VLANs, and TCP on that of a slow port of the board."""
    nodes = healthy_nodes()
    for node in nodes.values():
        machine, names = node.machine, ("ens2f0np0", "ens2f1np1", "ens3f0np0", "ens3f1np1")
        for rail, name in enumerate(names):
            machine.interface(f"{name}.7")
            machine.addresses[f"{name}.7"] = machine.addresses.pop(name)
            ndevs = {"2": f"{name}.7", "3": f"{name}.7"}
            machine.write(f"{node.port(f'mlx5_{rail}')}/gid_attrs/ndevs", ndevs)
        machine.interface("eno1.10", speed=1000)
        machine.addresses["eno1.10"] = machine.addresses.pop("bond0")
        node.lose_gids("mlx5_bond_0")
    return nodes


def test_rails_with_addresses_on_vlans_are_as_good_as_others() -> None:
    nodes = on_vlans()
    assert run_rules(whole := cluster_of(nodes)) == ()
    assert lacking(whole) == () and {tcp.interface for tcp in whole.tcp.values()} == {"eno1.10"}
    node = nodes["node1"]
    node.machine.addresses["ens2f1np1.7"] = []
    node.machine.address("ens2f1np1.7", "10.1.0.112/24")
    node.machine.write(f"{node.port('mlx5_1')}/gids", dict.fromkeys("23", f"{'0000:' * 5}ffff:0a01:0070"))
    (one,) = of_rule("RAILS-SHARE-SUBNET", node)
    assert one.devices == ("mlx5_0", "ens2f0np0.7", "mlx5_1", "ens2f1np1.7")
    node.lose_gids("mlx5_0")
    del node.machine.addresses["ens2f0np0.7"]
    (files,) = [one for one in lacking(cluster_of(nodes)) if one.node == "node1"]
    assert files.wanted == {} and "a VLAN has that of this rail" in files.open[0]


VIRTUAL = {f"mlx5_{number}" for number in range(30, 34)}
REFERENCE = Shape(2, 2, 4, 1, False, False, False, 2, "Ethernet", storage=False, virtual=0)


@settings(max_examples=examples(60), deadline=None)
@given(healthy_shapes())
@example(REFERENCE)
@example(replace(REFERENCE, bonded=True))
@example(Shape(2, 4, 2, 3, True, True, True, 2, "InfiniBand", storage=True, virtual=4))
def test_no_stop_and_no_slow_on_healthy_machines(shape: Shape) -> None:
    node = healthy_machine(shape)
    assert bad(examine_given(Given({"node0": snapshot_of(node)}))) == []
    assert bad(examine_given(Given({"node0": without_addresses(node.machine)}))) == []
    assert bad(through_xml(snapshot_of(node))) == []


@settings(max_examples=examples(15), deadline=None)
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


def spent(snapshots: list[Snapshot], size: int) -> float:
    cluster = {f"node{n}": replace(snapshots[n % 4], node=f"node{n}") for n in range(size)}
    began = time.process_time()
    examine_given(Given(cluster))
    return time.process_time() - began


def test_eight_times_the_nodes_cost_about_eight_times_as_much() -> None:
    snapshots = list(cluster_of(healthy_nodes()).snapshots.values())
    spent(snapshots, 4)
    small = min(spent(snapshots, 8) for _ in range(3))
    large = min(spent(snapshots, 64) for _ in range(2))
    assert large < small * 8 * 2.5


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


@pytest.mark.parametrize("size", [64, 256])
def test_a_space_that_ends_early_stays_unread(size: int) -> None:
    assert ConfigSpace(configuration_space(acs=REDIRECT)[:size]).acs_control is None


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
