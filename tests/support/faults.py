"""Every readable fault of one node in four: one function per fault, with the findings it must cause.

The table is the proof of the rules (tests/unit/doctor/rules); the reference of findings has what `doctor` says of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.support.healthy_cluster import KERNELS, SITE, TILES, TUNED, TUNED_PATH, UNLIMITED, VENV, HealthyNode, tuned
from tests.support.variants import guest

from orchestrator.model.inventory import Overrides
from orchestrator.protocol.looks import Outcome, Trial
from orchestrator.protocol.severity import Severity

STOP, SLOW, NOTE, UNKNOWN = Severity.STOP, Severity.SLOW, Severity.NOTE, Severity.UNKNOWN
GIB = 1 << 30
ODD = "node2"
"""The node that is broken."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    says:    the finding's id
    devices: what its finding must name, in order
    also:    ids of further findings on the same node that follow from it
    """

    name: str
    breaks: Callable[[HealthyNode], None]
    says: str
    severity: Severity
    devices: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = ()


def _package(name: str, old: str, new: str) -> Callable[[HealthyNode], None]:
    """Another version of a package in the stack's environment."""

    def breaks(node: HealthyNode) -> None:
        text = node.files.pop(f"{SITE}/{name}-{old}.dist-info/WHEEL")
        node.files[f"{SITE}/{name}-{new}.dist-info/WHEEL"] = text

    return breaks


def _no_packages(node: HealthyNode) -> None:
    for path in [path for path in node.files if ".dist-info/" in path]:
        del node.files[path]


def _no_stack(node: HealthyNode) -> None:
    for path in [path for path in node.files if path.startswith(VENV)]:
        del node.files[path]
    node.host["stack"] = {**node.host["stack"], "python": False}


def _card_in_a_root_port_slot(node: HealthyNode) -> None:
    node.machine.root_port(0xC0, 3, numa=1)
    for function in (0, 1):
        old = node.key(f"0000:9e:00.{function}")
        node.move(old, f"/sys/devices/pci0000:c0/0000:c0:03.0/0000:c1:00.{function}")
    node.machine.write("/sys/bus/pci/slots/6", {"address": "0000:c1:00"})
    for path in [path for path in node.links if path.startswith("/sys/bus/pci/devices/0000:9e:00")]:
        node.links[path.replace("9e:00", "c1:00")] = node.links.pop(path).replace("9e:00", "c1:00")


def _gpu_on_a_root_port(node: HealthyNode) -> None:
    node.machine.root_port(0xC0, 3, numa=1)
    node.move(node.key("0000:9d:00.0"), "/sys/devices/pci0000:c0/0000:c0:03.0/0000:9d:00.0")


def _fifth_gpu_behind_one_switch(node: HealthyNode) -> None:
    below = node.machine.downstream(node.key("0000:16:00.0"), 0x17, 0x14)
    node.move(node.key("0000:9d:00.0"), f"{below}/0000:9d:00.0")
    node.machine.write(f"{below}/0000:9d:00.0", {"numa_node": 0})
    node.config("0000:17:14.0", kind=6, bus=0x9D, acs=0)


def _port_down(node: HealthyNode) -> None:
    node.set_port("mlx5_1", state="1: DOWN", phys_state="3: Disabled")
    node.machine.write(node.interface("ens2f1np1"), {"operstate": "down", "carrier": 0})
    node.lose_gids("mlx5_1")


def _port_without_address(node: HealthyNode) -> None:
    node.lose_gids("mlx5_1")
    del node.machine.addresses["ens2f1np1"]


def _roce_v1_only(node: HealthyNode) -> None:
    for index in ("1", "3"):
        node.files[f"{node.port('mlx5_1')}/gid_attrs/types/{index}"] = "IB/RoCE v1\n"


def _no_port_left(node: HealthyNode) -> None:
    for device in ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"):
        node.set_port(device, state="1: DOWN", phys_state="2: Polling")
        node.lose_gids(device)


def _spare_port_down(node: HealthyNode) -> None:
    """The main card without a bond: one port carries TCP, the other has no link."""
    node.remove(node.interface("bond0"))
    node.machine.addresses["ens9f0np0"] = node.machine.addresses.pop("bond0")
    for slave in ("ens9f0np0", "ens9f1np1"):
        node.remove(f"{node.interface(slave)}/bonding_slave")
        del node.links[f"{node.interface(slave)}/master"]
    node.remove(node.port("mlx5_bond_0").removesuffix("/ports/1"))
    node.machine.rdma("mlx5_4", node.key("0000:38:00.0"), "ens9f0np0", ipv4="10.0.0.13")
    node.machine.rdma("mlx5_5", node.key("0000:38:00.1"), "ens9f1np1", up=False)
    node.remove("/sys/class/infiniband_verbs/uverbs4")
    for device in ("mlx5_4", "mlx5_5"):
        node.machine.write(f"/sys/class/infiniband_verbs/uverbs{device[-1]}", {"ibdev": device})
    node.host["devices"].append("/dev/infiniband/uverbs5")


def _card_without_driver(node: HealthyNode) -> None:
    for device in ("mlx5_2", "mlx5_3"):
        node.remove(node.port(device).removesuffix("/ports/1"))


def _card_gone(node: HealthyNode) -> None:
    _card_without_driver(node)
    for index in (0, 1):
        node.remove(f"/sys/class/net/ens3f{index}np{index}")
        node.machine.addresses.pop(f"ens3f{index}np{index}")
        node.remove(node.key(f"0000:9e:00.{index}"))


def _names_swapped(node: HealthyNode) -> None:
    pairs = {"mlx5_0": "mlx5_2", "mlx5_1": "mlx5_3", "mlx5_2": "mlx5_0", "mlx5_3": "mlx5_1"}
    for table in (node.files, node.links):
        moved = {path: value for path, value in table.items() if "/infiniband/mlx5_" in path and "bond" not in path}
        for path in moved:
            del table[path]
        for path, value in moved.items():
            old = next(name for name in pairs if f"/infiniband/{name}" in path)
            table[path.replace(old, pairs[old])] = value.replace(old, pairs[old])


def _addresses_swapped(node: HealthyNode) -> None:
    one, other = "ens2f0np0", "ens3f0np0"
    addresses = node.machine.addresses
    addresses[one], addresses[other] = addresses[other], addresses[one]
    for index in ("2", "3"):
        first, second = (f"{node.port(device)}/gids/{index}" for device in ("mlx5_0", "mlx5_2"))
        node.files[first], node.files[second] = node.files[second], node.files[first]


def _vlans_swapped(node: HealthyNode) -> None:
    _addresses_swapped(node)
    for device, name in (("mlx5_0", "ens2f0np0"), ("mlx5_2", "ens3f0np0")):
        node.machine.addresses[f"{name}.7"] = node.machine.addresses.pop(name)
        node.machine.write(f"{node.port(device)}/gid_attrs/ndevs", {"2": f"{name}.7", "3": f"{name}.7"})


def _rails_in_one_subnet(node: HealthyNode) -> None:
    for name, last in (("ens2f0np0", 13), ("ens2f1np1", 113)):
        node.machine.addresses[name] = []
        node.machine.address(name, f"10.1.0.{last}/24")
    for index in ("2", "3"):
        node.files[f"{node.port('mlx5_1')}/gids/{index}"] = "0000:0000:0000:0000:0000:ffff:0a01:0071\n"


def _iommu(node: HealthyNode) -> None:
    for path in node.files:
        if path.startswith("/sys/kernel/iommu_groups/"):
            node.files[path] = "DMA-FQ\n"


def _driver_unread(node: HealthyNode) -> None:
    node.remove("/sys/module/nvidia_peermem")
    node.remove("/proc/driver/nvidia")


def _unprivileged(node: HealthyNode) -> None:
    for path in node.files:
        if path.endswith("/config"):
            node.files[path] = node.files[path][:128]


def _hypervisor_without_ats(node: HealthyNode) -> None:
    node.files["/proc/cpuinfo"] += "flags\t\t: fpu vme hypervisor avx2\n"
    for card in ("0000:1c:00", "0000:9e:00"):
        for function in (0, 1):
            node.config(f"{card}.{function}", ats=0)


def _in_use(node: HealthyNode) -> None:
    node.gpus[3]["memory"]["used"] = 30 * GIB
    node.gpus[3]["processes"] = [{"pid": 4711, "used_bytes": 30 * GIB}]


def _numa_of_all(value: int) -> Callable[[HealthyNode], None]:
    def change(node: HealthyNode) -> None:
        for path in node.files:
            if path.endswith("/numa_node"):
                node.files[path] = f"{value}\n"

    return change


def _other_network(node: HealthyNode) -> None:
    node.machine.addresses["bond0"] = []
    node.machine.address("bond0", "10.9.9.13/24")
    for name in ("ens2f0np0", "ens2f1np1", "ens3f0np0", "ens3f1np1"):
        node.machine.addresses.pop(name)
    for device in ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"):
        node.lose_gids(device)


def _set(change: Callable[[HealthyNode], object]) -> Callable[[HealthyNode], None]:
    """A change that fits in one expression."""

    def apply(node: HealthyNode) -> None:
        change(node)

    return apply


def _no_rdma(node: HealthyNode) -> None:
    for table in (node.files, node.links):
        for path in [path for path in table if "/infiniband" in path]:
            del table[path]


