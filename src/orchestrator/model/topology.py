"""A machine as NCCL will see it: built from a snapshot by `topology.build`, never from a description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property


class PathType(IntEnum):
    """How far apart two devices are, in NCCL's order (src/graph/topo.h, PATH_*); smaller is nearer."""

    LOC = 0
    NVL = 1
    """NVLink, direct or through NVSwitch."""
    PIX = 4
    """One PCIe switch between them."""
    PXB = 5
    """More than one PCIe switch, and no CPU."""
    PHB = 8
    """Across the CPU's PCIe host bridge, same NUMA domain."""
    SYS = 9
    """Across the link between CPU sockets."""
    DIS = 11
    """No path."""


class Area(Enum):
    """A kind of facts that is read as a whole, and what an operator calls it."""

    PCI = "the PCI functions"
    LINKS = "the speeds and widths of PCIe links"
    NUMA = "the NUMA domains"
    INTERFACES = "the network interfaces"
    ADDRESSES = "the IP addresses"
    RDMA = "the RDMA devices"
    PORTS = "the states and GIDs of RDMA ports"
    GPUS = "NVML's answers"


PLACES = (Area.PCI, Area.NUMA)
NETWORKS = (Area.INTERFACES, Area.ADDRESSES)
RAILS = (Area.PCI, *NETWORKS, Area.RDMA, Area.PORTS)
"""What tells which RDMA ports carry the gang's traffic."""


