"""A machine as its owner would describe it: the card in each slot, and what each port is cabled to.

Other modules derive everything that only the kernel would know (bus numbers, link-local GIDs, file contents). Wiring
files (lab/wirings/*.yml) use exactly these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from l40s_lab.node.tree import FileTree

ROCE_V1, ROCE_V2 = "IB/RoCE v1", "RoCE v2"
"""GID types, as gid_attrs/types has them."""
LinkLayer = Literal["Ethernet", "InfiniBand"]
PortState = Literal["up", "unconfigured", "down"]
"""up: link and address. unconfigured: link, no address. down: not enabled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """Family and model decide NCCL's speed between sockets (NCCL src/graph/topo.h)."""

    vendor: str = "GenuineIntel"
    family: int = 6
    model: int = 143
    stepping: int = 8
    name: str = "Intel(R) Xeon(R) Platinum 8462Y+"
    mhz: float = 2800.0
    sockets: int = 2
    cores: int = 32
    threads: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The chassis and the installed software. kernel_modules: name -> version, as in /sys/module."""

    vendor: str = "Supermicro"
    product: str = "SYS-421GE-TNRT"
    bios: str = "2.1"
    memory_gib: int = 1024
    driver: str = "580.65.06"
    cuda: int = 13000
    """In the form of cuDriverGetVersion: 1000 * major + 10 * minor."""
    open_driver: bool = True
    peermem: bool = True
    wedged: bool = False
    """The driver hangs: every caller waits forever."""
    governor: str = "performance"
    deep_sleep: bool = False
    """CPUs may enter C6, which costs a message a few hundred microseconds."""
    numa_balancing: int = 0
    iommu: Literal["off", "identity", "DMA"] = "identity"
    memlock: Literal["unlimited"] | int = "unlimited"
    """Bytes a process may lock, or 'unlimited'."""
    nofile: int = 1048576


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. memory_mib as printed by `nvidia-smi`; reserved_mib: reserved by the driver.

    lost:        it has fallen off the bus: its link is down, and every read gives ones
    uncorrected: memory errors since the driver was loaded that ECC could not correct
    hot:         it is too hot and slows itself down
    """

    name: str = "NVIDIA L40S"
    device: int = 0x26B9
    subsystem: int = 0x1851
    memory_mib: int = 46068
    reserved_mib: int = 615
    bar1_mib: int = 65536
    max_gen: int = 4
    width: int = 16
    power_limit_w: int = 350
    lost: bool = False
    uncorrected: int = 0
    hot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NicPort:
    """One port of a network card; a dual-port mlx5 card shows two functions with one RDMA device each.

    rdma: name of its RDMA device, '' if it has none (a bonded port: the bond has it)
    rail: number of the rail it is cabled to, None for the ordinary network
    ipv6: it also has an IPv6 address, whose GIDs come before those of the IPv4 address
    """

    netdev: str
    rdma: str = ""
    rail: int | None = None
    state: PortState = "up"
    mtu: int = 9000
    gbps: int = 100
    link_layer: LinkLayer = "Ethernet"
    ipv6: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One ConnectX-6 Dx (15b3:101d), another mlx5 card, or another vendor's card without RDMA."""

    ports: tuple[NicPort, ...]
    vendor: int = 0x15B3
    driver: str = "mlx5_core"
    device: int = 0x101D
    subsystem: int = 0x0016
    board: str = "MT_0000000359"
    firmware: str = "22.41.1000"
    max_gen: int = 4
    width: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One NVMe drive."""

    model: str = "SAMSUNG MZQL23T8HCLS-00A07"


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayAdapter:
    """The management controller's display adapter, behind its own bridge: not a GPU, but easily mistaken for one."""

    name: str = "ASPEED AST2600"


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieSwitch:
    """One switch: an upstream port, and the cards behind its downstream ports.

    1000:c010 is Broadcom's PEX88000 family. NCCL flattens two such switches into one if they match (getBcmGen in NCCL
    src/graph/topo.cc checks both id pairs); subsystem 1000:a096 prevents that: a single switch must not be flattened.
    """

    ports: tuple[PciePort, ...]
    vendor: int = 0x1000
    device: int = 0xC010
    subsystem: int = 0xA096
    gen: int = 4
    width: int = 16


