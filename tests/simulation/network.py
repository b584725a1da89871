"""TCP among nodes of a simulated world, as far as the leader link can tell: order, loss with retransmission, resets,
refusals, silence, and the effects of closing."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from tests.simulation.world import World

from orchestrator.node.network.wire import USER_TIMEOUT_MS, Sockets
from orchestrator.protocol.staging import Endpoint

LATENCY_S = 0.0005
RESENT_S = 0.2
"""Delay of TCP's next try after an outage; Linux's minimum (RTO_MIN)."""


@dataclass(eq=False)
class Line:
    """One end of a connection, in place of a socket."""

    net: Net
    node: str
    wake: Callable[[], None]
    number: int
    peer: Line | None = None
    open: bool = False
    """The handshake is complete."""
    error: int = 0
    closed: bool = False
    ended: bool = False
    """The peer's end has arrived."""
    inbox: bytearray = field(default_factory=bytearray)
    transit: deque[bytes] = field(default_factory=deque)
    """Data on its way to the peer, b'' for our end of stream."""
    stuck_since: float | None = None
    backlog: deque[Line] | None = None
    """Connections that wait at a listener."""
    port: int = 0
    owner: SimulatedSockets | None = None
    """The process that takes a listener's connections."""

    def setblocking(self, _: bool) -> None: ...

    def setsockopt(self, *_: int) -> None: ...

    def fileno(self) -> int:
        return -1 if self.closed else self.number

    def accept(self) -> tuple[Line, tuple[str, int]]:
        if not self.backlog:
            raise BlockingIOError
        line = self.backlog.popleft()
        return line, (line.peer.node if line.peer else "", 0)

    def send(self, data: bytes | bytearray) -> int:
        if self.error:
            raise OSError(self.error, "simulated")
        if self.ended and self.peer is None:
            raise OSError(errno.EPIPE, "simulated")
        self.transit.append(bytes(data))
        self.net.carry(self)
        return len(data)

    def recv(self, most: int) -> bytes:
        if self.inbox:
            data = bytes(self.inbox[:most])
            del self.inbox[:most]
            return data
        if self.error:
            raise OSError(self.error, "simulated")
        if self.ended:
            return b""
        raise BlockingIOError

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self.backlog is not None:
            self.net.listeners.pop((self.node, self.port), None)
            for line in self.backlog:
                line.reset_peer()
        elif self.inbox:
            self.reset_peer()  # unread data: Linux answers with a reset
        elif self.peer is not None and not self.error:
            self.transit.append(b"")
            self.net.carry(self)

    def reset_peer(self) -> None:
        """Tell the other end at once that this end is dead."""
        peer, self.peer = self.peer, None
        if peer is not None and self.net.passes(self.node, peer.node):
            peer.broken(errno.ECONNRESET)

    def broken(self, error: int) -> None:
        """The connection is over for this end."""
        if not self.closed and not self.error:
            self.error, self.peer = error, None
            self.transit.clear()
            self.wake()


@dataclass
class Net:
    """The network between the nodes. lost: directions in which packets are dropped; rejected: pairs between which a
    firewall resets and refuses."""

    world: World
    lost: set[tuple[str, str]] = field(default_factory=set)
    rejected: set[frozenset[str]] = field(default_factory=set)
    listeners: dict[tuple[str, int], Line] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=lambda: count(1_000_000))

    def passes(self, source: str, target: str) -> bool:
        return (source, target) not in self.lost

    def both_ways(self, one: str, other: str) -> bool:
        return self.passes(one, other) and self.passes(other, one)

    def line(self, node: str, wake: Callable[[], None]) -> Line:
        made = Line(self, node, wake, next(self._numbers))
        self.lines = [line for line in self.lines if not (line.closed or line.error)]
        self.lines.append(made)
        return made

    def carry(self, line: Line) -> None:
        """Deliver the data on its way, or wait for the network."""
        peer = line.peer
        if peer is None or not line.open:
            return
        if not self.both_ways(line.node, peer.node) and line.stuck_since is None:
            line.stuck_since = since = self.world.now
            self.world.after(USER_TIMEOUT_MS / 1000, lambda: self._give_up(line, since))
        if self.passes(line.node, peer.node) and line.transit:
            self.world.after(LATENCY_S * (0.5 + self.world.rng.random()), lambda: self._deliver(line))

    def _give_up(self, line: Line, since: float) -> None:
        if line.stuck_since == since:
            line.broken(errno.ETIMEDOUT)

    def _deliver(self, line: Line) -> None:
        peer = line.peer
        if peer is None or not self.passes(line.node, peer.node) or not line.transit:
            return
        while line.transit:
            data = line.transit.popleft()
            if peer.closed:
                line.broken(errno.ECONNRESET)
                return
            if data:
                peer.inbox += data
            else:
                peer.ended, peer.peer, line.peer = True, None, None
                break
        peer.wake()

    def changed(self) -> None:
        """After a change of `lost` or `rejected`: waiting data goes on, rejected connections break."""
        for line in list(self.lines):
            if line.peer is None or (line.closed and not line.transit):
                continue
            pair = frozenset((line.node, line.peer.node))
            if pair in self.rejected and line.open:
                other = line.peer
                line.broken(errno.ECONNRESET)
                other.broken(errno.ECONNRESET)
            elif self.both_ways(line.node, line.peer.node) and line.stuck_since is not None:
                line.stuck_since = None
                self.world.after(RESENT_S, lambda line=line: self.carry(line))  # type: ignore[misc]

    def connect(self, line: Line, target: str, port: int) -> None:
        """One try of a handshake; a lost packet is sent again."""
        if line.closed or line.open or line.error:
            return
        if frozenset((line.node, target)) in self.rejected:
            line.broken(errno.ECONNREFUSED)
        elif not self.both_ways(line.node, target):
            self.world.after(1.0, lambda: self.connect(line, target, port))
        else:
            self._arrive(line, self.listeners.get((target, port)))

    def _arrive(self, line: Line, listener: Line | None) -> None:
        if listener is None or listener.backlog is None:
            line.broken(errno.ECONNREFUSED)
            return
        far = self.line(listener.node, listener.wake)
        line.peer, far.peer, line.open, far.open = far, line, True, True
        listener.backlog.append(far)
        if listener.owner is not None:
            listener.owner.made.append(far)
        listener.wake()
        line.wake()


class SimulatedSockets(Sockets):
    """The sockets of one process. Addresses are node names."""

    def __init__(self, net: Net, node: str, wake: Callable[[], None]) -> None:
        self.net, self.node, self.wake = net, node, wake
        self.made: list[Line] = []

    def listen(self, at: Endpoint, backlog: int) -> Line:  # type: ignore[override]
        if (self.node, at.port) in self.net.listeners:
            raise OSError(errno.EADDRINUSE, "simulated")
        listener = self._line()
        listener.backlog, listener.port, listener.owner = deque(maxlen=backlog), at.port, self
        self.net.listeners[self.node, at.port] = listener
        return listener

    def begin_to_connect(self, to: Endpoint) -> tuple[Line, int]:  # type: ignore[override]
        line = self._line()
        self.net.world.after(LATENCY_S, lambda: self.net.connect(line, to.address, to.port))
        return line, 0

    def connected(self, connecting: Line) -> int | None:  # type: ignore[override]
        return connecting.error or (0 if connecting.open else None)

    def close_all(self) -> None:
        """The process is dead: the kernel closes its sockets."""
        for line in self.made:
            line.close()

    def _line(self) -> Line:
        made = self.net.line(self.node, self.wake)
        self.made = [line for line in self.made if not line.closed]
        self.made.append(made)
        return made
