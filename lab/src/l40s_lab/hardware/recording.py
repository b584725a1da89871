"""A node that looks like a recorded machine: its /sys and /proc come from the snapshot's files, and its NVML as
recorded.

Live attributes of the node's interfaces (addresses, MTU, state) come from the kernel; the recording adds only those
that a virtual interface lacks. Memory and the list of CPUs stay this machine's: programs size themselves by them.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from l40s_lab.hardware.infiniband import mapped_gid
from l40s_lab.hardware.machine import Machine, NetworkInterface, NodeMachine, Recording, System
from l40s_lab.hardware.netdev import FIRST_INDEX
from l40s_lab.hardware.realise import digest, mac_of
from l40s_lab.life.addressing import FIRST_NODE
from l40s_lab.node.tree import FileTree
from orchestrator.model.snapshot import Snapshot
from orchestrator.protocol.errors import InputError

_NET = "/sys/class/net"
_VIRTUAL = "/sys/devices/virtual/net"
_INTERFACE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,15}")
_MAC = re.compile(r"[0-9a-f][02468ace](:[0-9a-f]{2}){5}")
_KERNELS_OWN = ("address", "carrier", "flags", "ifindex", "iflink", "mtu", "operstate")
"""Attributes of a live interface that come from the kernel itself."""
_OPAQUE = (
    "/bus/pci/devices", "/bus/pci/slots", "/class/infiniband", "/class/infiniband_verbs", "/class/pci_bus",
    "/devices/system/node", "/devices/virtual/dmi/id", "/kernel/iommu_groups",
)  # fmt: skip
_HEADER, _WHOLE_CONFIG = 64, 4096
"""Bytes of a configuration space that any user may read, and bytes that root may read."""
_THIS_MACHINES = ("/devices/system/cpu/online",)
_SHOWN_SETTINGS = ("/sys/kernel/numa_balancing", "/sys/kernel/osrelease", "/sys/vm/nr_hugepages",
                   "/sys/vm/zone_reclaim_mode")  # fmt: skip
_SHOWN_ETC = ("/etc/nccl.conf", "/var/run/nvidia-topologyd/virtualTopology.xml")


def networks(snapshots: Iterable[Snapshot]) -> dict[str, int]:
    """IPv4 network of the recorded interfaces -> a number from 1. Interfaces in the same network are cabled
    together."""
    found = {
        str(ipaddress.IPv4Interface(address).network)
        for snapshot in snapshots
        for name in _live_names(snapshot)
        for address in _addresses(snapshot, name)
    }
    return {network: number for number, network in enumerate(sorted(found), start=1)}


def realise(
    snapshot: Snapshot, cabling: Mapping[str, int], *, lab: str, node: str, index: int, address: str, copy: bool
) -> NodeMachine:
    """A recorded machine as a node of a lab.

    cabling: from `networks`; address: the node's own on the ordinary network
    copy:    another node already shows this snapshot, so addresses and MACs must differ from its
    Raises InputError if no interface was recorded.
    """
    seed = f"{lab}/{node}"
    primary = primary_interface(snapshot)
    interfaces = []
    renumbered: dict[str, str] = {}
    for name in _live_names(snapshot):
        before = _addresses(snapshot, name)
        after = [f"{address}/24"] if name == primary else [_moved(one, index) if copy else one for one in before]
        renumbered |= dict(zip(map(_host, before), map(_host, after), strict=False))
        interfaces.append(_interface(snapshot, name, after, cabling, before, primary, seed, copy=copy))
    return NodeMachine(
        machine=Machine(primary=primary, roots=(), system=_system(snapshot)),
        node=node,
        seed=seed,
        interfaces=tuple(interfaces),
        recording=Recording(
            sys=_sys(snapshot, interfaces, renumbered, live=True),
            written=_sys(snapshot, interfaces, renumbered, live=False),
            proc=_proc(snapshot, seed),
            etc={path: snapshot.files[path].rstrip("\n") for path in _SHOWN_ETC if path in snapshot.files},
            nvml=nvml_configuration(snapshot.nvml),
            gpus=len(snapshot.nvml.get("devices") or ()),
        ),
    )


def primary_interface(snapshot: Snapshot) -> str:
    """The interface that gets the node's address in the lab: preferably a bond or port without RDMA that had one."""
    names = _live_names(snapshot)
    if not names:
        raise InputError(
            "no network interface was recorded",
            where=f"snapshot of {snapshot.node}",
            fix="record the node again by `discover --save`",
        )
    rdma = {name for name in names if snapshot.names(f"{_NET}/{name}/device/infiniband")}
    return min(
        names,
        key=lambda name: (
            not _addresses(snapshot, name),
            name in rdma,
            not snapshot.names(f"{_NET}/{name}/bonding"),
            names.index(name),
        ),
    )


