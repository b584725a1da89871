"""Priority flow control of network cards, asked of the kernel over netlink: no tool, and no rights needed."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

_RTM_GETDCB = 78
_NLM_F_REQUEST = 0x1
_NLMSG_ERROR = 2
_IEEE_GET = 21
_IFNAME, _IEEE, _IEEE_PFC = 1, 13, 2
_NESTED = 0x3FFF
_HEADER, _MESSAGE = 16, 4
_TIMEOUT_S = 2.0
MOST = 64
"""Interfaces that are asked: a host with thousands of containers has thousands."""


def flow_control() -> dict[str, str]:
    """{interface: the kernel's `struct ieee_pfc` (linux/dcbnl.h) in hexadecimal digits}, of cards that have it."""
    found = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        for name in _cards():
            kernel.sendto(request(name), (0, 0))
            state = parse(kernel.recv(1 << 16))
            if state:
                found[name] = state.hex()
    return found


def request(name: str) -> bytes:
    """An RTM_GETDCB message that asks one interface for its IEEE 802.1Qaz settings."""
    value = name.encode() + b"\0"
    attribute = struct.pack("=HH", 4 + len(value), _IFNAME) + value + b"\0" * (-len(value) % 4)
    body = struct.pack("=BBH", socket.AF_UNSPEC, _IEEE_GET, 0) + attribute
    return struct.pack("=IHHII", _HEADER + len(body), _RTM_GETDCB, _NLM_F_REQUEST, 1, 0) + body


def parse(message: bytes) -> bytes:
    """The `struct ieee_pfc` in an answer; empty where it has none, as for a card without such settings."""
    if len(message) < _HEADER + _MESSAGE or struct.unpack_from("=IH", message)[1] == _NLMSG_ERROR:
        return b""
    settings = dict(_attributes(message[_HEADER + _MESSAGE :])).get(_IEEE, b"")
    return dict(_attributes(settings)).get(_IEEE_PFC, b"")


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4 or offset + length > len(data):
            return
        yield kind & _NESTED, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def _cards() -> list[str]:
    """Interfaces that are hardware: a bridge or a tunnel has no priorities of its own."""
    names = [name for _, name in socket.if_nameindex() if os.path.exists(f"/sys/class/net/{name}/device")]
    return names[:MOST]