Card = Gpu | Nic | Disk | DisplayAdapter | PcieSwitch


@dataclass(frozen=True, slots=True, kw_only=True)
class PciePort:
    """A root port or a switch's downstream port, with the card behind it or an empty slot.

    device: its device number on its bus
    slot:   name of the physical slot in /sys/bus/pci/slots, '' for a device soldered on
    acs:    ACS redirects are on: traffic between neighbours goes through the CPU
    trained_gen, trained_width: the link's actual values if lower than both ends support
    """

    device: int
    slot: str = ""
    gen: int = 4
    width: int = 16
    acs: bool = False
    trained_gen: int | None = None
    trained_width: int | None = None
    card: Card | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RootComplex:
    """One root bus of a CPU socket. bus: its number. numa: -1 if the firmware does not report it."""

    bus: int
    numa: int
    ports: tuple[PciePort, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bond:
    """Several ports joined into one interface. rdma: the device that mlx5 makes of a bonded pair, '' for none."""

    name: str
    slaves: tuple[str, ...]
    mode: str = "802.3ad"
    rdma: str = ""
    mtu: int = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine. primary: the interface with the address on the ordinary network."""

    primary: str
    roots: tuple[RootComplex, ...]
    bonds: tuple[Bond, ...] = ()
    cpu: Cpu = Cpu()
    system: System = System()
    rails: Literal["routed", "isolated"] = "routed"
    """Whether ports of one rail reach those of the other rails."""
    gid_slots: int = 256
    """Entries of each RDMA port's GID table (roce_address_table_size of a ConnectX-6 Dx)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInterface:
    """One interface of one node: a port or bond with its addresses.

    ipv4, ipv6: addresses with prefix length; rail: None on the ordinary network; rdma: '' for none
    enabled: the machine has switched it on
    carrier: the other end of the cable answers
    link_layer: of its RDMA port
    roce:    kinds of GID that the driver makes, in order
    address_gids: the driver makes GIDs of the interface's addresses
    """

    name: str
    mac: str
    mtu: int
    speed_mbps: int
    ipv4: tuple[str, ...] = ()
    ipv6: tuple[str, ...] = ()
    enabled: bool = True
    carrier: bool = True
    primary: bool = False
    rail: int | None = None
    rdma: str = ""
    bond: str = ""
    slaves: tuple[str, ...] = ()
    link_layer: LinkLayer = "Ethernet"
    roce: tuple[str, ...] = (ROCE_V1, ROCE_V2)
    address_gids: bool = True

    @property
    def linked(self) -> bool:
        """It has a link: it is enabled, and the other end of the cable answers."""
        return self.enabled and self.carrier


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a recorded machine showed.

    sys:     the tree below /sys if the interfaces really exist
    written: the same with all recorded files of the interfaces
    proc:    the tree below /proc
    etc:     other files by their path
    nvml:    NVML's answers (keys: nvml.c)
    gpus:    number of GPUs in them
    """

    sys: FileTree
    written: FileTree
    proc: FileTree
    etc: Mapping[str, str]
    nvml: str
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMachine:
    """One node's own copy of a machine: the same hardware, with its own numbers.

    seed: source of serial numbers and GUIDs, so that they differ between nodes and stay the same between runs
    recording: shown in place of the files derived from the description
    """

    machine: Machine
    node: str
    seed: str
    interfaces: tuple[NetworkInterface, ...]
    recording: Recording | None = None

    def interface(self, name: str) -> NetworkInterface:
        """The interface of this name; raises KeyError."""
        for interface in self.interfaces:
            if interface.name == name:
                return interface
        raise KeyError(name)