def _live_names(snapshot: Snapshot) -> list[str]:
    """Interfaces that the node will really have: the ports of cards, and their bonds."""
    found = [
        name
        for name in snapshot.names(_NET)
        if _INTERFACE_NAME.fullmatch(name) and name not in (".", "..", "lo") and _is_live(snapshot, name)
    ]
    return sorted(found, key=lambda name: (_number(snapshot, f"{_NET}/{name}/ifindex", 0), name))


def _is_live(snapshot: Snapshot, name: str) -> bool:
    return not snapshot.realpath(f"{_NET}/{name}").startswith(f"{_VIRTUAL}/") or bool(
        snapshot.names(f"{_NET}/{name}/bonding")
    )


def _addresses(snapshot: Snapshot, name: str, family: str = "inet") -> list[str]:
    """Recorded addresses with prefix lengths, without link-local ones, which the kernel makes itself."""
    by_name = snapshot.host.get("addresses")
    entries = by_name.get(name) if isinstance(by_name, dict) else None
    found = []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("family") == family:
            try:
                one = ipaddress.ip_interface(f"{entry.get('address')}/{entry.get('prefixlen')}")
            except ValueError:
                continue
            if not one.is_link_local:
                found.append(str(one))
    return found


def _moved(address: str, index: int) -> str:
    """Another host address of the same network."""
    interface = ipaddress.IPv4Interface(address)
    room = max(1, interface.network.num_addresses - 2)
    return f"{interface.network.network_address + 1 + (FIRST_NODE + index) % room}/{interface.network.prefixlen}"


def _host(address: str) -> str:
    return address.partition("/")[0]


def _interface(
    snapshot: Snapshot,
    name: str,
    addresses: list[str],
    cabling: Mapping[str, int],
    recorded: list[str],
    primary: str,
    seed: str,
    *,
    copy: bool,
) -> NetworkInterface:
    folder = f"{_NET}/{name}"
    mac = snapshot.text(f"{folder}/address").lower()
    bond = posixpath.basename(snapshot.links.get(f"{snapshot.realpath(folder)}/master", ""))
    rail = next((cabling[str(ipaddress.IPv4Interface(one).network)] for one in recorded), None)
    return NetworkInterface(
        name=name,
        mac=mac if _MAC.fullmatch(mac) and not copy and mac.strip("0:") else mac_of(seed, bond or name),
        mtu=min(max(_number(snapshot, f"{folder}/mtu", 1500), 576), 65535),
        speed_mbps=_number(snapshot, f"{folder}/speed", 0),
        ipv4=tuple(addresses),
        ipv6=() if copy else tuple(_addresses(snapshot, name, "inet6")),
        enabled=name == primary or bool(_number(snapshot, f"{folder}/flags", 1) & 1),
        carrier=name == primary or snapshot.text(f"{folder}/carrier") != "0",
        primary=name == primary,
        rdma=next(iter(snapshot.names(f"{folder}/device/infiniband")), ""),
        rail=rail,
        bond=bond,
        slaves=tuple(snapshot.text(f"{folder}/bonding/slaves").split()),
    )


def _number(snapshot: Snapshot, path: str, otherwise: int) -> int:
    try:
        return int(snapshot.text(path), 0)
    except ValueError:
        return otherwise


def _system(snapshot: Snapshot) -> System:
    limits = snapshot.host.get("limits")
    memlock = _limit(limits, "memlock", -1)
    found = re.search(r"^MemTotal:\s+(\d{1,15}) kB", snapshot.text("/proc/meminfo"), re.MULTILINE)
    return System(
        memory_gib=max(1, int(found[1]) >> 20) if found else 64,
        driver=str(snapshot.nvml.get("driver") or "0"),
        memlock="unlimited" if memlock < 0 else memlock,
        nofile=max(1024, _limit(limits, "nofile", 1048576)),
    )


