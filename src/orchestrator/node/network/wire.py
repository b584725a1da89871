"""One connection of the leader link: JSON lines both ways, and what proves the run's key (protocol/link.py).

Whoever can't prove it is dropped, and so is whoever says anything else before: until then one line of at most 1 KiB is
read at a time. How connections are made is here too (`Sockets`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import select
import socket
from dataclasses import dataclass, field

from orchestrator.node.agent.membership import Message
from orchestrator.protocol.staging import Endpoint

LONGEST_MESSAGE = 256 * 1024
LONGEST_GREETING = 1024
"""Of a line before the key is proved; a hello takes some 300 bytes."""
MOST_LINES = 1000
"""Handed over at once, so that no sender keeps the loop; the next call has the rest."""
MOST_UNSENT = 1024 * 1024
USER_TIMEOUT_MS = 60_000
"""Then a connection that the network has lost is made again: it is the lease that judges silence, not TCP, and with a
lease above this a new connection is there sooner after an outage than TCP's next try on the old one (tcp(7))."""
_BROKEN = {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED}


class ConnectionClosed(Exception):
    """The connection is over. broken: it was closed or reset, rather than lost in silence."""

    def __init__(self, reason: str, *, broken: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.broken = broken


@dataclass
class Wire:
    """A non-blocking socket that carries JSON lines."""

    socket: socket.socket
    trusted: bool = False
    """The other side has proved the key."""
    _incoming: bytes = b""
    _outgoing: bytearray = field(default_factory=bytearray)
    _over: ConnectionClosed | None = None
    """Nothing more comes."""
    _unsent: ConnectionClosed | None = None
    """Nothing more goes out; what the other side said before may still be here."""

    def __post_init__(self) -> None:
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)

    def interest(self) -> int:
        """What to poll for."""
        return select.POLLIN | (select.POLLOUT if self._outgoing else 0)

    def send(self, message: Message) -> None:
        """Queue a message and send what goes at once. Raises Closed."""
        self._outgoing += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(self._outgoing) > MOST_UNSENT:
            self._unsent = ConnectionClosed("it accepts no more messages", broken=False)
            raise self._unsent
        self.flush()

    def flush(self) -> None:
        """Send what is queued, as far as the socket takes it. Raises Closed."""
        while self._outgoing:
            try:
                sent = self.socket.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError as error:
                self._unsent = _closed(error)
                raise self._unsent from None
            del self._outgoing[:sent]

    def receive(self) -> list[Message]:
        """Messages that arrived, one at a time before the key is proved. Raises Closed once everything before the end
        was handed over, and for a line that is too long or, before the key is proved, no message."""
        longest = LONGEST_MESSAGE if self.trusted else LONGEST_GREETING
        self._read(longest)
        *lines, self._incoming = self._incoming.split(b"\n", MOST_LINES if self.trusted else 1)
        messages = [message for message in map(_understood, lines) if message is not None]
        if lines and not messages and not self.trusted:
            raise ConnectionClosed("it sent an invalid greeting", broken=False)
        if messages or lines:
            return messages  # the end is told at the next call
        if len(self._incoming) > longest:
            raise ConnectionClosed("it sent an incomplete message", broken=False)
        self._raise_the_end()
        return []

    def _raise_the_end(self) -> None:
        over = self._over or self._unsent
        if over is not None:
            raise over

    def _read(self, longest: int) -> None:
        while self._over is None and len(self._incoming) <= longest:
            try:
                data = self.socket.recv(min(65536, longest + 1))
            except BlockingIOError:
                return
            except OSError as error:
                self._over = _closed(error)
                return
            if not data:
                self._over = ConnectionClosed("the connection was closed", broken=True)
                return
            self._incoming += data

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self.socket.close()


def nonce() -> str:
    """A fresh random word for a challenge."""
    return os.urandom(16).hex()


def proof(key: bytes, side: str, run_id: str, node: str, leaders_nonce: str, members_nonce: str) -> str:
    """What only a holder of the key can compute; every word's length is bound, so none can shift into another."""
    words = json.dumps([side, run_id, node, leaders_nonce, members_nonce])
    return hmac.new(key, words.encode(), hashlib.sha256).hexdigest()


def proves(key: bytes, given: object, side: str, run_id: str, node: str, leaders: str, members: str) -> bool:
    """Compare a proof in constant time."""
    return isinstance(given, str) and hmac.compare_digest(
        given.encode("utf-8", "surrogatepass"), proof(key, side, run_id, node, leaders, members).encode()
    )


def _understood(line: bytes) -> Message | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):  # RecursionError: deeply nested, by whoever found the port
        return None
    return message if isinstance(message, dict) else None


def _closed(error: OSError) -> ConnectionClosed:
    return ConnectionClosed(error.strerror or str(error), broken=error.errno in _BROKEN)


class Sockets:
    """Connections of this machine."""

    def listen(self, at: Endpoint, backlog: int) -> socket.socket:
        """A listener. Raises OSError where there can be none."""
        listener = socket.socket(_family(at), socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((at.address, at.port))
            listener.listen(backlog)
        except OSError:
            listener.close()
            raise
        listener.setblocking(False)
        return listener

    def begin_to_connect(self, to: Endpoint) -> tuple[socket.socket, int]:
        """A connecting socket, and an error number that is known at once, else 0."""
        connecting = socket.socket(_family(to), socket.SOCK_STREAM)
        connecting.setblocking(False)
        code = connecting.connect_ex((to.address, to.port))
        return connecting, 0 if code == errno.EINPROGRESS else code

    def connected(self, connecting: socket.socket) -> int | None:
        """None while it connects; then 0, or why it failed as an error number."""
        ready = select.poll()
        ready.register(connecting.fileno(), select.POLLOUT)
        return connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if ready.poll(0) else None


def _family(endpoint: Endpoint) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET
