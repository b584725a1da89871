"""A machine written as the files that Linux would show of it: the input for tests of topology and rules.

Written from the kernel's documentation (Documentation/ABI/testing/sysfs-bus-pci, sysfs-class-infiniband,
sysfs-class-net) and reference facts of the articles' cluster, independently of the lab.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.model.snapshot import Snapshot

L40S = ("0x10de", "0x26b9", "0x030200", "0x1851")
CX6DX = ("0x15b3", "0x101d", "0x020000", "0x0016")
ROOT_PORT = ("0x8086", "0x352a", "0x060400", "0x0000")
PLX = ("0x10b5", "0x9797", "0x060400", "0x9797")
PEX_GEN4 = ("0x1000", "0xc010", "0x060400", "0xa024")
PEX_GEN5 = ("0x1000", "0xc030", "0x060400", "0x0144")
SUB = ("0x10b5", "0x8796", "0x060400", "0x8796")
"""Another make than the machine's own switches, used on GPU cards."""
PLAIN_VF = ("0x15b3", "0x101e", "0x020000", "0x0016")
PEX_GEN5_SUB = ("0x1000", "0xc030", "0x060400", "0x1144")
MIB = 1 << 20


_relative = cache(posixpath.relpath)


@dataclass
class MachineFiles:
    """Builds a machine; every method returns the real path of what it made."""

    node: str = "node0"
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)
    addresses: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def write(self, folder: str, values: Mapping[str, object]) -> str:
        for name, value in values.items():
            self.files[f"{folder}/{name}"] = f"{value}\n"
        return folder

    def link(self, path: str, target: str) -> None:
        """A relative link, as sysfs makes them."""
        self.links[path] = _relative(target, path.rpartition("/")[0])

    def function(
        self,
        above: str,
        address: str,
        ids: tuple[str, str, str, str],
        *,
        numa: int = 0,
        gts: str = "16.0",
        width: int = 16,
        max_gts: str = "16.0",
        max_width: int = 16,
        driver: str = "",
    ) -> str:
        vendor, device, kind, subsystem = ids
        folder = self.write(
            f"{above}/{address}",
            {
                "vendor": vendor,
                "device": device,
                "class": kind,
                "subsystem_vendor": vendor,
                "subsystem_device": subsystem,
                "revision": "0xa1",
                "numa_node": numa,
                "current_link_speed": f"{gts} GT/s PCIe",
                "current_link_width": width,
                "max_link_speed": f"{max_gts} GT/s PCIe",
                "max_link_width": max_width,
            },
        )
        self.link(f"/sys/bus/pci/devices/{address}", folder)
        if driver:
            self.link(f"{folder}/driver", f"/sys/bus/pci/drivers/{driver}")
        return folder

    def root_port(self, bus: int, device: int = 1, *, numa: int = 0) -> str:
        root = f"/sys/devices/pci0000:{bus:02x}"
        return self.function(root, f"0000:{bus:02x}:{device:02x}.0", ROOT_PORT, numa=numa, driver="pcieport")

    def switch(self, above: str, bus: int, *, numa: int = 0, ids: tuple[str, str, str, str] = PLX) -> str:
        """An upstream port on its own bus; its downstream ports are made for the devices plugged into them."""
        return self.function(above, f"0000:{bus:02x}:00.0", ids, numa=numa, driver="pcieport")

    def downstream(self, switch: str, bus: int, device: int, *, numa: int = 0) -> str:
        return self.function(switch, f"0000:{bus:02x}:{device:02x}.0", PLX, numa=numa, driver="pcieport")

    def gpu(self, above: str, bus: int, *, numa: int = 0, gts: str = "2.5", width: int = 16) -> str:
        """A GPU and its NVML answer, with the next index."""
        address = f"0000:{bus:02x}:00.0"
        folder = self.function(above, address, L40S, numa=numa, gts=gts, width=width, driver="nvidia")
        self.devices.append(
            {
                "index": len(self.devices),
                "name": "NVIDIA L40S",
                "uuid": f"GPU-00000000-0000-0000-0000-0000000000{bus:02x}",
                "pci_bus_id": f"0000{address.upper()}",
                "memory": {"total": 46068 * MIB, "reserved": 615 * MIB, "free": 45453 * MIB, "used": 0},
                "processes": [],
                "link": {"gen": 1, "max_gen": 4, "width": width, "max_width": 16},
                "numa_node": numa,
                "errors": {},
            }
        )
        return folder

    def slot(self, name: str, address: str) -> None:
        self.write(f"/sys/bus/pci/slots/{name}", {"address": address})

    def nic(self, above: str, bus: int, names: Iterable[str], *, numa: int = 0) -> list[str]:
        """A card with one function and one interface for each name."""
        folders = []
        for index, name in enumerate(names):
            folder = self.function(above, f"0000:{bus:02x}:00.{index}", CX6DX, numa=numa, driver="mlx5_core")
            self.interface(name, folder)
            folders.append(folder)
        return folders

    def interface(self, name: str, card: str = "", *, mtu: int = 9000, up: bool = True, speed: int = 100000) -> str:
        folder = f"{card}/net/{name}" if card else f"/sys/devices/virtual/net/{name}"
        state = {"operstate": "up", "carrier": 1} if up else {"operstate": "down", "carrier": 0}
        self.write(folder, {"mtu": mtu, "address": "02:00:00:00:00:01", "speed": speed if up else -1, **state})
        self.link(f"/sys/class/net/{name}", folder)
        if card:
            self.link(f"{folder}/device", card)
        return folder

    def address(self, name: str, address: str) -> None:
        text, _, prefix = address.partition("/")
        entry = {"family": "inet6" if ":" in text else "inet", "address": text, "prefixlen": int(prefix)}
        self.addresses.setdefault(name, []).append(entry)

    def bond(self, name: str, slaves: Iterable[str], *, speed: int = 200000) -> str:
        names = list(slaves)
        folder = self.interface(name, speed=speed)
        self.write(f"{folder}/bonding", {"slaves": " ".join(names), "mode": "802.3ad 4"})
        for slave in names:
            place = posixpath.normpath(posixpath.join("/sys/class/net", self.links[f"/sys/class/net/{slave}"]))
            self.link(f"{place}/master", folder)
            self.write(f"{place}/bonding_slave", {"mii_status": "up", "state": "active"})
        return folder

    def rdma(
        self,
        name: str,
        card: str,
        netdev: str,
        *,
        up: bool = True,
        ipv4: str = "",
        link_layer: str = "Ethernet",
        rate: str = "100 Gb/sec (4X EDR)",
    ) -> str:
        """A device with one port and a GID table as mlx5 fills it: link-local twice, then the address twice."""
        folder = self.write(
            f"{card}/infiniband/{name}", {"fw_ver": "22.41.1000", "board_id": "MT_0000000359", "node_type": "1: CA"}
        )
        self.link(f"/sys/class/infiniband/{name}", folder)
        self.link(f"{folder}/device", card)
        port = self.write(
            f"{folder}/ports/1",
            {
                "state": "4: ACTIVE" if up else "1: DOWN",
                "phys_state": "5: LinkUp" if up else "3: Disabled",
                "rate": rate,
                "link_layer": link_layer,
            },
        )
        gids = ["fe80:0000:0000:0000:0000:00ff:fe00:0001"] * 2
        if ipv4:
            a, b, c, d = (int(part) for part in ipv4.split("/", maxsplit=1)[0].split("."))
            gids += [f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"] * 2
        for index, gid in enumerate(gids if link_layer == "Ethernet" else gids[:1]):
            self.write(f"{port}/gids", {str(index): gid})
            self.write(f"{port}/gid_attrs/types", {str(index): "RoCE v2" if index % 2 else "IB/RoCE v1"})
            if link_layer == "Ethernet":
                self.write(f"{port}/gid_attrs/ndevs", {str(index): netdev})
        return folder

    def processors(self, domains: int = 2, *, cpus: int = 32) -> None:
        for number in range(domains):
            self.write(
                f"/sys/devices/system/node/node{number}",
                {
                    "cpulist": f"{number * cpus}-{number * cpus + cpus - 1}",
                    "meminfo": f"Node {number} MemTotal:       536870912 kB",
                },
            )
        self.files["/proc/cpuinfo"] = (
            "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
            "model name\t: Intel(R) Xeon(R) Platinum 8462Y+\nphysical id\t: 0\n"
        )

    def snapshot(self, **changes: Any) -> Snapshot:
        parts: dict[str, Any] = {
            "node": self.node,
            "taken_at": 1.0,
            "files": dict(self.files),
            "links": dict(self.links),
            "errors": dict(self.errors),
            "nvml": {"driver": "570.86.10", "nvml": "12.570", "cuda": 12080, "devices": list(self.devices)},
            "host": {"hostname": self.node, "addresses": self.addresses},
        }
        return Snapshot(**{**parts, **changes})

    def put_below(self, root: Path) -> None:
        """Write the same machine as real files and links below a folder."""
        for path, text in self.files.items():
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        for path, link in self.links.items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(link)


def reference_machine(node: str = "node0", number: int = 0, *, right: bool = True) -> MachineFiles:
    """One node of the articles' cluster.

    Correct: two switches, one on each NUMA domain, with 4 GPUs and a dual-port RDMA card each; a bonded main card on a
    root port. Wrong, as it was found: the second RDMA card is on a root port, and of the six ports only the main card's
    first is up.
    """
    machine = MachineFiles(node)
    machine.processors()
    for half, bus in enumerate((0x15, 0x97)):
        upstream = machine.switch(machine.root_port(bus, numa=half), bus + 1, numa=half)
        for index in range(4):
            port = machine.downstream(upstream, bus + 2, 4 * index, numa=half)
            machine.gpu(port, bus + 3 + index, numa=half)
        if right or half == 0:
            port = machine.downstream(upstream, bus + 2, 0x10, numa=half)
            rdma_card(machine, port, bus + 7, half, number, up=right)
        else:
            rdma_card(machine, machine.root_port(0xC0, 3, numa=half), 0xC1, half, number, up=right)
    machine.slot("2", "0000:1c:00")
    machine.slot("6", "0000:9e:00" if right else "0000:c1:00")
    main_card(machine, number, both_up=right)
    return machine


def rdma_card(
    machine: MachineFiles,
    above: str,
    bus: int,
    half: int,
    number: int,
    link_layer: str = "Ethernet",
    *,
    up: bool = True,
) -> None:
    """A dual-port card with both rails of one half."""
    names = [f"ens{half + 2}f0np0", f"ens{half + 2}f1np1"]
    for index, folder in enumerate(machine.nic(above, bus, names, numa=half)):
        rail = half * 2 + index
        address = f"10.{rail + 1}.0.{11 + number}/24"
        if up:
            machine.address(names[index], address)
        else:
            machine.interface(names[index], folder, up=False)
        ipv4 = address if up else ""
        machine.rdma(f"mlx5_{rail}", folder, names[index], up=up, ipv4=ipv4, link_layer=link_layer)


def main_card(machine: MachineFiles, number: int, *, bus: int = 0x37, both_up: bool = True) -> None:
    """A card on a root port, bonded, or with one port up."""
    names = ["ens9f0np0", "ens9f1np1"]
    folders = machine.nic(machine.root_port(bus, 1, numa=0), bus + 1, names)
    address = f"10.0.0.{11 + number}/24"
    if both_up:
        machine.bond("bond0", names)
        machine.address("bond0", address)
        machine.rdma("mlx5_bond_0", folders[0], "bond0", ipv4=address, rate="200 Gb/sec (4X HDR)")
    else:
        machine.interface(names[1], folders[1], up=False)
        machine.address(names[0], address)
        machine.rdma("mlx5_4", folders[0], names[0], ipv4=address)
        machine.rdma("mlx5_5", folders[1], names[1], up=False)
    machine.interface("lo", mtu=65536, speed=0)
    machine.address("lo", "127.0.0.1/8")


def storage_card(machine: MachineFiles, *, bus: int = 0xB0, number: int = 0) -> None:
    """One port on a root port of NUMA domain 0, with an address in a separate network."""
    (folder,) = machine.nic(machine.root_port(bus, 1, numa=0), bus + 1, ["ens20np0"])
    address = f"10.20.0.{11 + number}/24"
    machine.address("ens20np0", address)
    machine.rdma("mlx5_20", folder, "ens20np0", ipv4=address)


def virtual_functions(machine: MachineFiles, card: str, count: int, *, bus: int) -> None:
    """SR-IOV functions of a card: RDMA devices that are down and whose interfaces are not in use."""
    above = card.rpartition("/")[0]
    for index in range(count):
        folder = machine.function(above, f"0000:{bus:02x}:01.{index}", PLAIN_VF, driver="mlx5_core")
        machine.link(f"{folder}/physfn", card)
        machine.rdma(f"mlx5_{30 + index}", folder, f"enp{bus}v{index}", up=False)
