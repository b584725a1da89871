"""A topology as the XML that NCCL writes to NCCL_TOPO_DUMP_FILE and reads from NCCL_TOPO_FILE, and back.

Element and attribute names: NCCL src/graph/xml.cc (ncclTopoXmlGraph..., ncclTopoFillGpu, ncclTopoFillNet). A switch
is its upstream port; its downstream ports are left out, as NCCL leaves them out. Links are written at what both ends
can do: a dump that NCCL makes of idle GPUs may show them at generation 1, and one made in a virtual machine, which
shows no port above a GPU, width 0, which NCCL counts as 16. What sysfs does not say of a GPU's link, NVML does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import NOT_RECORDED
from orchestrator.model.topology import (
    RAILS,
    Area,
    CpuModel,
    Gpu,
    NotRead,
    NumaDomain,
    NvLinks,
    PciDevice,
    PcieLink,
    RdmaPort,
    Switch,
    Topology,
)
from orchestrator.topology.build import cpumap
from orchestrator.topology.distance import Distances
from orchestrator.topology.gpus import NVSWITCH
from orchestrator.topology.pci import TWICE, XML_ROOT, best_link, card, is_address, number, sort_key, speed_gts
from orchestrator.topology.rdma import natural, ports_by_card
from orchestrator.topology.switches import SwitchPlaces, merged

_FORBIDDEN = re.compile(r"<!\s*(DOCTYPE|ENTITY)", re.IGNORECASE)
_LARGEST = 8 << 20
_DEEPEST = 32
_GPU_CLASS = 0x030200
_GPU_CLASSES = (0x0302, 0x0300)
_MBIT = 1000
_IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device")
_UNREAD = "l40s_unread"
_SHOWN = (*RAILS, Area.NUMA, Area.LINKS)


def nccl_xml(topology: Topology) -> str:
    """One <system> with a <cpu> for each NUMA domain that has a GPU or an active RDMA card. What was not read, and may
    be missing in it, is named in an attribute of ours, which NCCL passes over (src/graph/xml.cc, xmlGetNode)."""
    lacking = ",".join(
        dict.fromkeys(lacking_area.area.name for lacking_area in topology.unread if lacking_area.area in _SHOWN)
    )
    unread = {_UNREAD: lacking} if lacking else {}
    head, inside = _attributes({"version": 1, **unread}), (f"  {line}" for line in _Writer(topology).cpus())
    return "\n".join([f"<system{head}>", *inside, "</system>", ""])


class _Writer:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.devices = topology.devices
        self.places = SwitchPlaces(topology.switches, merge=False)
        self.distances = Distances(topology)
        self.switches = {switch.key: switch for switch in topology.switches}
        self.gpus = {gpu.key: gpu for gpu in topology.gpus if gpu.key in self.devices}
        active = [port for port in topology.rdma if port.active and port.key in self.devices]
        self.cards = {ports[0].key: ports for ports in ports_by_card(active).values()}
        order = sorted(active, key=lambda port: (sort_key(port.address), port.port))
        self.net_numbers = {port: place for place, port in enumerate(order)}

    def cpus(self) -> Iterator[str]:
        domains = collected((self.distances.numa_node(key), key) for key in (*self.gpus, *self.cards))
        for domain, leaves in sorted(domains.items()):
            yield from _element("cpu", self._cpu(domain), self._branch(leaves, depth=0))

    def _cpu(self, domain: int) -> dict[str, object]:
        cpu = self.topology.cpu
        cpulist = next((numa.cpulist for numa in self.topology.numa if numa.node == domain), "")
        x86 = {"vendor": cpu.vendor, "familyid": cpu.family, "modelid": cpu.model}
        arch = cpu.arch or "x86_64"
        return {"numaid": domain, "affinity": cpumap(cpulist), "arch": arch} | (x86 if arch == "x86_64" else {})

    def _branch(self, leaves: Sequence[str], depth: int) -> Iterator[str]:
        """Everything below one switch, or below the CPU at depth 0: switches first, then what hangs there itself."""
        chains = {key: self.places.above(key) for key in leaves}
        below = collected((chain[-1 - depth], key) for key, chain in chains.items() if len(chain) > depth)
        for switch, members in sorted(below.items()):
            attributes = self._pci(self.switches[switch].address, self.devices.get(switch), 0x060400)
            yield from _element("pci", attributes, self._branch(members, depth + 1))
        for key, chain in chains.items():
            if len(chain) <= depth:
                yield from self._leaf(self.devices[key], self.gpus.get(key))

    def _leaf(self, device: PciDevice, gpu: Gpu | None) -> Iterator[str]:
        nets = (line for port in self.cards.get(device.key, ()) for line in _element("net", self._net(port)))
        address = device.address if gpu else f"{card(device.address)}.0"
        attributes = self._pci(address, device, device.class_code)
        yield from _element("pci", attributes, _gpu(gpu) if gpu else _element("nic", {}, nets))

    def _net(self, port: RdmaPort) -> dict[str, object]:
        named = {"name": port.device, "dev": self.net_numbers[port], "latency": "0.0"}
        return {**named, "speed": int(port.rate_gbps * _MBIT), "port": port.port, "gdr": 1}

    def _pci(self, address: str, device: PciDevice | None, class_code: int) -> dict[str, object]:
        link = best_link(device, self.devices) if device else PcieLink()
        if device is not None and (gpu := self.gpus.get(device.key)):
            link = PcieLink(speed_gts=link.speed_gts or gpu.link_max.speed_gts, width=link.width or gpu.link_max.width)
        return {
            "busid": address,
            "class": f"0x{class_code:06x}",
            **{name: f"0x{getattr(device, name):04x}" for name in (_IDS if device else ())},
            "link_speed": f"{link.speed_gts:.1f} GT/s PCIe" if link.speed_gts else "",
            "link_width": link.width,
        }


def _gpu(gpu: Gpu) -> Iterator[str]:
    """What is unknown is left out: NCCL then asks for it itself."""
    links = (
        {"target": link.target, "count": link.count, "tclass": f"0x{NVSWITCH if link.switch else _GPU_CLASS:06x}"}
        for link in gpu.nvlinks or ()
    )
    attributes = {"dev": gpu.index, **({"sm": gpu.sm} if gpu.sm else {}), "rank": gpu.index, "gdr": 1}
    yield from _element("gpu", attributes, (line for link in links for line in _element("nvlink", link)))


def _element(tag: str, attributes: Mapping[str, object], inner: Iterable[str] = ()) -> Iterator[str]:
    """Its lines, what is in it indented."""
    inside = [f"  {line}" for line in inner]
    yield f"<{tag}{_attributes(attributes)}{'' if inside else '/'}>"
    yield from (*inside, f"</{tag}>") if inside else ()


def _attributes(values: Mapping[str, object]) -> str:
    return "".join(f" {name}={quoteattr(_clean(str(value)))}" for name, value in values.items())


def _clean(text: str) -> str:
    """XML has no way to write control characters or lone surrogates."""
    return "".join(char if char.isprintable() and not "\ud800" <= char <= "\udfff" else "?" for char in text)


_TAG = re.compile(r"<(/?)([a-z]{2,16})\b[^<>]{0,2000}?(/?)>")


def closed(text: str) -> str:
    """A file whose end was cut off, with its open elements closed and everything in it marked as not wholly read."""
    whole = text[: text.rfind(">") + 1]
    left: list[str] = []
    for closing, name, empty in _TAG.findall(whole):
        if closing and left and left[-1] == name:
            left.pop()
        elif not closing and not empty:
            left.append(name)
    unread = ",".join(area.name for area in _SHOWN)
    marked = whole if _UNREAD in whole else whole.replace("<system", f'<system {_UNREAD}="{unread}"', 1)
    return marked + "".join(f"</{name}>" for name in reversed(left))


def beheaded(text: str) -> str:
    """A file whose beginning was cut off, from its first whole <cpu> on, as `closed` marks it; '' if there is none."""
    start, end = text.find("<cpu "), text.rfind(">")
    return closed(f'<system version="1">{text[start : end + 1]}') if 0 <= start < end else ""


def topology_of_xml(text: str, node: str) -> Topology:
    """What such a file says of a node. Without a GPU it describes a virtual machine's switches, and NCCL lists the
    cards alone that it uses: what is not in it may be there. Raises ValueError for what is no NCCL topology."""
    if len(text) > _LARGEST:
        raise ValueError(f"is larger than {_LARGEST >> 20} MiB")
    if _FORBIDDEN.search(text):
        raise ValueError("contains a DOCTYPE or an entity, which NCCL never writes")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - entities were refused above
    except ElementTree.ParseError as wrong:
        raise ValueError(f"is not XML: {wrong}") from None
    if root.tag != "system":
        raise ValueError(f"is not an NCCL topology: the outermost element is <{root.tag}>, wanted <system>")
    reader = _XmlReader()
    for cpu in root.iter("cpu"):
        reader.cpu(cpu)
    devices = sorted(reader.devices, key=lambda device: (sort_key(device.address), device.key))
    switches_read = sorted(reader.switches, key=lambda switch: (sort_key(switch.address), switch.key))
    switches = merged(switches_read, {device.key: device for device in devices})
    nearest = SwitchPlaces(switches).nearest
    ports = sorted(reader.ports, key=lambda port: (natural(port.device), port.port))
    return Topology(
        node=node,
        hostname=node,
        cpu=reader.model,
        numa=tuple(reader.domains),
        pci=tuple(devices),
        switches=switches,
        gpus=_numbered([replace(gpu, switch=nearest(gpu.key)) for gpu in reader.gpus]),
        rdma=tuple(replace(port, switch=nearest(port.key)) for port in ports),
        sockets=tuple(reader.sockets),
        of_text=True,
        nvml_error=NOT_RECORDED,
        unread=_unread_of(root, reader),
    )


def _unread_of(root: ElementTree.Element, reader: _XmlReader) -> tuple[NotRead, ...]:
    lacking = root.get(_UNREAD, "").split(",")
    if not reader.gpus and lacking == [""]:
        return (NotRead(Area.PCI, "<gpu>", "there is none in NCCL's file"),)
    return tuple(NotRead(area, f"<system {_UNREAD}>", area.name) for area in _SHOWN if area.name in lacking)


@dataclass
class _XmlReader:
    """Everything of a file; which switch is above a part is not told in it yet."""

    model: CpuModel = field(default_factory=CpuModel)
    domains: list[NumaDomain] = field(default_factory=list)
    devices: list[PciDevice] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    ports: list[RdmaPort] = field(default_factory=list)
    sockets: dict[str, None] = field(default_factory=dict)
    _seen: Counter[str] = field(default_factory=Counter)

    def cpu(self, element: ElementTree.Element) -> None:
        numa = number(element.get("numaid", ""), otherwise=-1)
        self.domains.append(NumaDomain(node=numa))
        self.model = CpuModel(
            arch=element.get("arch", ""),
            vendor=element.get("vendor", ""),
            family=number(element.get("familyid", "")),
            model=number(element.get("modelid", "")),
        )
        for pci in element.findall("pci"):
            self._pci(pci, f"{XML_ROOT}cpu{numa}", "", numa, 0)
        for nic in element.findall("nic"):  # NCCL writes those here that it knows no PCI function of
            self._networks(nic, None, numa)

    def _pci(self, element: ElementTree.Element, above: str, parent: str, numa: int, depth: int) -> None:
        address = element.get("busid", "").lower()
        if not is_address(address):
            raise ValueError(f"contains a <pci> with busid {address[:40]!r}, wanted DDDD:BB:DD.F")
        if depth > _DEEPEST:
            raise ValueError(f"nests more than {_DEEPEST} PCI switches")
        key = f"{above}/{address}"
        self._seen[key] += 1
        if self._seen[key] > 1:  # a virtual machine's description may use one address for several
            key = f"{above}/{TWICE}{self._seen[key]}{TWICE}{address}"
        width = max(0, number(element.get("link_width", "")))
        link = PcieLink(speed_gts=speed_gts(element.get("link_speed", "")), width=width)
        ids: dict[str, Any] = {name: number(element.get(name, ""), 16) for name in _IDS}
        device = PciDevice(
            address=address,
            key=key,
            parent=parent,
            root=above.split("/")[2],
            class_code=number(element.get("class", ""), 16),
            numa_node=numa,
            link_max=link,
            **ids,
        )
        self.devices.append(device)
        inner = element.findall("pci")
        if inner:
            self.switches.append(Switch(key=key, address=address, numa_node=numa, parent_switch=parent, link_max=link))
        else:
            self._gpu(element.find("gpu"), device)
            self._networks(element, device, numa)
        for child in inner:
            self._pci(child, key, key, numa, depth + 1)

    def _gpu(self, gpu: ElementTree.Element | None, device: PciDevice) -> None:
        attributes = gpu.attrib if gpu is not None else {}
        if gpu is not None or device.class_code >> 8 in _GPU_CLASSES:
            self.gpus.append(
                Gpu(
                    index=number(attributes.get("dev", ""), otherwise=-1),
                    address=device.address,
                    key=device.key,
                    switch="",
                    numa_node=device.numa_node,
                    link_max=device.link_max,
                    sm=max(0, number(attributes.get("sm", ""))),
                    nvlinks=_nvlinks(gpu),
                )
            )

    def _networks(self, element: ElementTree.Element, device: PciDevice | None, numa: int) -> None:
        """Sockets have port 0 (src/transport/net_socket.cc); ports that NCCL merged into one device are several."""
        for net in element.iter("net"):
            names = net.get("name", "").split("+")
            if net.get("port") == "0":
                self.sockets[net.get("name", "")] = None
                continue
            self.ports += [
                RdmaPort(
                    device=name,
                    port=max(0, number(net.get("port", ""), otherwise=1)),
                    address=device.address if device else "",
                    key=device.key if device else "",
                    switch="",
                    numa_node=numa,
                    state="ACTIVE",
                    gids_recorded=False,
                    rate_gbps=max(0, number(net.get("speed", ""))) / _MBIT / len(names),
                )
                for name in names
            ]


def _nvlinks(gpu: ElementTree.Element | None) -> tuple[NvLinks, ...] | None:
    """None where the file has none: NCCL writes nothing of a GPU without NVLink, and a file made by hand need not."""
    links = (
        NvLinks(
            target=link.get("target", "").lower(),
            count=max(0, number(link.get("count", ""))),
            switch=number(link.get("tclass", ""), 16, otherwise=NVSWITCH) == NVSWITCH,
        )
        for link in (gpu.findall("nvlink") if gpu is not None else ())
    )
    return tuple(links) or None


def _numbered(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """GPUs by index; a file made by hand has none, and then the order of addresses counts, as for CUDA."""
    ordered = sorted(gpus, key=lambda gpu: (gpu.index < 0, gpu.index, sort_key(gpu.address), gpu.key))
    numbered = any(gpu.index >= 0 for gpu in ordered)
    return tuple(gpu if numbered else replace(gpu, index=place) for place, gpu in enumerate(ordered))
