"""Addresses of this machine's network interfaces, asked of the kernel over netlink: no tool needed."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

_RTM_GETADDR = 22
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_FAMILIES = {int(socket.AF_INET): "inet", int(socket.AF_INET6): "inet6"}
_TIMEOUT_S = 2.0


def addresses() -> dict[str, list[dict[str, Any]]]:
    """{interface: [{'family': 'inet' or 'inet6', 'address', 'prefixlen'}]}; interfaces without one are left out.

    Raises OSError where the kernel refuses.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    names = dict(socket.if_nameindex())
    for index, address in parse(_dump()):
        found.setdefault(names.get(index, str(index)), []).append(address)
    return found


def parse(messages: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """(interface index, address) of every RTM_NEWADDR message (linux/if_addr.h); raises OSError for an error."""
    offset = 0
    while offset + 16 <= len(messages):
        length, kind = struct.unpack_from("=IH", messages, offset)
        if length < 16 or offset + length > len(messages):
            return
        if kind == _NLMSG_ERROR:
            code = -struct.unpack_from("=i", messages, offset + 16)[0]
            raise OSError(code, os.strerror(code))
        if kind == _NLMSG_DONE:
            return
        if length < 24:
            return
        family, prefix, _, _, index = struct.unpack_from("=BBBBI", messages, offset + 16)
        raw = _address(messages[offset + 24 : offset + length])
        if family in _FAMILIES and raw:
            text = socket.inet_ntop(family, raw)
            yield index, {"family": _FAMILIES[family], "address": text, "prefixlen": prefix}
        offset += (length + 3) & ~3


def _address(attributes: bytes) -> bytes:
    """IFA_LOCAL where there is one (on a point-to-point link IFA_ADDRESS is the peer's), else IFA_ADDRESS."""
    values: dict[int, bytes] = {}
    offset = 0
    while offset + 4 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, offset)
        if length < 4:
            break
        values[kind] = attributes[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return values.get(_IFA_LOCAL) or values.get(_IFA_ADDRESS) or b""


def _dump() -> bytes:
    header = struct.pack("=IHHII", 24, _RTM_GETADDR, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0)
    request = header + struct.pack("=BBBBI", socket.AF_UNSPEC, 0, 0, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.sendto(request, (0, 0))
        answer = b""
        while True:
            piece = kernel.recv(1 << 17)
            answer += piece
            if not piece or _ends(piece):
                return answer


def _ends(piece: bytes) -> bool:
    offset = 0
    while offset + 16 <= len(piece):
        length, kind = struct.unpack_from("=IH", piece, offset)
        if kind in (_NLMSG_DONE, _NLMSG_ERROR) or length < 16:
            return True
        offset += (length + 3) & ~3
    return False
