"""Who listens on a port of this machine, as far as /proc shows it to us."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys

from orchestrator.node import files, supervision

_LISTEN = "0A"
"""TCP_LISTEN, as proc_net_tcp.txt of the kernel's documentation has it."""
_ANY = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound


def listeners(address: str, port: int) -> set[int]:
    """Process ids of those who keep others from listening on this port of an address.

    address: as it would be bound; '' for any
    """
    inodes = {
        fields[9]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in (line.split() for line in (files.read_text(table) or "").splitlines()[1:])
        if fields[3] == _LISTEN and is_kept(fields[1], address, port)
    }
    wanted, holders = {f"socket:[{inode}]" for inode in inodes}, set()
    for process in supervision.everything():
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{process.pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{process.pid}/fd/{name}") in wanted:
                        holders.add(process.pid)
    return holders


def is_kept(local: str, address: str, port: int) -> bool:
    """Whether a listener with this `local_address` of /proc/net/tcp or tcp6 keeps others from an address and port."""
    place, _, its_port = local.rpartition(":")
    if int(its_port, 16) != port:
        return False
    words = [int(place[start : start + 8], 16) for start in range(0, len(place), 8)]
    its_address = _plain(ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words)))
    try:
        wanted = _plain(ipaddress.ip_address(address or "::"))
    except ValueError:  # a name, which may stand for any
        return True
    return its_address in (wanted, *_ANY) or wanted in _ANY


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Without the zone, and an IPv4 one as itself where it is mapped into IPv6."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address).partition("%")[0]
