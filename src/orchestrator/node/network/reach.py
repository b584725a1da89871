"""Verb `listen`: listen for a few seconds, so that other nodes can test the path to this one.

The first line of the answer names what is open. A rail's port hears only what comes
in by that interface, as RDMA does; another one of the machine would answer for its address too.
It ends after `seconds`, or when the caller goes away.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.node.requests import request_of, tell
from orchestrator.protocol.looks import DialRequest, DialTarget, Listening, ListenRequest, Outcome, Trial

LONGEST_S = 60.0
MOST_CALLERS = 256
"""Connections at once; who comes on top is closed at once, so that strangers take no descriptor that a node needs."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends a reset, and leaves no TIME_WAIT (socket(7))."""


def stream(request: dict[str, Any]) -> None:
    """Open the listeners, say which, serve until the time limit was reached."""
    asked = request_of(ListenRequest, request)
    until = time.monotonic() + min(asked.seconds, LONGEST_S)
    with selectors.DefaultSelector() as selector:
        opened = Listening(
            tcp={str(port): str(_listen(selector, asked.address, port)) for port in asked.tcp_ports},
            ephemeral=_listen(selector, asked.address, 0),
            udp={asked.address: _echo(selector, asked.address)},
            rails={each: _echo(selector, each, device) for each, device in asked.rails.items()},
            pid=os.getpid(),
        )
        tell({"ok": True, "value": opened.as_json()})
        try:
            _serve(selector, until)
        finally:
            for sock in [key.fileobj for key in selector.get_map().values() if isinstance(key.fileobj, socket.socket)]:
                sock.close()


def _listen(selector: selectors.BaseSelector, address: str, port: int) -> str | int:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    try:
        listener.bind((address, port))
        listener.listen(64)
    except OSError as wrong:
        listener.close()
        return "taken" if wrong.errno == errno.EADDRINUSE else errno.errorcode.get(wrong.errno or 0, str(wrong))
    selector.register(listener, selectors.EVENT_READ, "tcp")
    return "listening" if port else int(listener.getsockname()[1])


def _echo(selector: selectors.BaseSelector, address: str, device: str = "") -> int | str:
    echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    echo.setblocking(False)
    try:
        if device:
            bind_to_device(echo, device)
        echo.bind((address, 0))
    except OSError as wrong:
        echo.close()
        return errno.errorcode.get(wrong.errno or 0, str(wrong))
    selector.register(echo, selectors.EVENT_READ, "udp")
    return int(echo.getsockname()[1])


def bind_to_device(sock: socket.socket, device: str) -> None:
    """As far as it goes: an old kernel asks for root, and a recorded interface is not there."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode()[:15] + b"\0")


def _serve(selector: selectors.BaseSelector, until: float) -> None:
    caller = select.poll()
    caller.register(sys.stdout.fileno(), select.POLLERR | select.POLLHUP)
    while (left := until - time.monotonic()) > 0 and not caller.poll(0):
        for key, _ in selector.select(min(left, 0.2)):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if key.data == "tcp":
                _accept(selector, sock)
            elif key.data == "caller":
                selector.unregister(sock)
                sock.close()
            else:
                _answer(sock)


def _accept(selector: selectors.BaseSelector, listener: socket.socket) -> None:
    """The caller ends the connection, by a reset: nothing of it stays on a port that an engine wants to bind soon."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    if len(selector.get_map()) > MOST_CALLERS:
        connection.close()
        return
    connection.setblocking(False)
    selector.register(connection, selectors.EVENT_READ, "caller")


def _answer(echo: socket.socket) -> None:
    try:
        data, peer = echo.recvfrom(65535)
        echo.sendto(data[:16], peer)
    except OSError:
        return


# Linux include/uapi/linux/in.h; Python's socket module has no names for them
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3
IP_AND_UDP_HEADERS = 28
SENDS = 3
"""Datagrams of one try, within its time."""
_OUTCOMES = {
    errno.ECONNREFUSED: Outcome.REFUSED, errno.EMSGSIZE: Outcome.TOO_BIG, errno.ETIMEDOUT: Outcome.SILENT,
    errno.ENOBUFS: Outcome.UNTRIED,
}  # fmt: skip
FINAL = (Outcome.OPEN, Outcome.TOO_BIG)
"""Outcomes that another try would not change: the second one is this machine's own word."""
_NEIGHBOURS, _COLUMNS, _COMPLETE = "/proc/net/arp", 6, 0x2
"""Address, type, flags (ATF_COM of include/uapi/linux/if_arp.h), MAC, mask, interface."""
_WITHOUT_ARP = 0x88
"""IFF_LOOPBACK and IFF_NOARP of include/uapi/linux/if.h: no table of neighbours is asked there, as on a tunnel."""
_ROUTES, _ROUTER, _MASK = "/proc/net/route", 2, 7
"""Interface, destination, router, ..., mask: IPv4 addresses in hexadecimal, as they lie in memory."""


@dataclass
class _Attempt:
    """A connection being made, in seconds of the monotonic clock."""

    target: DialTarget
    started: float
    deadline: float
    resend_at: float = 0.0


_Tried = tuple[DialTarget, Trial]


