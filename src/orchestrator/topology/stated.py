"""What a snapshot tells of itself: what a text that somebody pasted states without a place in the PCI tree, and what
was not read although it is there, by what rests on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.model.snapshot import ANSWERS, NOT_RECORDED, Snapshot, part
from orchestrator.model.topology import Area, NotRead, PathType, PciDevice, RdmaPort, Stated
from orchestrator.topology.gpus import nvml_devices
from orchestrator.topology.pci import is_address, normal_address
from orchestrator.topology.rdma import port_folder

WORD = re.compile(r"X|PIX|PXB|PHB|NODE|SYS|SOC|NV[0-9]{1,2}|N/A|DIS|\?")
"""What a cell of `nvidia-smi topo -m` may say; SOC is SYS in drivers before 384."""
_TYPES = {
    "PIX": PathType.PIX,
    "PXB": PathType.PXB,
    "PHB": PathType.PHB,
    "NODE": PathType.PHB,
    "SYS": PathType.SYS,
    "SOC": PathType.SYS,
}
PASTED = "pasted"
"""In a snapshot's host facts: what was read out of a text, {"forms": [...], "areas": [...], "stated": {...}}."""
TEXT = "the pasted text"
"""In place of a path, of what such a text does not tell."""
_MOST = 256


def pasted(snapshot: Snapshot) -> Mapping[str, Any]:
    """What of a snapshot comes out of a text that somebody pasted; {} for all others."""
    return part(snapshot.host, PASTED)


def stated_of(snapshot: Snapshot) -> Stated | None:
    """The matrix of a pasted text; of one that was saved by hand as much as is well-formed."""
    raw = part(pasted(snapshot), "stated")
    if not raw:
        return None
    rows = raw.get("rows")
    rows = rows if isinstance(rows, (list, tuple)) else ()
    return Stated(
        heads=texts(raw.get("heads")),
        names=tuple((str(head), str(name)) for head, name in part(raw, "names").items()),
        columns=texts(raw.get("columns")),
        rows=tuple(
            (str(row[0]), texts(row[1]), texts(row[2]))
            for row in rows
            if isinstance(row, (list, tuple)) and len(row) == 3
        )[:_MOST],
    )


def recognised(snapshot: Snapshot) -> tuple[str, ...]:
    """The forms that a pasted snapshot was read from."""
    return texts(pasted(snapshot).get("forms"))


def sockets_of(snapshot: Snapshot) -> tuple[str, ...]:
    """Interfaces that NCCL's pasted log says it used TCP over."""
    return texts(pasted(snapshot).get("sockets"))


def lacking_of(snapshot: Snapshot) -> tuple[str, ...]:
    """What a pasted matrix has no rows or columns of, in words."""
    return texts(pasted(snapshot).get("lacking"))


def cards_of(snapshot: Snapshot) -> tuple[str, ...]:
    """Network cards of a list without a tree, as it calls them."""
    return texts(pasted(snapshot).get("cards"))


def nccl_speeds(snapshot: Snapshot) -> list[tuple[str, str, str]]:
    """(GPU or NIC, PCI address, GB/s) of the links that NCCL's graph in a text has above its ends."""
    rows = [entry.split("|") for entry in texts(pasted(snapshot).get("nccl_speeds"))]
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]


def nameless_gpus(snapshot: Snapshot) -> list[Mapping[str, Any]]:
    """What pieces of nvidia-smi's answers tell of a GPU without its place in a list, as NVML's devices."""
    return mappings(pasted(snapshot).get("nameless"))


def nameless_words(piece: Mapping[str, Any]) -> str:
    """What such a GPU is called: by its address, where the piece has it."""
    return f"the GPU at {piece['pci_bus_id']}" if piece.get("pci_bus_id") else "a GPU that the text does not name"


def is_whole_tree(snapshot: Snapshot) -> bool:
    """Whether a pasted lspci shows by its bus numbers that no bridge is missing above the GPUs that it has."""
    return pasted(snapshot).get("whole") is True


def path_of(word: str) -> PathType | None:
    """NCCL's name for a word of nvidia-smi; None for what says nothing."""
    return PathType.NVL if word.startswith("NV") else _TYPES.get(word)


def with_stated(ports: tuple[RdmaPort, ...], stated: Stated | None) -> tuple[RdmaPort, ...]:
    """The ports, and one for each RDMA device that is stated alone: nothing is known of it but how far it is."""
    known = {port.device for port in ports}
    names = [name for name in dict.fromkeys(stated.nics if stated else ()) if name not in known]
    placeless = RdmaPort(device="", port=1, address="", key="", switch="", numa_node=-1, gids_recorded=False)
    return (*ports, *(replace(placeless, device=name) for name in names))


