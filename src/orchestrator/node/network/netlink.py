"""What the kernel tells over netlink of network interfaces (addresses, flow control) and of sockets: whose they are. No
tool, and no rights needed."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

_RTM_GETADDR, _RTM_GETDCB = 22, 78
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = 16
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_FAMILIES = {int(socket.AF_INET): "inet", int(socket.AF_INET6): "inet6"}
_IEEE_GET = 21
_IFNAME, _IEEE, _IEEE_PFC = 1, 13, 2
_NESTED = 0x3FFF
_TIMEOUT_S = 2.0
_MOST_BYTES = 64 << 20
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_UDIAG_SHOW_NAME, _UDIAG_SHOW_UID = 0x1, 0x40
_UNIX_DIAG_NAME, _UNIX_DIAG_UID = 0, 7
_ALL_STATES = 0xFFFFFFFF
MOST = 64
"""Interfaces that are asked for flow control: a host with thousands of containers has thousands."""


def addresses() -> dict[str, list[dict[str, Any]]]:
    """{interface: [{'family': 'inet' or 'inet6', 'address', 'prefixlen'}]}; interfaces without one are left out.

    Raises OSError where the kernel refuses.
    """
    by_interface: dict[str, list[dict[str, Any]]] = {}
    names = dict(socket.if_nameindex())
    with _kernel() as kernel:
        answer = _dumped(
            kernel, _message(_RTM_GETADDR, _NLM_F_DUMP, struct.pack("=BBBBI", socket.AF_UNSPEC, 0, 0, 0, 0))
        )
    for index, address in addresses_in(answer):
        by_interface.setdefault(names.get(index, str(index)), []).append(address)
    return by_interface


def addresses_in(messages: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """(interface index, address) of every RTM_NEWADDR message (linux/if_addr.h); raises OSError for an error.

    IFA_LOCAL counts where there is one: on a point-to-point link IFA_ADDRESS is the peer's.
    """
    for kind, body in _messages(messages):
        if kind == _NLMSG_ERROR:
            code = -struct.unpack_from("=i", body)[0]
            raise OSError(code, os.strerror(code))
        if kind == _NLMSG_DONE or len(body) < 8:
            return
        family, prefix, _, _, index = struct.unpack_from("=BBBBI", body)
        values = _attributes(body[8:])
        raw = values.get(_IFA_LOCAL) or values.get(_IFA_ADDRESS)
        if family in _FAMILIES and raw:
            yield index, {"family": _FAMILIES[family], "address": socket.inet_ntop(family, raw), "prefixlen": prefix}


def flow_control() -> dict[str, str]:
    """{interface: the kernel's `struct ieee_pfc` (linux/dcbnl.h) in hexadecimal digits}, of cards that have it.

    A bridge or a tunnel has no priorities of its own.
    """
    by_interface = {}
    names = [name for _, name in socket.if_nameindex() if os.path.exists(f"/sys/class/net/{name}/device")]
    with _kernel() as kernel:
        for name in names[:MOST]:
            kernel.sendto(flow_control_request(name), (0, 0))
            if state := flow_control_in(kernel.recv(1 << 16)):
                by_interface[name] = state.hex()
    return by_interface


def flow_control_request(name: str) -> bytes:
    """An RTM_GETDCB message that asks one interface for its IEEE 802.1Qaz settings."""
    value = name.encode() + b"\0"
    attribute = struct.pack("=HH", 4 + len(value), _IFNAME) + value + bytes(-len(value) % 4)
    return _message(_RTM_GETDCB, 0, struct.pack("=BBH", socket.AF_UNSPEC, _IEEE_GET, 0) + attribute)


def flow_control_in(message: bytes) -> bytes:
    """The `struct ieee_pfc` in an answer; empty where it has none, as for a card without such settings."""
    kind, body = next(_messages(message), (_NLMSG_ERROR, b""))
    settings = _attributes(body[4:]).get(_IEEE, b"") if kind != _NLMSG_ERROR else b""
    return _attributes(settings).get(_IEEE_PFC, b"")


class UnixSocket(NamedTuple):
    """owner: the user id of who made it; None where that is not known. inode: as /proc/PID/fd has it."""

    owner: int | None
    inode: int


def unix_names() -> dict[bytes, UnixSocket]:
    """The Unix sockets of this network namespace that have a name, by it; an abstract name begins with a zero (unix(7),
    sock_diag(7)).

    Raises OSError where the kernel does not tell: before Linux 5.3 it knows no UDIAG_SHOW_UID.
    """
    asked = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, _ALL_STATES, 0, _UDIAG_SHOW_NAME | _UDIAG_SHOW_UID, 0, 0)
    with _kernel(_NETLINK_SOCK_DIAG) as kernel:
        return dict(unix_names_in(_dumped(kernel, _message(_SOCK_DIAG_BY_FAMILY, _NLM_F_DUMP, asked))))


def unix_names_in(messages: bytes) -> Iterator[tuple[bytes, UnixSocket]]:
    """(name, socket) of every `struct unix_diag_msg` (linux/unix_diag.h) that has both; raises OSError for an error,
    and where a socket has a name and no user id."""
    for kind, body in _messages(messages):
        if kind == _NLMSG_ERROR:
            code = -struct.unpack_from("=i", body)[0]
            raise OSError(code, os.strerror(code))
        if kind == _NLMSG_DONE:
            return
        values = _attributes(body[16:])
        name, owner = values.get(_UNIX_DIAG_NAME), values.get(_UNIX_DIAG_UID, b"")
        if name:
            if len(owner) != 4:
                raise OSError(errno.EOPNOTSUPP, "this kernel does not tell whose a socket is")
            yield name, UnixSocket(int.from_bytes(owner, sys.byteorder), struct.unpack_from("=I", body, 4)[0])


def _dumped(kernel: socket.socket, question: bytes) -> bytes:
    """All messages of an answer that has several."""
    kernel.sendto(question, (0, 0))
    answer = b""
    until = time.monotonic() + _TIMEOUT_S
    over = False
    while not over:
        part = kernel.recv(1 << 17)
        answer += part
        over = any(kind in (_NLMSG_DONE, _NLMSG_ERROR) for kind, _ in _messages(part))
        if not over and (len(answer) > _MOST_BYTES or time.monotonic() > until):
            raise OSError(errno.E2BIG, "the kernel's answer has no end")
    return answer


def _kernel(protocol: int = socket.NETLINK_ROUTE) -> socket.socket:
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    kernel.settimeout(_TIMEOUT_S)
    return kernel


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", _HEADER + len(body), kind, _NLM_F_REQUEST | flags, 1, 0) + body


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, body) of each; what was cut off ends them."""
    offset = 0
    while offset + _HEADER <= len(data):
        length, kind = struct.unpack_from("=IH", data, offset)
        if length < _HEADER or offset + length > len(data):
            return
        yield kind, data[offset + _HEADER : offset + length]
        offset += (length + 3) & ~3


def _attributes(data: bytes) -> dict[int, bytes]:
    """By type; what was cut off ends them."""
    attributes: dict[int, bytes] = {}
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4 or offset + length > len(data):
            break
        attributes[kind & _NESTED] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return attributes
