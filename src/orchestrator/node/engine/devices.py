"""The devices of a rank that has died, from /sys: whether its GPU still answers on the bus, and whether the gang's
ports still have a link. Any user can read this; the kernel's log may be readable only for root."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from orchestrator.node.engine.kernel_words import ASKED_FOR, DeadProcess, Devices, KernelWord, gpu_gone, link_down
from orchestrator.protocol.planned import NodeNetwork

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ONES = b"\xff\xff\xff\xff"
"""What the vendor and device id of a card that does not answer read as."""


def look(place: str, network: NodeNetwork, root: str = "/") -> Devices:
    """place: the GPU's PCI address as NVML writes it, '' for none; network: names the interfaces."""
    base = root.rstrip("/")
    interfaces = tuple(_interfaces(base, network))
    ours = {name: called for name, called, _ in interfaces}
    cards = {place: called or name for name, called, place in interfaces}
    down = {name: f"/sys/class/net/{name}/carrier = 0" for name in ours if _no_carrier(base, name)}
    above, gone = _gpu(base, place)
    return Devices(above, gone, ours, {place: name for place, name in cards.items() if place}, down)


def _gpu(base: str, place: str) -> tuple[tuple[str, ...], str]:
    """(the bridges above the GPU, why it counts as gone or '')."""
    domain, _, rest = place.lower().partition(":")
    short = f"{domain[-4:]}:{rest}" if not domain[:-4].strip("0") else place.lower()
    if not _ADDRESS.fullmatch(short):
        return (), ""
    folder = f"{base}/sys/bus/pci/devices/{short}"
    parts = os.path.realpath(folder).split("/")[:-1]
    above = tuple(part for part in reversed(parts) if _ADDRESS.fullmatch(part))
    try:
        with open(f"{folder}/config", "rb") as file:
            head = file.read(len(_ONES))
    except FileNotFoundError:
        return above, f"/sys/bus/pci/devices/{short}: does not exist" if os.path.isdir(f"{base}/sys/bus/pci") else ""
    except OSError:
        return above, ""
    return above, f"/sys/bus/pci/devices/{short}/config reads ones" if head == _ONES else ""


def _interfaces(base: str, network: NodeNetwork) -> Iterator[tuple[str, str, str]]:
    """(name, its RDMA device or '', its card or '') of the interfaces that NCCL was told to use."""
    for name in network.sockets:
        yield name, "", _card(base, name)
    for device in (port.partition(":")[0] for port in network.ports):
        try:
            interfaces = sorted(os.listdir(f"{base}/sys/class/infiniband/{device}/device/net"))
        except OSError:
            continue
        for name in interfaces[:1]:
            yield _bond_of(base, name) or name, device, _card(base, name)


def _bond_of(base: str, interface: str) -> str:
    """The bond that an interface is part of, '' for none: it outlives a cable of one of its ports."""
    master = f"{base}/sys/class/net/{interface}/master"
    return os.path.basename(os.path.realpath(master)) if os.path.isdir(f"{master}/bonding") else ""


def _card(base: str, interface: str) -> str:
    name = os.path.basename(os.path.realpath(f"{base}/sys/class/net/{interface}/device"))
    return name if _ADDRESS.fullmatch(name) else ""


def _no_carrier(base: str, interface: str) -> bool:
    """An interface that is switched off gives EINVAL, a missing one ENOENT: neither is a cable fault."""
    try:
        with open(f"{base}/sys/class/net/{interface}/carrier", encoding="ascii", errors="replace") as file:
            return file.read().strip() == "0"
    except OSError:
        return False


def word(dead: DeadProcess, *, log_unread: bool) -> KernelWord | None:
    """What the devices' state shows about a death. It does not show when a link went down; the kernel's log does, if it
    can be read."""
    around = dead.around
    if around.gone and dead.gpu >= 0:
        return gpu_gone(dead.gpu, around.gone)
    if not log_unread or dead.explained or dead.signal in ASKED_FOR:
        return None
    return next((link_down(name, around.network[name], line) for name, line in around.down.items()), None)
