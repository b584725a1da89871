"""Network interfaces: sysfs for the hardware side, the node's own address list for what is configured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Interface, PciDevice
from orchestrator.topology.pci import number

CLASS = "/sys/class/net"


def interfaces(snapshot: Snapshot, devices: Mapping[str, PciDevice]) -> tuple[Interface, ...]:
    """Every interface, by name. /sys/class/net also holds plain files (bonding_masters): those are none."""
    return tuple(
        _interface(snapshot, name, devices)
        for name in snapshot.names(CLASS)
        if snapshot.names(f"{CLASS}/{name}") or f"{CLASS}/{name}" in snapshot.links
    )


def _interface(snapshot: Snapshot, name: str, devices: Mapping[str, PciDevice]) -> Interface:
    path = f"{CLASS}/{name}"
    key = snapshot.realpath(f"{path}/device")
    function = devices.get(key)
    carrier = snapshot.text(f"{path}/carrier")
    return Interface(
        name=name,
        key=key if function else "",
        address=function.address if function else "",
        mac=snapshot.text(f"{path}/address"),
        mtu=number(snapshot.text(f"{path}/mtu")),
        operstate=snapshot.text(f"{path}/operstate"),
        carrier={"1": True, "0": False}.get(carrier),
        speed_mbps=max(number(snapshot.text(f"{path}/speed")), 0),
        ipv4=tuple(_addresses(snapshot, name, "inet")),
        ipv6=tuple(_addresses(snapshot, name, "inet6")),
        bond=snapshot.links.get(f"{snapshot.realpath(path)}/master", "").rpartition("/")[2],
        slaves=tuple(snapshot.text(f"{path}/bonding/slaves").split()),
        physical=function is not None,
    )


def _addresses(snapshot: Snapshot, name: str, family: str) -> Iterator[str]:
    by_name: Any = snapshot.host.get("addresses")
    entries: Any = by_name.get(name) if isinstance(by_name, Mapping) else None
    for entry in entries if isinstance(entries, (list, tuple)) else ():
        if isinstance(entry, Mapping) and entry.get("family") == family and entry.get("address"):
            yield f"{entry['address']}/{entry.get('prefixlen', 32 if family == 'inet' else 128)}"