def _card(**values: object) -> Callable[[HealthyNode], None]:
    """Both functions of the first RDMA card."""

    def change(node: HealthyNode) -> None:
        for function in (0, 1):
            node.write(f"0000:1c:00.{function}", **values)

    return change


def _narrow_slot(node: HealthyNode) -> None:
    _card(current_link_width=8)(node)
    node.write("0000:17:10.0", max_link_width=8, current_link_width=8)


def _old_gpus(node: HealthyNode) -> None:
    for bus in range(0x18, 0x1C):
        node.write(f"0000:{bus:02x}:00.0", max_link_speed="8.0 GT/s PCIe")


def _silent_driver(node: HealthyNode) -> None:
    node.nvml["error"] = "NVMLError_Unknown: Unknown Error"
    node.gpus.clear()


def _hung_driver(node: HealthyNode) -> None:
    _silent_driver(node)
    line = "3,1201,73000,-;NVRM: Xid (PCI:0000:9b:00): 119, pid=4711, Timeout waiting for RPC from GSP!"
    node.host.update(kernel_log={"xid": [line]})


def _gpus_of_another_maker(node: HealthyNode) -> None:
    for path in [path for path, text in node.files.items() if path.endswith("/vendor") and text == "0x10de\n"]:
        node.files[path] = "0x1002\n"
    node.gpus.clear()


def _recorded_by_others(node: HealthyNode) -> None:
    node.gpus.clear()
    node.nvml["error"] = "not recorded"


def _lost_gpu(node: HealthyNode) -> None:
    node.machine.devices[2] = {"index": 2, "errors": {"nvmlDeviceGetHandleByIndex": "GPU is lost"}}


def _disk(*places: str, **values: object) -> Callable[[HealthyNode], None]:
    return _set(lambda node: [node.host["disks"][place].update(values) for place in places])


def _gpu(index: int, **values: object) -> Callable[[HealthyNode], None]:
    return _set(lambda node: node.gpus[index].update(values))


