"""RDMA devices and their ports out of /sys/class/infiniband."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Gid, PciDevice, RdmaPort
from orchestrator.topology.pci import number

CLASS = "/sys/class/infiniband"
_RATE = re.compile(r"([0-9.]+)\s*Gb/sec")
_EMPTY = re.compile(r"^[0:]*$")


def rdma_ports(
    snapshot: Snapshot, devices: Mapping[str, PciDevice], switch_of: Callable[[str], str]
) -> tuple[RdmaPort, ...]:
    """Every port of every device, mlx5_2 before mlx5_10."""
    found = [
        _port(snapshot, device, int(port), devices, switch_of)
        for device in snapshot.names(CLASS)
        for port in snapshot.names(f"{CLASS}/{device}/ports")
        if port.isdecimal()
    ]
    return tuple(sorted(found, key=lambda port: (*_natural(port.device), port.port)))


def _port(
    snapshot: Snapshot, name: str, port: int, devices: Mapping[str, PciDevice], switch_of: Callable[[str], str]
) -> RdmaPort:
    top = f"{CLASS}/{name}"
    path = f"{top}/ports/{port}"
    key = snapshot.realpath(f"{top}/device")
    function = devices.get(key)
    rate = _RATE.search(snapshot.text(f"{path}/rate"))
    gids = tuple(_gids(snapshot, path))
    return RdmaPort(
        device=name,
        port=port,
        address=function.address if function else "",
        key=key if function else "",
        switch=switch_of(key) if function else "",
        numa_node=function.numa_node if function else -1,
        netdev=_netdev(snapshot, path, key if function else "", gids, port),
        state=_word(snapshot.text(f"{path}/state")),
        phys_state=_word(snapshot.text(f"{path}/phys_state")),
        rate_gbps=float(rate.group(1)) if rate and rate.group(1).replace(".", "", 1).isdecimal() else 0.0,
        link_layer=snapshot.text(f"{path}/link_layer"),
        gids=gids,
        firmware=snapshot.text(f"{top}/fw_ver"),
        board=snapshot.text(f"{top}/board_id"),
    )


def _gids(snapshot: Snapshot, path: str) -> Iterator[Gid]:
    """Entries that hold a GID; an empty slot reads as zeros, and its type as EINVAL."""
    for name in sorted(snapshot.names(f"{path}/gids"), key=lambda text: number(text, default=1 << 30)):
        gid = snapshot.text(f"{path}/gids/{name}").lower()
        if name.isdecimal() and gid and not _EMPTY.match(gid):
            yield Gid(
                index=int(name),
                gid=gid,
                type=snapshot.text(f"{path}/gid_attrs/types/{name}"),
                netdev=snapshot.text(f"{path}/gid_attrs/ndevs/{name}"),
            )


def _netdev(snapshot: Snapshot, path: str, key: str, gids: tuple[Gid, ...], port: int) -> str:
    """The port's net device: what its GIDs name (a bond's master included), else its function's own."""
    named = [gid.netdev for gid in gids if gid.netdev] or [
        text for name in snapshot.names(f"{path}/gid_attrs/ndevs")
        if (text := snapshot.text(f"{path}/gid_attrs/ndevs/{name}"))
    ]  # fmt: skip
    if named:
        return named[0]
    own = snapshot.names(f"{key}/net") if key else ()
    by_port = {number(snapshot.text(f"{key}/net/{name}/dev_port")) + 1: name for name in own}
    return by_port.get(port) or (own[0] if len(own) == 1 else "")


def _word(text: str) -> str:
    """'4: ACTIVE' -> 'ACTIVE'."""
    return text.partition(":")[2].strip() or text


def _natural(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