def _limit(limits: Any, name: str, otherwise: int) -> int:
    pair = limits.get(name) if isinstance(limits, dict) else None
    return int(pair[0]) if isinstance(pair, list) and pair and isinstance(pair[0], int) else otherwise


def _refused(snapshot: Snapshot) -> list[str]:
    return [path for path, reason in snapshot.errors.items() if reason == "EINVAL"]


def _sys(
    snapshot: Snapshot, interfaces: Iterable[NetworkInterface], renumbered: Mapping[str, str], *, live: bool
) -> FileTree:
    """live: the interfaces really exist, and the kernel supplies their own attributes."""
    tree = FileTree()
    tree.opaque |= {*_OPAQUE}
    ours = {snapshot.realpath(f"{_NET}/{one.name}"): one.name for one in interfaces}
    own = _KERNELS_OWN if live else ()

    def shown(path: str) -> bool:
        return _is_shown(path, ours, own)

    _put_files(tree, {path: text for path, text in snapshot.files.items() if shown(path)}, renumbered)
    _put_links(tree, {path: target for path, target in snapshot.links.items() if shown(path)})
    if live:
        tree.einval |= {path.removeprefix("/sys") for path in filter(shown, _refused(snapshot))}
        for number, (folder, name) in enumerate(ours.items()):
            _live_interface(tree, folder.removeprefix("/sys"), name, number)
    tree.opaque |= _tops((*tree.files, *tree.links), "/devices/pci") | _tops(tree.files, "/module/")
    return tree


def _put_files(tree: FileTree, files: Mapping[str, str], renumbered: Mapping[str, str]) -> None:
    gids = {mapped_gid(old): mapped_gid(new) for old, new in renumbered.items() if old != new}
    for path, text in files.items():
        if path.endswith("/config"):
            tree.put(path.removeprefix("/sys"), _config_space(text))
            continue
        line = text.rstrip("\n")
        line = gids.get(text.strip(), line) if "/gids/" in path else line
        tree.put(path.removeprefix("/sys"), f"{line}\n".encode(errors="surrogateescape"))


def _put_links(tree: FileTree, links: Mapping[str, str]) -> None:
    for path, target in links.items():
        tree.links[path.removeprefix("/sys")] = target
        end = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if end.startswith("/sys/bus/pci/drivers/"):
            tree.folders.add(end.removeprefix("/sys"))


def _tops(paths: Iterable[str], below: str) -> set[str]:
    """The first two folders of each path that begins with `below`."""
    return {"/".join(path.split("/")[:3]) for path in paths if path.startswith(below)}


def _config_space(digits: str) -> bytes:
    """From a snapshot's hexadecimal digits, which leave out the trailing zeros of a complete space."""
    try:
        data = bytes.fromhex(digits)
    except ValueError:
        return b""
    return data.ljust(_WHOLE_CONFIG, b"\0") if len(data) > _HEADER else data


def _live_interface(tree: FileTree, folder: str, name: str, number: int) -> None:
    virtual = f"/devices/virtual/net/{name}"
    if folder != virtual:
        tree.borrowed[folder] = virtual
        tree.hidden.add(virtual)
    tree.put(f"{folder}/iflink", FIRST_INDEX + number)


def _is_shown(path: str, ours: Mapping[str, str], own: Collection[str]) -> bool:
    """ours: directory of each interface of the node -> its name; own: attributes that come from the kernel."""
    if not path.startswith("/sys/") or path.removeprefix("/sys") in _THIS_MACHINES:
        return False
    if path.startswith(f"{_NET}/"):
        return path.split("/")[4] in ours.values()
    for folder in ours:
        if path.startswith(f"{folder}/"):
            return path.removeprefix(f"{folder}/") not in own
    return not path.startswith(f"{_VIRTUAL}/")


