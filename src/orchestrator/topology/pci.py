"""The PCI tree out of sysfs: functions, the bridges above them, switches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Link, PciDevice, Switch

DEVICES = "/sys/bus/pci/devices"
SLOTS = "/sys/bus/pci/slots"
_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_ROOT = re.compile(r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")
_SPEED = re.compile(r"([0-9.]+)\s*GT/s")


def pci_devices(snapshot: Snapshot) -> tuple[PciDevice, ...]:
    """Every PCI function, in the order of its real path; two that claim one address stay two."""
    slots = slot_names(snapshot)
    paths = {snapshot.realpath(f"{DEVICES}/{name}") for name in snapshot.names(DEVICES)}
    paths |= set(_stray_functions(snapshot))
    known = {path for path in paths if _ADDRESS.match(path.rpartition("/")[2].lower())}
    return tuple(_device(snapshot, path, known, slots) for path in sorted(known))


def _stray_functions(snapshot: Snapshot) -> Iterable[str]:
    """Functions in the device tree that /sys/bus/pci does not list: one address under several root buses."""
    for root in snapshot.names("/sys/devices"):
        if _ROOT.match(root):
            yield from _below(snapshot, f"/sys/devices/{root}")


def _below(snapshot: Snapshot, path: str) -> Iterable[str]:
    for name in snapshot.names(path):
        if _ADDRESS.match(name.lower()):
            child = f"{path}/{name}"
            if snapshot.exists(f"{child}/vendor") or snapshot.exists(f"{child}/class"):
                yield child
            yield from _below(snapshot, child)


def _device(snapshot: Snapshot, path: str, known: set[str], slots: Mapping[str, str]) -> PciDevice:
    parent, _, name = path.rpartition("/")
    address = name.lower()
    return PciDevice(
        address=address,
        key=path,
        parent=parent if parent in known else "",
        root=next((part for part in path.split("/") if _ROOT.match(part)), ""),
        vendor=number(snapshot.text(f"{path}/vendor")),
        device=number(snapshot.text(f"{path}/device")),
        subsystem_vendor=number(snapshot.text(f"{path}/subsystem_vendor")),
        subsystem_device=number(snapshot.text(f"{path}/subsystem_device")),
        class_code=number(snapshot.text(f"{path}/class")),
        revision=number(snapshot.text(f"{path}/revision")),
        numa_node=number(snapshot.text(f"{path}/numa_node"), default=-1),
        link=_link(snapshot, path, "current"),
        link_max=_link(snapshot, path, "max"),
        driver=snapshot.links.get(f"{path}/driver", "").rpartition("/")[2],
        slot=slots.get(address.rpartition(".")[0], ""),
    )


def _link(snapshot: Snapshot, path: str, which: str) -> Link:
    match = _SPEED.search(snapshot.text(f"{path}/{which}_link_speed"))
    width = number(snapshot.text(f"{path}/{which}_link_width"))
    return Link(speed_gts=_float(match.group(1)) if match else 0.0, width=width if 0 < width <= 64 else 0)


def slot_names(snapshot: Snapshot) -> dict[str, str]:
    """Address without function -> the physical slot's name, where the firmware names slots."""
    names = {}
    for slot in snapshot.names(SLOTS):
        address = snapshot.text(f"{SLOTS}/{slot}/address").lower()
        if address:
            names[address] = slot
    return names


def switches(devices: Sequence[PciDevice]) -> tuple[Switch, ...]:
    """Switches by their upstream ports: a bridge right below a root port or another switch's downstream port, that
    has bridges below itself. A root port has no bridge above, a downstream port has an upstream port above."""
    by_key = {device.key: device for device in devices}
    upstream: dict[str, Switch] = {}
    for device in devices:
        above = by_key.get(device.parent)
        if not device.is_bridge or above is None or above.key in upstream:
            continue
        if not any(other.is_bridge and other.parent == device.key for other in devices):
            continue
        upstream[device.key] = Switch(
            key=device.key,
            address=device.address,
            numa_node=device.numa_node,
            parent_switch=_nearest(above, by_key, upstream),
            link=device.link,
            link_max=device.link_max,
        )
    return tuple(upstream.values())


def _nearest(device: PciDevice | None, by_key: Mapping[str, PciDevice], upstream: Mapping[str, Switch]) -> str:
    while device is not None:
        if device.key in upstream:
            return device.key
        device = by_key.get(device.parent)
    return ""


def switch_above(key: str, devices: Mapping[str, PciDevice], upstream: Mapping[str, Switch]) -> str:
    """Key of the nearest switch above a function, '' where it sits on a root port or root bus."""
    device = devices.get(key)
    return _nearest(devices.get(device.parent), devices, upstream) if device else ""


def number(text: str, default: int = 0) -> int:
    """'0x10de' or '16' as a number; the default for anything else."""
    try:
        return int(text.strip(), 0)
    except ValueError:
        return default


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