def dial(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Test the path from this node to others, all at once, each with its own deadline.

    A silent drop and a refusal are different results; a datagram must pass without being fragmented. What did not pass
    is tried up to `tries` times, unless `once` is set: a lost packet is no firewall. A silent one that had to leave by
    an interface also has `resolved`: whether ARP was answered there. Where the kernel did not even ask by ARP, its
    table of neighbours is full: 'untried'.
    """
    asked = request_of(DialRequest, request)
    return [dialed.as_json() for dialed in _dial(asked.targets, max(1, asked.tries), asked.spacing_s)]


def _dial(targets: Sequence[DialTarget], tries: int, spacing_s: float) -> list[Trial]:
    results: list[Trial] = []
    left = targets
    for number in range(1, tries + 1):
        tried, again = _once(left), []
        for target, dialed in tried:
            if dialed.outcome in FINAL or target.once or number == tries:
                results.append(replace(dialed, tries=number))
            else:
                again.append(target)
        left = again
        if not left:
            break
        time.sleep(spacing_s)
    return results


def _once(targets: Sequence[DialTarget]) -> list[_Tried]:
    results: list[_Tried] = []
    with selectors.DefaultSelector() as selector:
        for target in targets:
            _start(selector, target, results)
        while selector.get_map():
            _wait(selector, results)
    return results


def _start(selector: selectors.BaseSelector, target: DialTarget, results: list[_Tried]) -> None:
    datagram = target.kind == "mtu"
    now = time.monotonic()
    attempt = _Attempt(target, now, now + target.timeout_s)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if datagram else socket.SOCK_STREAM)
    sock.setblocking(False)
    if not datagram:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    try:
        if target.device:
            bind_to_device(sock, target.device)
        if target.source:
            sock.bind((target.source, 0))
        if datagram:
            sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        code = sock.connect_ex((target.address, target.port))
        if datagram and not code:
            _send(sock, attempt)
    except OSError as wrong:
        code = wrong.errno or errno.EIO
    if code not in (0, errno.EINPROGRESS):
        sock.close()
        results.append(_failed(attempt, code))
        return
    selector.register(sock, selectors.EVENT_READ if datagram else selectors.EVENT_WRITE, attempt)


def _send(sock: socket.socket, attempt: _Attempt) -> None:
    size = max((attempt.target.size or 1500) - IP_AND_UDP_HEADERS, 1)
    sock.send(bytes(size))
    attempt.resend_at = time.monotonic() + (attempt.deadline - attempt.started) / SENDS


def _wait(selector: selectors.BaseSelector, results: list[_Tried]) -> None:
    ready = {key.fileobj for key, _ in selector.select(0.05)}
    now = time.monotonic()
    for key in list(selector.get_map().values()):
        sock, attempt = key.fileobj, key.data
        assert isinstance(sock, socket.socket)
        outcome = _outcome(sock, attempt, answered=sock in ready, now=now)
        if outcome is not None:
            selector.unregister(sock)
            sock.close()
            results.append(outcome)


def _outcome(sock: socket.socket, attempt: _Attempt, *, answered: bool, now: float) -> _Tried | None:
    try:
        if answered:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                return _failed(attempt, code)
            if attempt.target.kind == "mtu":
                sock.recv(64)
            return _said(attempt, Outcome.OPEN, ms=(now - attempt.started) * 1000)
        if attempt.target.kind == "mtu" and now >= attempt.resend_at:
            _send(sock, attempt)
    except OSError as wrong:
        return _failed(attempt, wrong.errno or 0)
    if now < attempt.deadline:
        return None
    address = attempt.target.address
    if not attempt.target.device and _is_next_door(address) and _neighbours(address) == []:
        return _said(attempt, Outcome.UNTRIED, detail="no place in the table of neighbours")
    return _said(attempt, Outcome.SILENT, resolved=_resolved(attempt.target))


def _resolved(target: DialTarget) -> bool:
    """Whether ARP was answered for the address on the interface that the packet had to leave by; true where nothing
    is known, as of an address behind a router."""
    rows = _neighbours(target.address) or []
    states = [int(row[2], 16) & _COMPLETE for row in rows if row[-1] == target.device]
    return any(states) or not states


def _neighbours(address: str) -> list[list[str]] | None:
    """The kernel's entries for an address, which it has once it asked, answered or not. None where none can be read."""
    return _table(_NEIGHBOURS, lambda row: len(row) == _COLUMNS and row[0] == address)


def _is_next_door(address: str) -> bool:
    """Whether the longest route to an address leads to no router, over a link with ARP: only such is a neighbour."""
    wanted = int.from_bytes(socket.inet_aton(address)[::-1], "big")
    rows = _table(_ROUTES, lambda row: len(row) > _MASK and int(row[1], 16) == wanted & int(row[_MASK], 16)) or []
    best = max(rows, key=lambda row: int(row[_MASK], 16).bit_count(), default=None)
    return best is not None and int(best[_ROUTER], 16) == 0 and not _flags(best[0]) & _WITHOUT_ARP


def _flags(interface: str) -> int:
    try:
        with open(f"/sys/class/net/{interface}/flags", encoding="ascii") as file:
            return int(file.read(), 16)
    except (OSError, ValueError):
        return _WITHOUT_ARP


def _table(path: str, fits: Callable[[list[str]], bool]) -> list[list[str]] | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return [row for line in list(file)[1:] if fits(row := line.split())]
    except OSError:
        return None


def _failed(attempt: _Attempt, code: int) -> _Tried:
    return _said(attempt, _OUTCOMES.get(code, Outcome.UNREACHABLE), detail=errno.errorcode.get(code, str(code)))


def _said(
    attempt: _Attempt, outcome: Outcome, *, ms: float | None = None, detail: str = "", resolved: bool = True
) -> _Tried:
    target = attempt.target
    return target, Trial(
        target=target.name,
        address=target.address,
        port=target.port,
        kind=target.kind,
        side=target.side,
        far=target.far,
        size=target.size,
        outcome=outcome,
        ms=ms,
        detail=detail,
        resolved=resolved,
    )