def texts(raw: Any) -> tuple[str, ...]:
    """The entries of a list out of a snapshot; () for what is none."""
    return tuple(str(entry) for entry in raw)[:_MOST] if isinstance(raw, (list, tuple)) else ()


def mappings(raw: Any) -> list[Mapping[str, Any]]:
    """Those of a list's entries out of a snapshot that are mappings; [] for what is no list."""
    return [entry for entry in raw if isinstance(entry, Mapping)] if isinstance(raw, (list, tuple)) else []


_FUNCTION = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_PLACES = (
    (Area.PCI, "PCI", rf"/sys/bus/pci/devices(/{_FUNCTION})?|/sys/devices/pci[^/]*(/{_FUNCTION})*"),
    (Area.PCI, "PCI", rf"/sys/.*/{_FUNCTION}/(class|vendor|device|subsystem_vendor|subsystem_device|physfn)"),
    (Area.LINKS, "PCI", rf"/sys/.*/{_FUNCTION}/(current|max)_link_(speed|width)"),
    (Area.NUMA, "processors", rf"/sys/.*/{_FUNCTION}/numa_node|/sys/devices/system/node(/node[0-9]+)?|/proc/cpuinfo"),
    (Area.INTERFACES, "network interfaces", r"/sys/class/net(/.*)?|/sys/devices/.*/net(/.*)?|/sys/devices/virtual"),
    (Area.RDMA, "RDMA devices", r"/sys/class/infiniband|/sys/.*/infiniband(/[^/]+(/device|/ports)?)?"),
    (Area.PORTS, "RDMA devices", r"/sys/.*/infiniband/[^/]+/ports/[0-9]+(/(state|phys_state|rate|link_layer))?"),
    (Area.PORTS, "RDMA devices", r"/sys/.*/infiniband/[^/]+/ports/[0-9]+/(gids|gid_attrs)(/.*)?"),
)  # fmt: skip
"""What is read, the part of a look that reads it (node/look/hardware.py), and its paths."""
_PATHS = tuple((area, part, re.compile(paths)) for area, part, paths in _PLACES)
_ROOTS = ("/sys/bus/pci/devices", "/sys/devices/pci", "/sys/class/net", "/sys/class/infiniband")
_PORT = re.compile(r"/infiniband/([^/]+)/ports/[0-9]+/state$")
_UNCOLLECTED = "not collected"


def find_unread(
    snapshot: Snapshot, devices: Sequence[PciDevice], ports: Sequence[RdmaPort], rdma: Mapping[str, str]
) -> tuple[NotRead, ...]:
    """Everything that was not read although it is there: errors without an answer, and gaps that show themselves.

    rdma: {RDMA device: key of its PCI function}
    """
    unread = [*_pasted(snapshot), *_failed(snapshot), *_functions(snapshot), *_domains(snapshot, devices)]
    unread += (lacking for port in ports for lacking in _gids(snapshot, port))
    if snapshot.nvml.get("error") != NOT_RECORDED:  # a look of ours asks for all of it
        unread += [*_network(snapshot), *_rdma(snapshot, rdma, ports)]
        unread += [*_nvml(snapshot.nvml), *_gpus(snapshot.nvml, devices)]
    return tuple(dict.fromkeys(unread))


def _pasted(snapshot: Snapshot) -> Iterator[NotRead]:
    """Everything that a text which somebody pasted does not tell."""
    areas_told = texts(pasted(snapshot).get("areas"))
    areas = [area for area in Area if area.name not in areas_told] if pasted(snapshot) else []
    yield from (NotRead(area, TEXT, _UNCOLLECTED) for area in areas)


def _failed(snapshot: Snapshot) -> Iterator[NotRead]:
    for path, reason in snapshot.errors.items():
        if reason not in ANSWERS:
            above = any(root.startswith(f"{path.rstrip('/')}/") for root in _ROOTS)
            for area, part, paths in _PATHS:
                if path == part or above or paths.fullmatch(path):
                    yield NotRead(area, path, reason)


def _functions(snapshot: Snapshot) -> Iterator[NotRead]:
    """Functions that are there without what says what they are."""
    for name in snapshot.names("/sys/bus/pci/devices"):
        key = snapshot.realpath(f"/sys/bus/pci/devices/{name}")
        for file in ("class", "vendor", "device"):
            if is_address(name) and snapshot.names(key) and f"{key}/{file}" not in snapshot.files:
                yield NotRead(Area.PCI, f"{key}/{file}", _UNCOLLECTED)