@dataclass(frozen=True, slots=True)
class NotRead:
    """Something that is there and was not read. reason: errno name, or 'not collected'"""

    area: Area
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """A PCIe link: transfer rate per lane in GT/s and lanes; 0 where unknown."""

    speed_gts: float = 0.0
    width: int = 0

    @property
    def words(self) -> str:
        """'16 GT/s x16', or as much of it as is known."""
        speed = f"{self.speed_gts:g} GT/s" if self.speed_gts else ""
        width = f"x{self.width}" if self.width else ""
        return " ".join(word for word in (speed, width) if word)


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """One PCI function.

    address: DDDD:BB:DD.F in lower case, with a domain of 4 to 8 hex digits
    key:     unique within a snapshot even where two functions claim one address: the real sysfs path
    parent:  key of the device above (a bridge), '' for a function on a root bus
    root:    name of the root bus, for example pci0000:15
    """

    address: str
    key: str
    parent: str
    root: str
    vendor: int
    device: int
    subsystem_vendor: int = 0
    subsystem_device: int = 0
    class_code: int
    """24 bits, for example 0x030200 for a 3D controller."""
    revision: int = 0
    numa_node: int = -1
    link: PcieLink = PcieLink()
    link_max: PcieLink = PcieLink()
    driver: str = ""
    virtual: bool = False
    """An SR-IOV virtual function of a card that the same machine holds."""
    slot: str = ""
    """Physical slot's name from /sys/bus/pci/slots, '' where the firmware names none."""

    @property
    def is_bridge(self) -> bool:
        return self.class_code >> 8 == 0x0604


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A PCIe switch, identified by its upstream port as NCCL does (src/graph/xml.cc)."""

    key: str
    address: str
    numa_node: int
    parent_switch: str = ""
    """Key of the switch above where switches nest."""
    merged_into: str = ""
    """Key of the switch that NCCL takes this one for a part of (see topology.switches), '' for none."""
    link: PcieLink = PcieLink()
    link_max: PcieLink = PcieLink()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory on a GPU; the pid is the node's."""

    pid: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLinks:
    """A GPU's NVLinks to one other end.

    target: its PCI address in lower case; of digits f where NVML does not say it, as in a virtual machine
    switch: it is an NVSwitch, as NCCL takes whatever the machine's PCI tree does not show for one
    """

    target: str
    count: int
    switch: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU: NVML's answer joined with its PCI function.

    index:        NVML's, which is CUDA's under CUDA_DEVICE_ORDER=PCI_BUS_ID; -1 where NVML does not show it
    memory_*:     bytes; used excludes what the driver reserves (NVML's v2 memory info)
    sm:           compute capability as NCCL writes it (89 for 8.9), 0 where unknown
    nvlinks:      those that NCCL would use; None where unknown
    lost:         NVML's error for this device, '' when it answers
    """

    index: int
    address: str
    key: str
    switch: str
    numa_node: int
    name: str = ""
    uuid: str = ""
    memory_total: int = 0
    memory_used: int = 0
    link: PcieLink = PcieLink()
    link_max: PcieLink = PcieLink()
    processes: tuple[GpuProcess, ...] = ()
    sm: int = 0
    nvlinks: tuple[NvLinks, ...] | None = None
    lost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    """One entry of a port's GID table: index, the 16 bytes as sysfs prints them, type and net device."""

    index: int
    gid: str
    type: str
    """'RoCE v2', 'IB/RoCE v1', or '' where the slot's type could not be read."""
    netdev: str = ""

    @property
    def ipv4(self) -> str | None:
        """The IPv4 address of an IPv4-mapped GID (::ffff:a.b.c.d), else None."""
        head, _, tail = self.gid.rpartition("0000:0000:0000:0000:0000:ffff:")
        if head or not tail or not self.gid.startswith("0000:"):
            return None
        digits = tail.replace(":", "")
        if len(digits) != 8:
            return None
        return ".".join(map(str, bytes.fromhex(digits)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPort:
    """One port of an RDMA device. A dual-port mlx5 card is two devices with one port each."""

    device: str
    port: int
    address: str
    """PCI address of the function."""
    key: str
    switch: str
    """Key of the PCIe switch above it, '' on a root port."""
    numa_node: int
    netdev: str = ""
    state: str = ""
    """As sysfs has it without its number: ACTIVE, DOWN, INIT."""
    phys_state: str = ""
    rate_gbps: float = 0.0
    link_layer: str = ""
    gids: tuple[Gid, ...] = ()
    gids_recorded: bool = True
    """False if the GID table was not read: an empty `gids` then means nothing."""
    virtual: bool = False
    """It belongs to an SR-IOV virtual function."""
    firmware: str = ""
    board: str = ""

    @property
    def name(self) -> str:
        return f"{self.device}:{self.port}"

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface with what is configured on it."""

    name: str
    key: str = ""
    """Key of its PCI function; '' for a bond, bridge or veth."""
    address: str = ""
    mac: str = ""
    mtu: int = 0
    operstate: str = ""
    carrier: bool | None = None
    speed_mbps: int = 0
    ipv4: tuple[str, ...] = ()
    """Addresses with prefix length, for example 10.0.0.11/24."""
    ipv6: tuple[str, ...] = ()
    bond: str = ""
    """Name of the bond that it is a slave of."""
    slaves: tuple[str, ...] = ()
    physical: bool = False

    @property
    def up(self) -> bool:
        return self.operstate == "up" or (self.operstate == "unknown" and self.carrier is True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaDomain:
    """One NUMA domain and its CPUs, as the kernel lists them (`0-31,64-95`)."""

    node: int
    cpulist: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuModel:
    """What NCCL asks of the CPU: architecture, vendor, family and model decide the speed between sockets.

    arch: x86_64, arm64 or ppc64, as NCCL writes them; '' where unknown
    """

    arch: str = ""
    vendor: str = ""
    family: int = 0
    model: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """The matrix of `nvidia-smi topo -m` as somebody pasted it: path types without a place.

    heads:   its columns of devices: GPU0, NIC0
    names:   what its legend calls them: (NIC0, mlx5_0)
    columns: titles after the devices
    rows:    (head, a word for each head, a cell for each title); '' for what was cut off
    """

    heads: tuple[str, ...]
    names: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = ()

    def name(self, head: str) -> str:
        """GPU0, or the RDMA device of a NIC where the legend has one."""
        return dict(self.names).get(head, head)

    @property
    def nics(self) -> tuple[str, ...]:
        """RDMA devices."""
        return tuple(self.name(head) for head in self.heads if not head.startswith("GPU"))

    def words(self) -> dict[tuple[str, str], str]:
        """By both names, in both orders; of a row that was cut off, what the other one says."""
        links = {
            (self.name(row), self.name(head)): word
            for row, words, _ in self.rows
            for head, word in zip(self.heads, words, strict=False)
            if word
        }
        return {(other, name): word for (name, other), word in links.items()} | links


@dataclass(frozen=True, kw_only=True)
class Topology:
    """One node's hardware and network as its own files show them."""

    node: str
    hostname: str = ""
    cpu: CpuModel = CpuModel()
    numa: tuple[NumaDomain, ...] = ()
    pci: tuple[PciDevice, ...] = ()
    switches: tuple[Switch, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    rdma: tuple[RdmaPort, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    sockets: tuple[str, ...] = ()
    """Interfaces that NCCL's own file lists as its network: it used TCP over them, and no RDMA port."""
    stated: Stated | None = None
    of_text: bool = False
    """Read in a text that somebody pasted: of a line that is not in it nothing follows."""
    driver: str = ""
    nvml_error: str = ""
    unread: tuple[NotRead, ...] = ()

    @cached_property
    def devices(self) -> Mapping[str, PciDevice]:
        """PCI functions by key."""
        return {device.key: device for device in self.pci}

    def lacks(self, *areas: Area) -> tuple[NotRead, ...]:
        """What was not read of these areas."""
        return tuple(area for area in self.unread if area.area in areas)

    def interface(self, name: str) -> Interface | None:
        return next((interface for interface in self.interfaces if interface.name == name), None)
