"""PCI functions from a snapshot, each with its place in the tree and its configuration space; cards (functions of one
device); names of parts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import PciDevice, PcieLink, Topology

_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_SPEED = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9])?)\s*GT/s")
_WIDEST = 32
GUEST_VENDORS = frozenset({0x1AF4, 0x1B36, 0x15AD, 0x1414, 0x5853})
"""Of functions that a hypervisor makes up: virtio and QEMU (Red Hat), VMware, Hyper-V, Xen (pci.ids)."""
GPU_CLASSES = ("0x0302", "0x0300")
"""How the class of a GPU begins, as sysfs and NCCL's file write it: a 3D or a VGA controller."""
ON_ROOT_BUS = ":00"
"""How a bus ends that has root ports, and no GPU, but in a virtual machine."""
TWICE = "~"
"""In a key around a number before the address: it is there another time in the same place."""


def has_made_up(topology: Topology) -> bool:
    """Whether it has a function that only a hypervisor makes."""
    return any(device.vendor in GUEST_VENDORS for device in topology.pci)


def is_of_guest(topology: Topology) -> bool:
    """Whether a hypervisor made a function, or has put a GPU on a root bus."""
    return has_made_up(topology) or any(gpu.address.rpartition(":")[0].endswith(ON_ROOT_BUS) for gpu in topology.gpus)


def pci_devices(snapshot: Snapshot) -> tuple[PciDevice, ...]:
    """Every PCI function, in order of address. An address that two functions claim gives two of them."""
    named = {address: name for name, address in slots(snapshot).items()}
    devices = [_device(snapshot, key, named) for key in _keys(snapshot)]
    return tuple(sorted(devices, key=lambda device: (sort_key(device.address), device.key)))


def is_address(name: str) -> bool:
    """Whether a name is DDDD:BB:DD.F, with a domain of 4 to 8 hex digits."""
    return _ADDRESS.fullmatch(name) is not None


def sort_key(address: str) -> tuple[int, str]:
    """Order of addresses as numbers: the kernel's and CUDA's order."""
    domain, _, rest = address.partition(":")
    return number(domain, 16), rest


def normal_address(address: str) -> str:
    """An address as sysfs writes it: NVML has eight digits of domain and capitals."""
    domain, _, rest = address.strip().lower().partition(":")
    value = number(domain, 16, -1)
    return f"{value:04x}:{rest}" if value >= 0 else address.strip().lower()


def card(address: str) -> str:
    """An address without its function: the ports of a card are functions of one device."""
    return address.rpartition(".")[0] or address


@lru_cache(maxsize=1 << 12)
def both_ends(first: PcieLink, other: PcieLink) -> PcieLink:
    """What a link can do between two ends that can do this much; of what one does not say the other counts."""

    def least(ours: float, theirs: float) -> float:
        return min(ours, theirs) if ours and theirs else ours or theirs

    return PcieLink(
        speed_gts=least(first.speed_gts, other.speed_gts),
        width=int(least(first.width, other.width)),
    )


XML_ROOT = "/nccl/"
"""Keys of what NCCL wrote, as XML or in its log, begin with it: every bridge there is a switch."""


def best_link(device: PciDevice, devices: Mapping[str, PciDevice]) -> PcieLink:
    """What a function's link can do with the port above it; NCCL leaves ports out, and writes this of the link."""
    above = None if device.key.startswith(XML_ROOT) else devices.get(device.parent)
    return both_ends(device.link_max, above.link_max if above else PcieLink())


@lru_cache(maxsize=1 << 14)
def bridges_above(key: str) -> tuple[str, ...]:
    """Keys of the bridges above a function, nearest first. Read from the path, as NCCL does (src/graph/xml.cc).

    Remembered: the rules ask often, and the nodes of a cluster have the same paths.
    """
    above: list[str] = []
    while True:
        key = key.rpartition("/")[0]
        if not is_address(key.rpartition("/")[2].rpartition(TWICE)[2]):
            return tuple(above)
        above.append(key)


def nearest_function(path: str, known: Collection[str]) -> str:
    """The PCI function that a path leads to, or is below (as for virtio devices), '' for none."""
    while path.count("/") > 1:
        if path in known:
            return path
        path = path.rpartition("/")[0]
    return ""


def small_number(name: str) -> int:
    """A file's name that is a number of at most six digits (a port, a GID's index); -1 for any other name."""
    return int(name) if name.isascii() and name.isdecimal() and len(name) <= 6 else -1


def number(text: str, base: int = 10, otherwise: int = 0) -> int:
    """An integer as sysfs writes it ('0x10de', '16'); `otherwise` where it is none."""
    try:
        return int(text, base)
    except ValueError:
        return otherwise


def _keys(snapshot: Snapshot) -> set[str]:
    keys = {
        folder
        for path in snapshot.files
        if path.endswith(("/class", "/vendor")) and is_address((folder := path.rpartition("/")[0]).rpartition("/")[2])
    }
    listed = (snapshot.realpath(f"/sys/bus/pci/devices/{name}") for name in snapshot.names("/sys/bus/pci/devices"))
    return keys | {real for real in listed if is_address(real.rpartition("/")[2])}