def _domains(snapshot: Snapshot, devices: Sequence[PciDevice]) -> Iterator[NotRead]:
    """Functions without a domain's number, where others have one."""
    left = [path for device in devices if (path := f"{device.key}/numa_node") not in snapshot.files]
    for path in left if len(left) < len(devices) else ():
        if path not in snapshot.errors and snapshot.names(path.rpartition("/")[0]):
            yield NotRead(Area.NUMA, path, _UNCOLLECTED)


def _network(snapshot: Snapshot) -> Iterator[NotRead]:
    host, folder = snapshot.host, "/sys/class/net"
    if "addresses" not in host or host.get("addresses_error"):
        yield NotRead(Area.ADDRESSES, "addresses", str(host.get("addresses_error") or _UNCOLLECTED))
    names = snapshot.names(folder)
    if not names and host.get("addresses"):
        yield NotRead(Area.INTERFACES, folder, _UNCOLLECTED)
    for name in names:
        at = snapshot.realpath(f"{folder}/{name}")
        path = f"{at}/operstate"
        if snapshot.names(at) and path not in snapshot.files:
            yield NotRead(Area.INTERFACES, path, snapshot.errors.get(path, _UNCOLLECTED))


def _rdma(snapshot: Snapshot, rdma: Mapping[str, str], ports: Sequence[RdmaPort]) -> Iterator[NotRead]:
    folder = "/sys/class/infiniband"
    for path in snapshot.files:
        if path.endswith("/state") and (hidden := _PORT.search(path)) and hidden[1] not in rdma:
            yield NotRead(Area.RDMA, f"{folder}/{hidden[1]}", _UNCOLLECTED)
    for device in rdma.keys() - {port.device for port in ports}:
        at = snapshot.realpath(f"{folder}/{device}")
        if snapshot.names(at) or not ports:
            yield NotRead(Area.RDMA, f"{at}/ports", _UNCOLLECTED)
    for port in ports:
        at = port_folder(snapshot, port)
        for name, value in (("state", port.state), ("link_layer", port.link_layer)):
            if not value:
                yield NotRead(Area.PORTS, f"{at}/{name}", snapshot.errors.get(f"{at}/{name}", _UNCOLLECTED))


def _gids(snapshot: Snapshot, port: RdmaPort) -> Iterator[NotRead]:
    """Entries of the GID table of which a part is there: each has a GID, and what others have beside it."""
    yield from _types_without_a_gid(snapshot, port)
    told_of = {"types": any(gid.type for gid in port.gids), "ndevs": any(gid.netdev for gid in port.gids)}
    names = [name for name, there in told_of.items() if there]
    for gid in port.gids:
        for name in names:
            path = f"{port_folder(snapshot, port)}/gid_attrs/{name}/{gid.index}"
            if path not in snapshot.files and path not in snapshot.errors:
                yield NotRead(Area.PORTS, path, _UNCOLLECTED)


def _types_without_a_gid(snapshot: Snapshot, port: RdmaPort) -> Iterator[NotRead]:
    at = port_folder(snapshot, port)
    gids = {str(gid.index) for gid in port.gids}
    for index in snapshot.names(f"{at}/gid_attrs/types"):
        typed = f"{at}/gid_attrs/types/{index}" in snapshot.files
        if typed and index not in gids and f"{at}/gids/{index}" not in snapshot.files:
            yield NotRead(Area.PORTS, f"{at}/gids/{index}", _UNCOLLECTED)


def _nvml(nvml: Mapping[str, Any]) -> Iterator[NotRead]:
    count, errors = "nvmlDeviceGetCount", part(nvml, "errors")
    if nvml.get("unread"):
        yield NotRead(Area.GPUS, "NVML", str(nvml["unread"]))
    elif not nvml.get("error") and (count in errors or not isinstance(nvml.get("devices"), (list, tuple))):
        yield NotRead(Area.GPUS, count, str(errors.get(count, _UNCOLLECTED)))


def _gpus(nvml: Mapping[str, Any], devices: Sequence[PciDevice]) -> Iterator[NotRead]:
    """GPUs of which NVML told nothing, and those that it shows and the bus does not."""
    there = {device.address for device in devices if device.class_code}
    for gpu in nvml_devices(nvml):
        address = normal_address(str(gpu.get("pci_bus_id") or ""))
        if address and address not in there:
            yield NotRead(Area.PCI, f"/sys/bus/pci/devices/{address}", _UNCOLLECTED)
        if not (gpu.get("name") or gpu.get("memory") or gpu.get("errors")):
            yield NotRead(Area.GPUS, f"GPU {gpu.get('index')}", _UNCOLLECTED)