def _trial(source: str, target: str, outcome: Outcome, **changes: object) -> Trial:
    whole = Trial(
        source=source, target=target, address="10.0.0.13", port=5000, kind="tcp", side="tcp", outcome=outcome, ms=0.2
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def trials(bad: Outcome, **only: object) -> tuple[Trial, ...]:
    """Trials between all four nodes, on two ports, with two datagram sizes; those of ODD that match `only` fail."""
    kinds: list[dict[str, object]] = [
        {"kind": "tcp", "port": 5000},
        {"kind": "tcp", "port": 41234},
        {"kind": "mtu", "port": 40000, "size": 64},
        {"kind": "mtu", "port": 40000, "size": 1500},
    ]
    names = [f"node{number}" for number in range(4)]
    made = []
    for source in names:
        for target in (name for name in names if name != source):
            for kind in kinds:
                matches = all(kind.get(key) == value for key, value in only.items() if key != "inbound")
                concerned = target == ODD or (source == ODD and not only.get("inbound"))
                outcome = bad if matches and concerned else Outcome.OPEN
                made.append(_trial(source, target, outcome, **kind))
    return tuple(made)


def across(*closed: str) -> tuple[Trial, ...]:
    """Trials from every rail port to the other card's ports on other nodes; those to or from `closed` nodes fail."""
    names, halves = [f"node{number}" for number in range(4)], (("mlx5_0", "mlx5_1"), ("mlx5_2", "mlx5_3"))
    return tuple(
        _trial(source, target, Outcome.UNREACHABLE if {source, target} & set(closed) else Outcome.OPEN,
               kind="mtu", size=64, side=side, far=far)
        for source in names for target in names if source != target
        for here, there in (halves, halves[::-1]) for side in here for far in there
    )  # fmt: skip


FAULTS = (
    Fault("card in a root-port slot", _card_in_a_root_port_slot, "NIC-NOT-UNDER-SWITCH", SLOW,
          ("mlx5_2", "mlx5_3", "0000:c1:00"), ("NODE-DIFFERS",)),
    Fault("card not plugged in", _card_gone, "NIC-MISSING", SLOW, ("0000:98:00.0",), ("NODE-DIFFERS",)),
    Fault("card without its driver", _card_without_driver, "NIC-MISSING", SLOW, ("0000:9e:00.0", "0000:9e:00.1"),
          ("NODE-DIFFERS",)),
    Fault("GPU on a root port", _gpu_on_a_root_port, "GPU-GROUPS-UNEVEN", SLOW, ("0000:9d:00.0",), ("NODE-DIFFERS",)),
    Fault("five GPUs behind one switch", _fifth_gpu_behind_one_switch, "GPU-GROUPS-UNEVEN", SLOW, ("0000:16:00.0",),
          ("NODE-DIFFERS",)),
    Fault("port without a link", _port_down, "RDMA-PORT-DOWN", SLOW, ("mlx5_1",)),
    Fault("no RDMA device at all", _no_rdma, "TRANSPORT-TCP", SLOW, also=("NODE-DIFFERS", "NIC-MISSING")),
    Fault("all RDMA ports without a link", _no_port_left, "TRAFFIC-ON-TCP", SLOW, ("bond0",), ("RDMA-PORT-DOWN",)),
    Fault("second port of the main card without a link", _spare_port_down, "RDMA-PORT-DOWN", NOTE, ("mlx5_5",)),
    Fault("port without an address", _port_without_address, "RDMA-PORT-UNCONFIGURED", SLOW, ("mlx5_1", "ens2f1np1")),
    Fault("address without a GID", _set(lambda n: n.lose_gids("mlx5_1")), "RDMA-PORT-UNCONFIGURED", SLOW,
          ("mlx5_1", "ens2f1np1")),
    Fault("RoCE v1 only", _roce_v1_only, "RDMA-PORT-UNCONFIGURED", SLOW, ("mlx5_1", "ens2f1np1")),
    Fault("port set to InfiniBand", _set(lambda n: n.set_port("mlx5_1", link_layer="InfiniBand")), "RAIL-LINK-LAYER",
          SLOW, ("mlx5_1",)),
    Fault("two cables swapped", _addresses_swapped, "RAIL-CROSSED", SLOW,
          ("mlx5_0", "ens2f0np0", "mlx5_2", "ens3f0np0")),
    Fault("two VLANs swapped", _vlans_swapped, "RAIL-CROSSED", SLOW, ("mlx5_0", "ens2f0np0", "mlx5_2", "ens3f0np0")),
    Fault("port at 25 Gb/s", _set(lambda n: n.set_port("mlx5_1", rate="25 Gb/sec (1X EDR)")), "NODE-DIFFERS", SLOW,
          ("speed of the RDMA ports",)),
    Fault("RDMA devices with a different name order", _names_swapped, "RDMA-NAMES-DIFFER", SLOW,
          ("mlx5_2", "mlx5_3", "mlx5_0", "mlx5_1")),
    Fault("two rails in one subnet", _rails_in_one_subnet, "RAILS-SHARE-SUBNET", NOTE,
          ("mlx5_0", "ens2f0np0", "mlx5_1", "ens2f1np1"), ("RAIL-CROSSED",)),
    Fault("rail with a small MTU", _set(lambda n: n.machine.write(n.interface("ens2f1np1"), {"mtu": 1500})),
          "RAIL-MTU", SLOW, ("mlx5_1", "ens2f1np1")),
    Fault("rail with another MTU than its peers",
          _set(lambda n: n.machine.write(n.interface("ens2f1np1"), {"mtu": 4500})), "RAIL-MTU", SLOW,
          ("mlx5_1", "ens2f1np1")),
    Fault("packets lost on a rail",
          _set(lambda n: n.machine.write(f"{n.port('mlx5_1')}/hw_counters", {"out_of_sequence": 900_000})),
          "RDMA-LOSSES", SLOW, ("mlx5_1", "ens2f1np1")),
    Fault("link errors on a rail", _set(lambda n: n.machine.write(f"{n.port('mlx5_1')}/counters",
          {"symbol_error": 4000})), "RDMA-LOSSES", NOTE, ("mlx5_1", "ens2f1np1")),
    Fault("congestion notifications on a rail", _set(lambda n: n.machine.write(f"{n.port('mlx5_1')}/hw_counters",
          {"rp_cnp_handled": 4_000_000})), "RDMA-CONGESTED", NOTE, ("mlx5_1", "ens2f1np1")),
    Fault("pause frames on a rail", _set(lambda n: n.machine.write(f"{n.port('mlx5_1')}/hw_counters",
          {"rx_prio3_pause": 5_000_000})), "RDMA-CONGESTED", NOTE, ("mlx5_1", "ens2f1np1")),
    Fault("rail lossless for a priority that NCCL does not use",
          _set(lambda n: n.host["flow_control"].update({"ens2f1np1": "0808" + "00" * 132})), "LOSSLESS-UNMARKED", NOTE,
          ("mlx5_1", "ens2f1np1")),
    Fault("no uverbs device file", _set(lambda n: n.host["devices"].remove("/dev/infiniband/uverbs1")),
          "RDMA-NO-DEVICE-FILE", STOP, ("mlx5_1",)),
    Fault("no libibverbs", _set(lambda n: n.host.update(libibverbs=False)), "RDMA-NO-DEVICE-FILE", STOP,
          ("libibverbs.so.1",)),
    Fault("slave of the bond down",
          _set(lambda n: n.machine.write(f"{n.interface('ens9f1np1')}/bonding_slave", {"mii_status": "down"})),
          "BOND-SHORT", SLOW, ("bond0", "ens9f1np1")),
    Fault("slave of the bond in another aggregator",
          _set(lambda n: n.machine.write(f"{n.interface('ens9f1np1')}/bonding_slave", {"ad_aggregator_id": 2})),
          "BOND-SHORT", SLOW, ("bond0", "ens9f1np1")),
    Fault("GPUDirect RDMA missing", _set(lambda n: n.remove("/sys/module/nvidia_peermem")), "GDR-MISSING", SLOW),
    Fault("driver's kind unreadable", _driver_unread, "GDR-MISSING", UNKNOWN),
    Fault("ACS redirects above a GPU",
          _set(lambda n: n.config("0000:99:04.0", kind=6, bus=0x9B, acs=0x5D)), "ACS-REDIRECT", SLOW,
          ("0000:99:04.0",)),
    Fault("configuration space readable to root only", _unprivileged, "ACS-REDIRECT", UNKNOWN,
          also=("PCIE-SETTINGS",)),
    Fault("IOMMU translating", _iommu, "IOMMU-TRANSLATING", SLOW),
    Fault("card's link at x8", _card(current_link_width=8),
          "PCIE-LINK-REDUCED", SLOW, ("0000:1c:00.0",)),
    Fault("card in a slot with 8 lanes", _narrow_slot,
          "PCIE-LINK-REDUCED", SLOW, ("0000:1c:00.0",)),
    Fault("card's link at generation 3",
          _card(current_link_speed="8.0 GT/s PCIe"),
          "PCIE-LINK-REDUCED", SLOW, ("0000:1c:00.0",)),
    Fault("GPU's link at x8", _set(lambda n: n.write("0000:19:00.0", current_link_width=8)), "PCIE-LINK-REDUCED", SLOW,
          ("0000:19:00.0",)),
    Fault("switch's uplink at x8", _set(lambda n: n.write("0000:98:00.0", current_link_width=8)), "PCIE-LINK-REDUCED",
          SLOW, ("0000:98:00.0",)),
    Fault("card reads 512 bytes at a time", _set(lambda n: n.config("0000:1c:00.0", read_request=512)),
          "PCIE-SETTINGS", NOTE, ("0000:1c:00.0",)),
    Fault("card's packets smaller than its port's", _set(lambda n: n.config("0000:1c:00.0", payload=128)),
          "PCIE-SETTINGS", NOTE, ("0000:1c:00.0",)),
    Fault("corrected PCIe errors", _set(lambda n: n.write("0000:1c:00.0", aer_dev_correctable="TOTAL_ERR_COR 5120")),
          "PCIE-ERRORS", NOTE, ("0000:1c:00.0",)),
    Fault("uncorrected PCIe errors",
          _set(lambda n: n.write("0000:19:00.0", aer_dev_nonfatal="TOTAL_ERR_NONFATAL 2")), "PCIE-ERRORS", SLOW,
          ("0000:19:00.0",)),
    Fault("PCIe replays of a GPU", _gpu(1, replays=9000), "PCIE-ERRORS", NOTE, ("0000:19:00.0",)),
    Fault("virtual machine without switches", guest, "PCIE-TREE-HIDDEN", UNKNOWN, also=("NODE-DIFFERS",)),
    Fault("ATS off in a virtual machine", _hypervisor_without_ats, "ATS-OFF", NOTE,
          ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")),
    Fault("GPUs without a NUMA domain", _numa_of_all(-1), "NUMA-UNKNOWN", SLOW, ("0000:18:00.0",)),
    Fault("GPU reports another NUMA domain than its switch", _set(lambda n: n.write("0000:19:00.0", numa_node=1)),
          "NUMA-UNKNOWN", SLOW, ("0000:19:00.0",)),
    Fault("NVML does not answer", _silent_driver, "NVML-UNREADABLE", STOP),
    Fault("GPU lost", _lost_gpu, "GPU-MISSING", STOP, ("0000:1a:00.0",)),
    Fault("GPU unknown to NVML", _set(lambda n: n.gpus.pop()), "GPU-MISSING", STOP, ("0000:9d:00.0",)),
    Fault("GPUs of another vendor", _gpus_of_another_maker, "GPU-OTHER-MAKER", NOTE, ("0000:18:00.0",),
          ("GPU-MISSING",)),
    Fault("recorded with another tool, without NVML", _recorded_by_others,
          "NOT-RECORDED", UNKNOWN, also=("NVML-UNREADABLE",)),
    Fault("uncorrectable memory errors", _gpu(5, ecc={"enabled": 1, "corrected": 0, "uncorrected": 3}), "GPU-HEALTH",
          STOP, ("0000:9b:00.0",)),
    Fault("memory row that could not be repaired", _gpu(5, remapped_rows=[0, 1, 0, 1]), "GPU-HEALTH", STOP,
          ("0000:9b:00.0",)),
    Fault("memory row to be repaired", _gpu(5, remapped_rows=[0, 1, 1, 0]), "GPU-HEALTH", SLOW, ("0000:9b:00.0",)),
    Fault("GPU throttled by heat", _gpu(5, clocks_event_reasons=0x40), "GPU-HEALTH", SLOW, ("0000:9b:00.0",)),
    Fault("Xid 79 in the kernel's log", _set(lambda n: n.host.update(kernel_log={"xid": [
        "3,1201,73000,-;NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', GPU has fallen off the bus."]})), "GPU-XID",
          SLOW, ("0000:9b:00",)),
    Fault("GPU off the bus before an Xid", _set(lambda n: n.host.update(kernel_log={"xid": [
        ("3,1201,73000,-;NVRM: The NVIDIA GPU 0000:9b:00.0\\x0aNVRM: (PCI ID: 10de:26b9)\\x0aNVRM: installed in this"
        " system has\\x0aNVRM: fallen off the bus and is not responding to commands.")]})), "GPU-XID",
        SLOW, ("0000:9b:00",)),
    Fault("a card's firmware that hangs", _set(lambda n: n.host.update(kernel_log={"xid": [
        "3,9,7,-;mlx5_core 0000:9a:00.0: poll_health:955:(pid 0): device's health compromised - reached miss count"]})),
          "RDMA-CARD-FAILED", SLOW, ("0000:9a:00.0",)),
    Fault("fabric manager of another version", _set(lambda n: n.host.update(kernel_log={"xid": [
        "fabric manager NVIDIA GPU driver interface version 550.54.15 don't match with driver version 550.90.07."]})),
          "FABRIC-MANAGER", STOP),
    Fault("Xid 119, driver hangs", _hung_driver, "GPU-XID", SLOW, ("0000:9b:00",),
          also=("NVML-UNREADABLE",)),
    Fault("kernel's log not readable", _set(lambda n: n.host.update(kernel_log={"error": "EPERM"})), "GPU-XID",
          UNKNOWN),
    Fault("BAR 1 of 256 MiB", _gpu(5, bar1_total=256 << 20), "GPU-BAR1-SMALL", SLOW, ("0000:9b:00.0",)),
    Fault("no P2P behind one switch",
          _set(lambda n: n.gpus[0]["p2p"].update({"1": {"read": 1, "write": 1}})), "GPU-P2P-OFF", SLOW,
          ("0000:18:00.0", "0000:19:00.0")),
    Fault("compute mode prohibited", _gpu(5, compute_mode=2), "GPU-MODE", STOP, ("0000:9b:00.0",)),
    Fault("persistence mode off", _gpu(5, persistence=0), "GPU-MODE", NOTE, ("0000:9b:00.0",)),
    Fault("GPU in use", _in_use, "GPU-BUSY", NOTE, ("0000:1b:00.0",)),
    Fault("memlock limited, no systemd", _set(lambda n: n.host.update(
        systemd=False, limits_attainable={"memlock": [8 << 20, 8 << 20], "nofile": [1 << 20, 1 << 20]})), "LIMITS",
          STOP, ("memlock",)),
    Fault("few open files, no systemd", _set(lambda n: n.host.update(
        systemd=False, limits_attainable={"memlock": [UNLIMITED, UNLIMITED], "nofile": [1024, 4096]})), "LIMITS",
          NOTE, ("nofile",)),
    Fault("stack without a limit", _set(lambda n: n.host["limits"].update(stack=[UNLIMITED, UNLIMITED])), "LIMITS",
          NOTE, ("stack",)),
    Fault("small /dev/shm", _set(lambda n: n.host.update(shm_bytes=64 << 20)), "LIMITS", STOP, ("/dev/shm",)),
    Fault("root file system full", _disk("root", "tmp", "state", free_bytes=0), "DISK-FULL", STOP,
          ("/", "/tmp", "/home/l40s/.local/state/l40s-deploy")),
    Fault("state directory's disk full", _disk("state", device=3, free_bytes=1 << 20), "DISK-FULL", STOP,
          ("/home/l40s/.local/state/l40s-deploy",)),
    Fault("little room for logs and caches", _disk("state", free_bytes=3 * GIB), "DISK-FULL", NOTE,
          ("/home/l40s/.local/state/l40s-deploy",)),
    Fault("model disk full", _disk("models", free_bytes=0), "DISK-FULL", NOTE, ("/workspace",)),
    Fault("model disk hangs", _disk("models", error="ETIMEDOUT"), "DISK-FULL", UNKNOWN, ("/workspace",)),
    Fault("another NVIDIA driver", _set(lambda n: n.nvml.update(driver="550.54.15")), "NODE-DIFFERS", SLOW,
          ("NVIDIA driver",)),
    Fault("another GPU model", _gpu(5, name="NVIDIA L40"), "GPU-MIXED", SLOW, ("0000:9b:00.0",), ("NODE-DIFFERS",)),
    Fault("GPUs of a lower generation", _old_gpus,
          "NODE-DIFFERS", SLOW, ("best PCIe link of the GPUs",)),
    Fault("another kernel", _set(lambda n: n.host.update(uname={"release": "5.15.0-105-generic"})), "NODE-DIFFERS",
          NOTE, ("kernel",)),
    Fault("another kernel, by /proc alone", _set(lambda n: n.machine.write(
        "/proc/sys/kernel", {"osrelease": "5.15.0-105-generic"})), "NODE-DIFFERS", NOTE, ("kernel",)),
    Fault("another firmware of the cards", _set(lambda n: [n.machine.write(
        n.port(f"mlx5_{i}").removesuffix("/ports/1"), {"fw_ver": "22.31.1014"}) for i in range(4)]), "NODE-DIFFERS",
          NOTE, ("RDMA card firmware",)),
    Fault("another BIOS", _set(lambda n: n.machine.write("/sys/class/dmi/id", {"bios_version": "1.4"})),
          "NODE-DIFFERS", NOTE, ("BIOS",)),
    Fault("another RDMA driver", _set(lambda n: n.machine.write("/sys/module/mlx5_core", {"version": "5.8"})),
          "NODE-DIFFERS", NOTE, ("RDMA driver",)),
    Fault("clock 30 s ahead", _set(lambda n: n.host.update(clock_offset_s=30.0)), "CLOCK-SKEW", NOTE),
    Fault("public address", _set(lambda n: n.machine.address("bond0", "8.8.4.4/24")), "PUBLIC-ADDRESS", NOTE,
          ("bond0",)),
    Fault("power-saving governor", _set(lambda n: n.machine.write("/sys/devices/system/cpu/cpufreq/policy0",
          {"scaling_governor": "powersave"})), "HOST-SETTING", NOTE, ("scaling_governor",)),
    Fault("deep sleep of the CPUs", _set(lambda n: n.machine.write("/sys/devices/system/cpu/cpu0/cpuidle/state2",
          {"name": "C6", "latency": 190, "disable": 0})), "HOST-SETTING", NOTE, ("cpuidle",)),
    Fault("NUMA balancing", _set(lambda n: n.machine.write("/proc/sys/kernel", {"numa_balancing": 1})),
          "HOST-SETTING", NOTE, ("numa_balancing",)),
    Fault("most of the memory in huge pages",
          _set(lambda n: n.machine.write("/proc/sys/vm", {"nr_hugepages": 300_000})), "HOST-SETTING", NOTE,
          ("nr_hugepages",)),
    Fault("cached files dropped by NUMA domain",
          _set(lambda n: n.machine.write("/proc/sys/vm", {"zone_reclaim_mode": 1})), "HOST-SETTING", NOTE,
          ("zone_reclaim_mode",)),
    Fault("settings in /etc/nccl.conf",
          _set(lambda n: n.files.update({"/etc/nccl.conf": "# old\nNCCL_P2P_DISABLE=1\n"})), "NCCL-FILES", NOTE,
          ("/etc/nccl.conf",)),
    Fault("settings in .nccl.conf of the engine's user", _set(lambda n: n.host.update(
        nccl_conf={"path": "/home/l40s/.nccl.conf", "text": "NCCL_SHM_DISABLE=1\n"})), "NCCL-FILES", NOTE,
          ("/home/l40s/.nccl.conf",)),
    Fault("unreadable .nccl.conf of the engine's user", _set(lambda n: n.host.update(
        nccl_conf={"path": "/home/l40s/.nccl.conf", "error": "EACCES"})), "NCCL-FILES", UNKNOWN,
          ("/home/l40s/.nccl.conf",)),
    Fault("peer-to-peer switched off by l40s_env", _set(lambda n: n.spec.update(overrides=Overrides(
        env=(("NCCL_P2P_DISABLE", "1"), ("NCCL_IB_DISABLE", "0"))))), "NCCL-SETTINGS", SLOW, ("NCCL_P2P_DISABLE",)),
    Fault("ECC off on one GPU", _gpu(5, ecc={"enabled": 0, "corrected": 0, "uncorrected": 0}), "GPU-ECC", NOTE,
          ("0000:9b:00.0",)),
    Fault("inventory uses fewer GPUs than there are", _set(lambda n: n.spec.update(gpus=4)), "GPU-NOT-USED", NOTE,
          ("0000:9a:00.0", "0000:9b:00.0", "0000:9c:00.0", "0000:9d:00.0")),
    Fault("topology from a file", _set(lambda n: n.files.update(
        {"/var/run/nvidia-topologyd/virtualTopology.xml": "<system/>"})), "NCCL-FILES", NOTE,
          ("/var/run/nvidia-topologyd/virtualTopology.xml",)),
    Fault("models on a file server", _set(lambda n: n.files.update({"/proc/mounts": (
        "/dev/sda1 / ext4 rw 0 0\nfiler:/export/models /workspace nfs4 rw,vers=4.2 0 0\n")})),
          "MODEL-ROOT-REMOTE", NOTE, ("/workspace",)),
    Fault("another network than its peers", _other_network, "NO-COMMON-NETWORK", STOP,
          also=("TRAFFIC-ON-TCP", "RDMA-PORT-UNCONFIGURED", "NODE-DIFFERS")),
    Fault("another engine version", _package("sglang", "0.5.23", "0.5.22"), "STACK-DIFFERS", STOP,
          ("engine (sglang)",)),
    Fault("another torch", _package("torch", "2.14.1", "2.13.0"), "STACK-DIFFERS", STOP, ("torch",)),
    Fault("another NCCL", _package("nvidia_nccl_cu13", "2.30.7", "2.28.9"), "STACK-DIFFERS", STOP, ("NCCL",)),
    Fault("another kernel package", _package("sglang_kernel", "0.4.10", "0.4.9"), "STACK-DIFFERS", SLOW),
    Fault("another Triton", _package("triton", "3.8.0", "3.7.1"), "STACK-DIFFERS", SLOW, ("Triton",)),
    Fault("package names unreadable", _no_packages, "STACK-DIFFERS", UNKNOWN, (VENV,)),
    Fault("stack not installed", _no_stack, "STACK-ABSENT", NOTE, (VENV,)),
    Fault("a version that no dialect lists", _set(lambda n: n.stack.update(engine_version="0.5.22")), "ENGINE-UNLISTED",
          UNKNOWN, also=("STACK-DIFFERS",)),
    Fault("engine without the SM89 tiles", _set(lambda n: n.files.update({TILES: "if CUDA_CAPABILITY[0] >= 8:"})),
          "STACK-PATCHES", STOP),
    Fault("engine's sources unreadable", _set(lambda n: n.files.pop(TILES)), "STACK-PATCHES", UNKNOWN),
    Fault("kernels without the int8 GEMM for SM89", _set(lambda n: n.files.update({KERNELS: "12 bytes without it"})),
          "STACK-PATCHES", NOTE),
    Fault("kernels unreadable", _set(lambda n: n.files.pop(KERNELS)), "STACK-PATCHES", UNKNOWN),
    Fault("tuned config missing", _set(lambda n: n.files.pop(TUNED_PATH)), "TUNED-CONFIGS", SLOW, (TUNED,)),
    Fault("another tuned config", _set(lambda n: n.files.update({TUNED_PATH: tuned(num_stages=2)})), "TUNED-CONFIGS",
          SLOW, (TUNED,)),
    Fault("tuned config that gives wrong text", _set(lambda n: n.files.update({TUNED_PATH: tuned(BLOCK_SIZE_K=128)})),
          "TUNED-CONFIGS", SLOW, (TUNED,)),
    Fault("firewall drops everything", lambda _: None, "PORT-BLOCKED", STOP, trials=trials(Outcome.SILENT)),
    Fault("firewall drops one port", lambda _: None, "PORT-BLOCKED", STOP, ("tcp/5000",),
          trials=trials(Outcome.SILENT, kind="tcp", port=5000, inbound=True)),
    Fault("ephemeral ports refused", lambda _: None, "PORT-BLOCKED", STOP, ("tcp/ephemeral",),
          trials=trials(Outcome.UNREACHABLE, kind="tcp", port=41234, inbound=True)),
    Fault("rails that can't reach each other", lambda _: None, "RAILS-ISOLATED", STOP,
          ("mlx5_0", "mlx5_2"), trials=across(ODD)),
    Fault("large packets dropped between nodes", lambda _: None, "PORT-BLOCKED", SLOW, ("tcp",),
          trials=trials(Outcome.SILENT, kind="mtu", size=1500)),
)  # fmt: skip


def fault(name: str) -> Fault:
    """One of FAULTS."""
    return next(one for one in FAULTS if one.name == name)