def _proc(snapshot: Snapshot, seed: str) -> FileTree:
    tree = FileTree()
    for path, text in snapshot.files.items():
        inside = path.removeprefix("/proc")
        if path.startswith("/proc/driver/nvidia/") or path in ("/proc/cpuinfo", "/proc/cmdline"):
            tree.put(inside, text.encode(errors="surrogateescape"))
        elif path.startswith("/proc/sys/") and inside in _SHOWN_SETTINGS:
            tree.put(inside, text.strip())
        elif found := re.fullmatch(r"/proc/(?:\d+/|self/)?net(/(?:bonding|vlan)/[A-Za-z0-9_.-]+)", path):
            tree.put(f"/net{found[1]}", text.encode(errors="surrogateescape"))
    tree.put("/sys/kernel/random/boot_id", str(uuid.UUID(bytes=digest(seed, "boot")[:16], version=4)))
    return tree


_NOT_LOADED = 9
"""NVML_ERROR_DRIVER_NOT_LOADED."""
_LOST = 15
"""NVML_ERROR_GPU_IS_LOST."""
_FACTS = {
    "name": "name",
    "uuid": "uuid",
    "serial": "serial",
    "numa": "numa_node",
    "gen": "link.gen",
    "maxgen": "link.max_gen",
    "width": "link.width",
    "maxwidth": "link.max_width",
    "temp": "temperature_c",
    "power": "power_mw",
    "reasons": "clocks_event_reasons",
    "ecc_cor": "ecc.corrected",
    "ecc_unc": "ecc.uncorrected",
}
"""Key of the configuration -> its place in a recorded GPU."""
_MEMORY = {"mem_total": "memory.total", "mem_reserved": "memory.reserved", "bar1_total": "bar1_total"}
"""The same for sizes: MiB there, bytes here."""
_PAIRS = {"topo": "topology", "p2p": "p2p"}
"""The same for a GPU's relations to each other GPU."""


def nvml_configuration(nvml: Mapping[str, Any]) -> str:
    """The configuration (keys: nvml.c) that makes the lab's NVML answer like that of a snapshot."""
    devices = _dicts(nvml.get("devices"))
    lines = [] if devices or not nvml.get("error") else [f"init={_NOT_LOADED}"]
    lines += [f"{key}={_word(nvml[key])}" for key in ("driver", "nvml", "cuda") if nvml.get(key)]
    lines.append(f"count={len(devices)}")
    for index, device in enumerate(devices):
        lines += [f"{index}.{key}={_word(value)}" for key, value in _device_facts(device) if value is not None]
        lines += [f"{key}.{index}.{other}={_word(value)}" for key, other, value in _pair_facts(device)]
    return "\n".join(lines) + "\n"


def _device_facts(device: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    if "name" not in device:
        yield "fail", _LOST
    yield from ((key, _value(device, place)) for key, place in _FACTS.items())
    yield from ((key, _mib(_value(device, place))) for key, place in _MEMORY.items())
    yield "busid", str(device.get("pci_bus_id") or "").lower()[-12:] or None
    capability = device.get("compute_capability")
    if isinstance(capability, list) and len(capability) == 2:
        yield from zip(("sm_major", "sm_minor"), capability, strict=True)
    if links := _dicts(device.get("nvlinks")):
        yield "nvlinks", len(links)
        yield "nvlinks_up", sum(one.get("active") == 1 for one in links)
        yield "nvlink_remote", next((_long(one["remote"]) for one in links if one.get("remote")), None)


def _pair_facts(device: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    for key, place in _PAIRS.items():
        for other, value in _part(device, place).items():
            told = value.get("read") if isinstance(value, dict) else value
            if told is not None and str(other).isdigit():
                yield key, other, told


def _long(address: object) -> str:
    """In NVML's short form, a hidden address has seven digits f for its domain, in the long form eight."""
    domain, _, rest = str(address).lower().partition(":")
    return f"{'ffffffff' if domain == 'fffffff' else domain}:{rest}"


def _value(device: Mapping[str, Any], place: str) -> Any:
    part, _, key = place.rpartition(".")
    return (_part(device, part) if part else device).get(key)


def _part(device: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = device.get(key)
    return value if isinstance(value, dict) else {}


def _dicts(values: Iterable[object] | None) -> list[dict[str, Any]]:
    return [one for one in values or () if isinstance(one, dict)]


def _mib(value: Any) -> int | None:
    return value >> 20 if isinstance(value, int) else None


def _word(value: object) -> str:
    """As part of a single line, whatever a snapshot contains."""
    return "".join(char if char.isprintable() else "?" for char in str(value))[:200]