def _device(snapshot: Snapshot, key: str, slots: Mapping[str, str]) -> PciDevice:
    files = snapshot.files
    address = key.rpartition("/")[2].lower()
    above = bridges_above(key)
    top = (above[-1] if above else key).rpartition("/")[0]

    def value(name: str, base: int = 16, otherwise: int = 0) -> int:
        return number(files.get(f"{key}/{name}", "").strip(), base, otherwise)

    return PciDevice(
        address=address,
        key=key,
        parent=above[0] if above else "",
        root=top.rpartition("/")[2],
        vendor=value("vendor"),
        device=value("device"),
        subsystem_vendor=value("subsystem_vendor"),
        subsystem_device=value("subsystem_device"),
        class_code=value("class"),
        revision=value("revision"),
        numa_node=value("numa_node", 10, -1),
        link=_link(files, key, "current"),
        link_max=_link(files, key, "max"),
        virtual=f"{key}/physfn" in snapshot.links,
        driver=snapshot.links.get(f"{key}/driver", "").rpartition("/")[2],
        slot=slots.get(card(address), ""),
    )


def _link(files: Mapping[str, str], key: str, which: str) -> PcieLink:
    """Widths of 255 mean that there is no link."""
    width = number(files.get(f"{key}/{which}_link_width", "").strip())
    speed = speed_gts(files.get(f"{key}/{which}_link_speed", ""))
    return PcieLink(speed_gts=speed, width=width if 0 < width <= _WIDEST else 0)


def speed_gts(text: str) -> float:
    """'16.0 GT/s PCIe' is 16.0; 0 for what says no speed."""
    match = _SPEED.match(text)
    return float(match[1]) if match else 0.0


def slots(snapshot: Snapshot) -> dict[str, str]:
    """{slot's name: address without function}."""
    places = {name: snapshot.text(f"{_SLOTS}/{name}/address").lower() for name in snapshot.names(_SLOTS)}
    return {name: address for name, address in places.items() if address}


_SLOTS = "/sys/bus/pci/slots"


_NETWORK_CLASS = 0x02


def nic_cards(topology: Topology) -> Mapping[str, tuple[PciDevice, ...]]:
    """{real path of the card without its function: its functions}, of everything that is a NIC.

    A NIC is of the network class, has an RDMA port, or has an interface of its own. Virtual functions count with
    nobody: they are no cards.
    """
    in_use = {port.key for port in topology.rdma} | {interface.key for interface in topology.interfaces}
    own = (device for device in topology.pci if device.class_code >> 16 == _NETWORK_CLASS or device.key in in_use)
    cards = collected((card(device.key), device) for device in own if not device.virtual)
    return {key: tuple(functions) for key, functions in cards.items()}


_PARTS = {  # ids and what they are: pciutils/pciids, pci.ids at c1c12547
    (0x10DE, 0x26B9): "NVIDIA L40S",
    (0x10DE, 0x26B5): "NVIDIA L40",
    (0x10DE, 0x26BA): "NVIDIA L20",
    (0x10DE, 0x27B8): "NVIDIA L4",
    (0x10DE, 0x26B1): "NVIDIA RTX 6000 Ada",
    (0x10DE, 0x20B0): "NVIDIA A100-SXM4-40GB",
    (0x10DE, 0x20B2): "NVIDIA A100-SXM4-80GB",
    (0x10DE, 0x20B5): "NVIDIA A100 80GB PCIe",
    (0x10DE, 0x20F1): "NVIDIA A100-PCIE-40GB",
    (0x10DE, 0x2204): "NVIDIA RTX 3090",
    (0x10DE, 0x2330): "NVIDIA H100 80GB HBM3",
    (0x10DE, 0x2331): "NVIDIA H100 PCIe",
    (0x10DE, 0x2335): "NVIDIA H200",
    (0x10DE, 0x2684): "NVIDIA RTX 4090",
    (0x10DE, 0x2B85): "NVIDIA RTX 5090",
    (0x10DE, 0x2BB1): "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    (0x10DE, 0x2BB5): "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    (0x15B3, 0x1013): "ConnectX-4",
    (0x15B3, 0x1015): "ConnectX-4 Lx",
    (0x15B3, 0x1017): "ConnectX-5",
    (0x15B3, 0x1019): "ConnectX-5 Ex",
    (0x15B3, 0x101B): "ConnectX-6",
    (0x15B3, 0x101D): "ConnectX-6 Dx",
    (0x15B3, 0x101F): "ConnectX-6 Lx",
    (0x15B3, 0x1021): "ConnectX-7",
    (0x15B3, 0x1023): "ConnectX-8",
    (0x15B3, 0xA2D6): "BlueField-2",
    (0x15B3, 0xA2DC): "BlueField-3",
    (0x1000, 0xC010): "PEX88000",
    (0x1000, 0xC030): "PEX89000",
    (0x10B5, 0x8796): "PEX8796",
    (0x10B5, 0x9797): "PEX9797",
    (0x8086, 0x1572): "Intel X710",
    (0x8086, 0x1592): "Intel E810",
    (0x8086, 0x37D2): "Intel X722",
    (0x1BCF, 0x001C): "NEC Vector Engine",
}


