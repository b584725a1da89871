"""Chooses a lab's addresses: a network that does not collide with any that this machine knows."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from orchestrator.protocol.errors import NodeError

CONTROLLER = 1
"""Host part of the controller's own address in a lab's network."""
GATEWAY = 2
"""Host part of the nodes' default route: a router inside the lab without a route out, which it reports at once."""
FIRST_NODE = 10
"""Host part of node0's address."""
MAX_NODES = 240
_NEIGHBOURS = Path("/proc/sys/net/ipv4/neigh/default")
_THRESHOLDS = ("gc_thresh2", "gc_thresh3")
_OF_THE_MACHINE = 1024
"""Neighbours that the machine itself may have beside the lab's: the kernel's default for all."""


def choose_network(name: str, used: Iterable[ipaddress.IPv4Network]) -> ipaddress.IPv4Network:
    """A free 10.x.y.0/24; always the same for a lab name while it is free.

    Default routes do not count as use: they cover all addresses.
    """
    taken = [network for network in used if network.prefixlen > 0]
    for candidate in _candidates(name):
        if not any(candidate.overlaps(network) for network in taken):
            return candidate
    raise NodeError(
        "no free 10.x.y.0/24 network is left on this machine",
        where="lab",
        fix="remove a route or an address in 10.0.0.0/8 (`ip route`), or use --level 0",
    )


def make_room(neighbours: int, say: Callable[[str], None]) -> None:
    """Let the kernel keep as many neighbours as the nodes of a lab may have: all network namespaces share one table
    (arp(7), gc_thresh3), and packets to whoever finds no place in it are dropped without a word. It stays so until the
    next boot. Raises NodeError where we may not change it."""
    wanted = neighbours + _OF_THE_MACHINE
    try:
        kept = {name: int((_NEIGHBOURS / name).read_text()) for name in _THRESHOLDS}
    except (OSError, ValueError):
        return  # a namespace that does not show them
    short = [f"net.ipv4.neigh.default.{name}={wanted}" for name, value in kept.items() if value < wanted]
    if not short:
        return
    try:
        for name, value in kept.items():
            (_NEIGHBOURS / name).write_text(str(max(wanted, value)))
    except OSError:
        raise NodeError(
            f"the kernel of this machine keeps {kept['gc_thresh3']} neighbours (gc_thresh3), and the nodes of this lab "
            f"may have {neighbours}",
            where="lab",
            fix=f"run `sudo sysctl -w {' '.join(short)}`, or ask for fewer nodes with --nodes",
        ) from None
    say(f"the kernel keeps more neighbours now, until the next boot: {', '.join(short)}")


def _candidates(name: str) -> Iterator[ipaddress.IPv4Network]:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    for step in range(4096):
        number = (seed + step * 7919) % (128 * 256)  # 10.64.0.0 to 10.191.255.0: less crowded than the ends
        yield ipaddress.IPv4Network((0x0A400000 + (number << 8), 24))


def used_networks() -> list[ipaddress.IPv4Network]:
    """Networks of every address and route in this network namespace."""
    used = [
        ipaddress.IPv4Network((entry["local"], entry["prefixlen"]), strict=False)
        for link in _ip("address", "show")
        for entry in link.get("addr_info", ())
        if entry.get("family") == "inet" and "local" in entry
    ]
    for route in _ip("route", "show", "table", "all"):
        destination = route.get("dst", "default")
        if destination != "default" and ":" not in destination:
            used.append(ipaddress.IPv4Network(destination, strict=False))
    return used


def _ip(*words: str) -> list[dict[str, Any]]:
    done = subprocess.run(["ip", "-json", "-4", *words], capture_output=True, check=True, timeout=10)
    answer: list[dict[str, Any]] = json.loads(done.stdout or b"[]")
    return answer
