"""RDMA ports with their GID tables, from /sys/class/infiniband."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Gid, Interface, PciDevice, RdmaPort
from orchestrator.topology.pci import card, nearest_function, number, small_number
from orchestrator.topology.switches import SwitchPlaces

_CLASS = "/sys/class/infiniband"
_EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
_RATE = re.compile(r"\s*([0-9]{1,5}(?:\.[0-9]{1,3})?)\s*Gb/sec")
_GID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){7}")


def rdma_functions(snapshot: Snapshot, devices: Sequence[PciDevice]) -> Mapping[str, str]:
    """{RDMA device's name: key of its PCI function, '' where it has none (software RoCE)}."""
    known = {device.key for device in devices}
    return {
        name: nearest_function(snapshot.realpath(f"{_CLASS}/{name}/device"), known)
        or nearest_function(snapshot.realpath(f"{_CLASS}/{name}"), known)
        for name in snapshot.names(_CLASS)
    }


def find_rdma_ports(
    snapshot: Snapshot,
    devices: Sequence[PciDevice],
    interfaces: Sequence[Interface],
    places: SwitchPlaces,
) -> tuple[RdmaPort, ...]:
    """Every port of every RDMA device, in natural order of device names (mlx5_2 before mlx5_10)."""
    by_key = {device.key: device for device in devices}
    ports = [
        _port(snapshot, name, index, by_key.get(key), interfaces, places)
        for name, key in rdma_functions(snapshot, devices).items()
        for index in map(small_number, snapshot.names(f"{_CLASS}/{name}/ports"))
        if index >= 0
    ]
    return tuple(sorted(ports, key=lambda port: (natural(port.device), port.port)))


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """Order of names as people count: mlx5_2 before mlx5_10."""
    return tuple((text, number(digits, otherwise=-1)) for text, digits in re.findall(r"([^0-9]*)([0-9]{0,18})", name))


def _port(
    snapshot: Snapshot,
    name: str,
    port: int,
    function: PciDevice | None,
    interfaces: Sequence[Interface],
    places: SwitchPlaces,
) -> RdmaPort:
    folder = snapshot.realpath(f"{_CLASS}/{name}")
    here = f"{folder}/ports/{port}"
    rate = _RATE.match(snapshot.text(f"{here}/rate"))
    gids = tuple(_gids(snapshot, here))
    return RdmaPort(
        device=name,
        port=port,
        address=function.address if function else "",
        key=function.key if function else "",
        switch=places.nearest(function.key) if function else "",
        numa_node=function.numa_node if function else -1,
        netdev=_netdev(gids, function, port, snapshot, interfaces),
        state=_word(snapshot.text(f"{here}/state")),
        phys_state=_word(snapshot.text(f"{here}/phys_state")),
        rate_gbps=float(rate[1]) if rate else 0.0,
        link_layer=snapshot.text(f"{here}/link_layer"),
        gids=gids,
        gids_recorded=bool(gids) or _were_gids_read(snapshot, here),
        virtual=bool(function and function.virtual),
        firmware=snapshot.text(f"{folder}/fw_ver"),
        board=snapshot.text(f"{folder}/board_id"),
    )


def port_folder(snapshot: Snapshot, port: RdmaPort) -> str:
    """Where sysfs keeps a port; what it counts is below, in counters/ and hw_counters/."""
    return snapshot.realpath(f"{_CLASS}/{port.device}") + f"/ports/{port.port}"


def _word(text: str) -> str:
    """'4: ACTIVE' is 'ACTIVE'."""
    return text.rpartition(":")[2].strip()


def _gids(snapshot: Snapshot, port: str) -> Iterator[Gid]:
    """The filled slots of a GID table, in order of index; reading an empty slot's type fails with EINVAL."""
    for index in sorted(map(small_number, snapshot.names(f"{port}/gids"))):
        gid = snapshot.text(f"{port}/gids/{index}").lower() if index >= 0 else _EMPTY
        if gid != _EMPTY and _GID.fullmatch(gid):
            yield Gid(
                index=index,
                gid=gid,
                type=snapshot.text(f"{port}/gid_attrs/types/{index}"),
                netdev=snapshot.text(f"{port}/gid_attrs/ndevs/{index}"),
            )


def _were_gids_read(snapshot: Snapshot, port: str) -> bool:
    """Whether an empty table is one: our own look, which asks for addresses too, keeps no empty entries."""
    return "addresses" in snapshot.host and f"{port}/gids" not in snapshot.errors


def _netdev(
    gids: Sequence[Gid], function: PciDevice | None, port: int, snapshot: Snapshot, interfaces: Sequence[Interface]
) -> str:
    """The net device of a port: what its GIDs name, else the interface of the same PCI function and port number; of
    ports that are one device (mlx5's LAG), their bond.

    A GID of a VLAN names the VLAN's device; the port's own one comes first in the table.
    """
    named = next((gid.netdev for gid in gids if gid.netdev), "")
    if named or function is None:
        return named
    mine = [interface for interface in interfaces if interface.key == function.key]
    if len(mine) > 1:
        mine = _with_port_number(port, mine, snapshot) or mine
    return mine[0].bond or mine[0].name if mine else ""


def _with_port_number(port: int, interfaces: Sequence[Interface], snapshot: Snapshot) -> list[Interface]:
    """The kernel counts a function's interfaces from 0, and its RDMA ports from 1."""
    number = str(port - 1)
    return [each for each in interfaces if snapshot.text(f"/sys/class/net/{each.name}/dev_port") == number]


def card_of(port: RdmaPort) -> str:
    """A name of the port's card that its other ports share; without a PCI function the device is a card by itself."""
    return card(port.key) or port.device


def ports_by_card(ports: Iterable[RdmaPort]) -> Mapping[str, tuple[RdmaPort, ...]]:
    """{card_of: its ports}."""
    return {card: tuple(members) for card, members in collected((card_of(port), port) for port in ports).items()}
