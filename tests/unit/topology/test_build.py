"""The articles' cluster, correct and faulty, from files that the lab did not write."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.machine_files import MIB, reference_machine

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import PathType
from orchestrator.topology.build import BuildOptions, build
from orchestrator.topology.distance import Distances
from orchestrator.topology.draw import summary, topology_json, tree
from orchestrator.topology.network import rails, tcp_interface


def test_a_right_node_has_two_switches_with_four_gpus_and_a_dual_port_card_each() -> None:
    topology = build(reference_machine().snapshot())
    assert [switch.address for switch in topology.switches] == ["0000:16:00.0", "0000:98:00.0"]
    assert [switch.numa_node for switch in topology.switches] == [0, 1]
    for half, switch in enumerate(topology.switches):
        gpus = [gpu for gpu in topology.gpus if gpu.switch == switch.key]
        ports = [port for port in topology.rdma if port.switch == switch.key]
        assert [gpu.index for gpu in gpus] == [4 * half, 4 * half + 1, 4 * half + 2, 4 * half + 3]
        assert [port.device for port in ports] == [f"mlx5_{2 * half}", f"mlx5_{2 * half + 1}"]
        assert len({port.address.rpartition(".")[0] for port in ports}) == 1


def test_distances_on_a_right_node() -> None:
    topology = build(reference_machine().snapshot())
    distances = Distances(topology)
    port = {port.device: port.key for port in topology.rdma}
    gpu = {gpu.index: gpu.key for gpu in topology.gpus}
    assert distances.path_type(gpu[0], gpu[3]) is PathType.PIX
    assert distances.path_type(gpu[0], port["mlx5_1"]) is PathType.PIX
    assert distances.path_type(gpu[0], gpu[4]) is PathType.SYS
    assert distances.path_type(gpu[0], port["mlx5_bond_0"]) is PathType.PHB
    assert distances.path_type(gpu[4], port["mlx5_bond_0"]) is PathType.SYS
    assert distances.path_type(port["mlx5_0"], port["mlx5_1"]) is PathType.LOC


def test_the_wrong_node_has_one_card_on_a_root_port_and_its_ports_down() -> None:
    topology = build(reference_machine(right=False).snapshot())
    ports = {port.device: port for port in topology.rdma}
    assert ports["mlx5_0"].switch and not ports["mlx5_2"].switch
    assert [port.device for port in topology.rdma if port.active] == ["mlx5_4"]  # the main card's, for TCP
    assert [port.phys_state for port in topology.rdma].count("Disabled") == 5
    slots = {device.address: device.slot for device in topology.pci if device.slot}
    assert slots == {"0000:1c:00.0": "2", "0000:1c:00.1": "2", "0000:c1:00.0": "6", "0000:c1:00.1": "6"}
    gpu = next(gpu for gpu in topology.gpus if gpu.index == 4)
    assert Distances(topology).path_type(gpu.key, ports["mlx5_2"].key) is PathType.PHB


def test_gpus_carry_what_nvml_says_and_what_sysfs_says() -> None:
    gpu = build(reference_machine().snapshot()).gpus[5]
    assert (gpu.index, gpu.address, gpu.name) == (5, "0000:9b:00.0", "NVIDIA L40S")
    assert gpu.memory_total == 46068 * MIB and gpu.memory_used == 0
    assert (gpu.link.speed_gts, gpu.link_max.speed_gts, gpu.link.width) == (2.5, 16.0, 16)


def test_processors_and_interfaces() -> None:
    topology = build(reference_machine().snapshot())
    assert [(domain.node, domain.cpulist) for domain in topology.numa] == [(0, "0-31"), (1, "32-63")]
    assert topology.numa[0].memory_bytes == 536870912 * 1024
    assert (topology.cpu.vendor, topology.cpu.family, topology.cpu.model) == ("GenuineIntel", 6, 143)
    bond = topology.interface("bond0")
    slave = topology.interface("ens9f0np0")
    assert bond is not None and bond.slaves == ("ens9f0np0", "ens9f1np1") and bond.ipv4 == ("10.0.0.11/24",)
    assert slave is not None and slave.bond == "bond0" and slave.address == "0000:38:00.0" and slave.physical


def test_nothing_at_all_is_an_empty_topology() -> None:
    topology = build(Snapshot(node="bare", taken_at=0.0, files={}))
    assert (topology.node, topology.pci, topology.gpus, topology.interfaces) == ("bare", (), (), ())


WHOLE = reference_machine().snapshot()
WRONG = reference_machine("node1", 1, right=False).snapshot()
FILES, LINKS = sorted(WHOLE.files), sorted(WHOLE.links)

NOISE = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["", "-1", "0x", "0xffffff", "0x030200", "0x060400", "4294967296", "Unknown", "\udc80\x1b[2J", "9" * 5000,
         "99.9 GT/s PCIe", "4: ACTIVE", "1e9 Gb/sec", "0000:0000:0000:0000:0000:ffff:0a01:000b", "eth0 eth0 eth0"]
    ),
)  # fmt: skip
PATHS = st.one_of(
    st.sampled_from(FILES + LINKS),
    st.sampled_from([
        "/sys/devices/pci0000:15/0000:15:01.0", "/sys/devices/pci10000:00/10000:00:00.0/class",
        "/sys/devices/pci0000:15/0000:43:00.0/class", "/sys/devices/pci0000:97/0000:43:00.0/class",
        "/sys/class/net/eth9/mtu", "/sys/class/infiniband/x/ports/1/gids/0", "/sys/class/infiniband/x/ports/0/state",
        "/sys/devices/system/node/node٣/cpulist", "/sys/bus/pci/slots/0/address", "/", "relative",
    ]),
)  # fmt: skip
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 9), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["devices", "index", "memory", "link", "errors",
                                                                     "pci_bus_id", "addresses", "eth0"]), inner)
    ),
    max_leaves=8,
)  # fmt: skip


def everything(snapshot: Snapshot) -> None:
    """Everything that is made from one snapshot, beside a complete one."""
    topology = build(snapshot, BuildOptions())
    distances = Distances(topology)
    keys = [gpu.key for gpu in topology.gpus] + [port.key for port in topology.rdma]
    for one in keys[:4]:
        for other in keys:
            assert distances.path_type(one, other) == distances.path_type(other, one)
    tcp = tcp_interface({"broken": topology, "whole": build(WRONG)})
    assert tree(topology, tcp.get("broken")) and summary(topology)
    assert {rail.port for rail in rails(topology)} <= set(topology.rdma)
    json.dumps(topology_json(topology, tcp.get("broken")))


def test_a_whole_one() -> None:
    everything(WHOLE)
    everything(WRONG)


@settings(max_examples=60)
@given(st.data())
def test_mutated(data: st.DataObject) -> None:
    files, links = dict(WHOLE.files), dict(WHOLE.links)
    for path in data.draw(st.lists(st.sampled_from(FILES), max_size=30)):
        files.pop(path, None)
    for path in data.draw(st.lists(st.sampled_from(LINKS), max_size=10)):
        links.pop(path, None)
    files |= data.draw(st.dictionaries(PATHS, NOISE, max_size=15))
    links |= data.draw(st.dictionaries(PATHS, PATHS, max_size=5))
    everything(Snapshot(node="broken", taken_at=0.0, files=files, links=links, nvml=WHOLE.nvml, host=WHOLE.host))


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(["devices", "driver", "error"]), JSON), st.dictionaries(
    st.sampled_from(["addresses", "hostname"]), JSON))  # fmt: skip
def test_nonsense_from_nvml_and_host(nvml: dict[str, object], host: dict[str, object]) -> None:
    everything(Snapshot(node="broken", taken_at=0.0, files=WHOLE.files, links=WHOLE.links, nvml=nvml, host=host))


def test_a_tree_cut_off_at_every_depth() -> None:
    for kept in range(0, len(FILES), 25):
        files = {path: WHOLE.files[path] for path in FILES[:kept]}
        everything(Snapshot(node="cut", taken_at=0.0, files=files, links=WHOLE.links, nvml=WHOLE.nvml))


def test_texts_cut_off_in_the_middle() -> None:
    files = {path: text[: len(text) // 2] for path, text in WHOLE.files.items()}
    everything(Snapshot(node="cut", taken_at=0.0, files=files, links=WHOLE.links, nvml=WHOLE.nvml, host=WHOLE.host))


def test_links_that_lead_in_circles() -> None:
    links = dict.fromkeys(WHOLE.links, ".")
    links |= {"/sys/class/net": "/sys/class/net2", "/sys/class/net2": "/sys/class/net"}
    everything(Snapshot(node="round", taken_at=0.0, files=WHOLE.files, links=links, nvml=WHOLE.nvml))