def part_name(device: PciDevice | None) -> str:
    """The part's name, else its ids as lspci -n prints them; '' where these were not read."""
    if device is None or not device.vendor or not device.device:
        return ""
    return _PARTS.get((device.vendor, device.device), f"{device.vendor:04x}:{device.device:04x}")


def known_part(vendor: int, device: int) -> str:
    """The part's name by its ids; '' for what is not listed here."""
    return _PARTS.get((vendor, device), "")


def device_called(vendor: int, words: str) -> int:
    """The device id of a part that lspci calls so ('AD102GL [L40S]'); 0 where its name is not listed here."""
    named = re.findall(r"\[(?:GeForce )?([^]]{1,64})\]", words)
    return next(
        (ids[1] for ids, name in _PARTS.items() if ids[0] == vendor and name.removeprefix("NVIDIA ") in named), 0
    )


_EXPRESS = 0x10
_SERIAL_NUMBER = 0x0003
_ACS = 0x000D
_ATS = 0x000F
_FIRST_EXTENDED = 0x100
_MOST_CAPABILITIES = 48
_ALL = 4096


@dataclass(frozen=True, slots=True)
class ConfigSpace:
    """One function's configuration space, as many bytes as were readable; zeros at its end may be missing."""

    data: bytes

    @property
    def whole(self) -> bool:
        """Whether the extended capabilities were readable."""
        return len(self.data) > _FIRST_EXTENDED + 4

    @property
    def _padded(self) -> bytes:
        """With the zeros that were trimmed off its end."""
        return self.data.ljust(_ALL, b"\0") if self.whole else self.data

    @property
    def secondary_bus(self) -> int:
        """Number of the bus below a bridge, 0 where unknown."""
        return self.data[0x19] if len(self.data) > 0x19 else 0

    @property
    def acs_control(self) -> int | None:
        """The ACS control register; 0 without the capability, None where not readable."""
        return self._control(_ACS) if self.whole else None

    @property
    def ats_enabled(self) -> bool | None:
        """Whether Address Translation Services are on; None without the capability and where not readable."""
        return bool(self._control(_ATS) & 0x8000) if _ATS in self._extended() else None

    @property
    def serial_number_at(self) -> int | None:
        """Where the 8 bytes of the Device Serial Number stand; None without one."""
        at = self._extended().get(_SERIAL_NUMBER, _ALL) + 4
        return at if at + 8 <= _ALL else None

    @property
    def max_read_request(self) -> int | None:
        """Bytes that one read may ask for (Device Control, bits 14:12); None where not readable."""
        return self._device_control(12)

    @property
    def max_payload(self) -> int | None:
        """Bytes in one packet (Device Control, bits 7:5); None where not readable."""
        return self._device_control(5)

    def _device_control(self, lowest: int) -> int | None:
        offset = self.data[0x34] & 0xFC if len(self.data) >= 0x40 else 0
        for _ in range(_MOST_CAPABILITIES):
            if offset < 0x40 or offset + 10 > len(self.data):
                break
            if self.data[offset] == _EXPRESS:
                return 128 << (int.from_bytes(self.data[offset + 8 : offset + 10], "little") >> lowest & 7)
            offset = self.data[offset + 1] & 0xFC
        return None

    def _control(self, capability: int) -> int:
        """The 16 bits that control an extended capability; 0 where the function has none of it."""
        at = self._extended().get(capability)
        return int.from_bytes(self._padded[at + 6 : at + 8], "little") if at is not None else 0

    def _extended(self) -> dict[int, int]:
        """{id of an extended capability: where the first one stands}; {} where they were not readable."""
        offset, offsets, seen, data = _FIRST_EXTENDED, dict[int, int](), set[int](), self._padded
        while _FIRST_EXTENDED <= offset <= len(data) - 8 and offset not in seen:
            seen.add(offset)
            header = int.from_bytes(data[offset : offset + 4], "little")
            offsets.setdefault(header & 0xFFFF, offset)
            offset = header >> 20
        return offsets


def config_space(snapshot: Snapshot, key: str) -> ConfigSpace:
    """A function's configuration space; empty where it was not collected or is no hexadecimal text."""
    try:
        return ConfigSpace(bytes.fromhex(snapshot.files.get(f"{key}/config", "")))
    except ValueError:
        return ConfigSpace(b"")


def config_unread(snapshot: Snapshot, key: str) -> str:
    """Why a function's configuration space is incomplete, as text."""
    path = f"{key}/config"
    if path in snapshot.errors:
        return snapshot.errors[path]
    return f"cut off at {len(config_space(snapshot, key).data)} bytes" if path in snapshot.files else "not collected"
