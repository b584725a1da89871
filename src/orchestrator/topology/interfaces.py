"""Network interfaces: /sys/class/net with the addresses that the probe asked of the kernel."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.model.snapshot import Snapshot, part
from orchestrator.model.topology import Interface, PciDevice
from orchestrator.topology.pci import nearest_function, number

_CLASS = "/sys/class/net"


def find_interfaces(snapshot: Snapshot, devices: Sequence[PciDevice]) -> tuple[Interface, ...]:
    """Every interface, in order of name."""
    functions = {device.key: device for device in devices}
    by_name = part(snapshot.host, "addresses")
    listed = [name for name in snapshot.names(_CLASS) if snapshot.exists(f"{_CLASS}/{name}/mtu")]
    listed += [name for name in snapshot.names(_CLASS) if name not in listed and _is_folder(snapshot, name)]
    names = sorted({*listed, *(name for name in by_name if isinstance(name, str))})
    return tuple(_interface(snapshot, name, functions, by_name.get(name)) for name in names)


def _is_folder(snapshot: Snapshot, name: str) -> bool:
    """bonding_masters is a file among the interfaces."""
    return f"{_CLASS}/{name}" not in snapshot.files


def _interface(snapshot: Snapshot, name: str, functions: Mapping[str, object], addresses: Any) -> Interface:
    folder = snapshot.realpath(f"{_CLASS}/{name}")
    device = snapshot.realpath(f"{folder}/device") if f"{folder}/device" in snapshot.links else ""
    key = nearest_function(device, functions) if device else ""
    master = snapshot.realpath(f"{folder}/master") if f"{folder}/master" in snapshot.links else ""
    carrier = snapshot.text(f"{folder}/carrier")
    return Interface(
        name=name,
        key=key,
        address=key.rpartition("/")[2].lower(),
        mac=snapshot.text(f"{folder}/address"),
        mtu=max(0, number(snapshot.text(f"{folder}/mtu"))),
        operstate=snapshot.text(f"{folder}/operstate"),
        carrier={"1": True, "0": False}.get(carrier),
        speed_mbps=max(0, number(snapshot.text(f"{folder}/speed"))),
        ipv4=_addresses(addresses, "inet"),
        ipv6=_addresses(addresses, "inet6"),
        bond=master.rpartition("/")[2] if master and snapshot.names(f"{master}/bonding") else "",
        slaves=tuple(snapshot.text(f"{folder}/bonding/slaves").split()),
        physical=bool(device),
    )


def _addresses(raw: Any, family: str) -> tuple[str, ...]:
    """Addresses with prefix length, as far as they are addresses."""
    found = []
    for entry in raw if isinstance(raw, (list, tuple)) else ():
        if isinstance(entry, Mapping) and entry.get("family") == family:
            text = f"{entry.get('address')}/{entry.get('prefixlen')}"
            if _is_interface_address(text, 4 if family == "inet" else 6):
                found.append(text)
    return tuple(found)


def _is_interface_address(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_interface(text).version == version
    except ValueError:
        return False
