"""The leader link: every other agent of a gang holds one connection to the leader's agent.

Both sides are driven by the agent's loop: `step` does whatever can be done without waiting and returns what
happened. Silence is counted on both sides; what follows from it is the agent's decision. A guardian whose agent has
died says so over the same link, as that agent would have spoken (`DeathReport`).
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestrator import __version__
from orchestrator.node.agent.membership import Event, LinkClosed, LinkOpened, Message, MessageReceived
from orchestrator.node.agent.preflight import port_failure
from orchestrator.node.agent.staged_run import Run
from orchestrator.node.network import wire
from orchestrator.node.network.wire import ConnectionClosed, Sockets, Wire
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.link import FORMAT, GREETINGS, AgentEnded, Challenge, Hello, Welcome, heard, misfit
from orchestrator.protocol.message import Message as LinkMessage

HANDSHAKE_S = 5.0
CONNECT_S = 3.0
RETRY_S = 0.1
REFUSALS_APART_S = 1.0
"""One refused connection may be a firewall's passing answer; a port without a listener refuses the next one too."""
BACKLOG = 1024
"""Connections that the kernel keeps until the next step. Where it is full the kernel drops a SYN, and whoever sent it
tries again after 1 s (tcp(7), RFC 6298): half of what a member has to make its link again."""
MOST_STRANGERS = 64
"""Connections that have not proved the key; the oldest makes room for a new one, for a member needs milliseconds."""
MOST_OF_AN_ADDRESS = 8


@dataclass
class _Stranger:
    """A connection that has not proved who it is."""

    wire: Wire
    address: str
    nonce: str
    since: float


@dataclass
class Hub:
    """The leader's side."""

    run: Run
    key: bytes
    sockets: Sockets = field(default_factory=Sockets)
    _listener: socket.socket | None = None
    _strangers: list[_Stranger] = field(default_factory=list)
    _members: dict[str, Wire] = field(default_factory=dict)

    def listen(self) -> None:
        """Bind the agent port on the cluster's address. Raises DeployError where it is taken."""
        address, port = self.run.leader.address, self.run.leader.port
        try:
            self._listener = self.sockets.listen(self.run.leader, BACKLOG)
        except OSError as error:
            raise port_failure(address, port, self.run.state) or DeployError(
                f"can't listen for the other agents: {error.strerror}",
                where=f"port {port}",
                fix="try again",
                kind="port-refused",
            ) from None

    def descriptors(self) -> Iterator[tuple[int, int]]:
        """(file descriptor, poll mask) of everything to wait for."""
        if self._listener is not None:
            yield self._listener.fileno(), select.POLLIN
        for peer in self._wires():
            yield peer.socket.fileno(), peer.interest()

    def _wires(self) -> list[Wire]:
        return [*(stranger.wire for stranger in self._strangers), *self._members.values()]

    @property
    def joined(self) -> frozenset[str]:
        """Nodes that are connected now."""
        return frozenset(self._members)

    def step(self, now: float) -> list[Event]:
        """Accept, greet, read; never waits."""
        self._accept(now)
        return [*self._greet(now), *self._read()]

    def send(self, message: LinkMessage, *, only: str | None = None) -> None:
        """Send to one node or to all; a connection that breaks is found by the next `step`."""
        for node, member in self._members.items():
            if only in (None, node):
                with contextlib.suppress(ConnectionClosed):
                    member.send(message.as_json())

    def close(self) -> None:
        """Close everything."""
        for peer in self._wires():
            with contextlib.suppress(ConnectionClosed):
                peer.flush()
            peer.close()
        self._strangers, self._members = [], {}
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _accept(self, now: float) -> None:
        if self._listener is None:
            return
        for _ in range(MOST_STRANGERS):
            try:
                connection, peer = self._listener.accept()
            except OSError:  # nobody waits, or accept(2) told of the network or of too many files: the next step tries
                return
            if sum(stranger.address == peer[0] for stranger in self._strangers) >= MOST_OF_AN_ADDRESS:
                connection.close()
                continue
            self._challenge(_Stranger(Wire(connection), peer[0], wire.nonce(), now))

    def _challenge(self, stranger: _Stranger) -> None:
        if len(self._strangers) >= MOST_STRANGERS:
            self._strangers.pop(0).wire.close()
        try:
            stranger.wire.send(Challenge(format=FORMAT, nonce=stranger.nonce, release=__version__).as_json())
        except ConnectionClosed:
            stranger.wire.close()
            return
        self._strangers.append(stranger)

    def _greet(self, now: float) -> Iterator[Event]:
        for stranger in list(self._strangers):
            node = None
            try:
                messages = stranger.wire.receive()
                if messages:
                    node = self._admit(stranger, messages[0])
                elif now - stranger.since < HANDSHAKE_S:
                    continue
            except ConnectionClosed:
                pass
            self._strangers.remove(stranger)
            if node is None:
                stranger.wire.close()
                continue
            if node in self._members:
                self._members.pop(node).close()
            self._members[node] = stranger.wire
            yield LinkOpened(node)

    def _admit(self, stranger: _Stranger, message: Message) -> str | None:
        hello = Hello.read(message)
        if not isinstance(hello, Hello) or (self.run.members and hello.node not in self.run.members):
            return None
        signed = (self.run.run_id, hello.node, stranger.nonce, hello.nonce)
        if not wire.proves(self.key, hello.proof, "member", *signed) or misfit(hello, __version__):
            return None
        stranger.wire.send(Welcome(proof=wire.proof(self.key, "leader", *signed)).as_json())
        stranger.wire.trusted = True
        return hello.node

    def _read(self) -> Iterator[Event]:
        for node, member in list(self._members.items()):
            try:
                with contextlib.suppress(ConnectionClosed):  # what it said before its end comes first
                    member.flush()
                messages = member.receive()
            except ConnectionClosed as closed:
                member.close()
                del self._members[node]
                yield LinkClosed(node, closed.reason, closed.broken)
                continue
            yield from (MessageReceived(node, message) for message in messages)


@dataclass
class Spoke:
    """Any other node's side. It connects, and connects again where only the network failed."""

    run: Run
    key: bytes
    leader: str
    sockets: Sockets = field(default_factory=Sockets)
    trouble: str = ""
    """Why the newest attempt to connect failed."""
    misfit: str = ""
    """Why this agent can't follow the leader's, which is of another release."""
    _wire: Wire | None = None
    _connecting: socket.socket | None = None
    _began: float = 0.0
    _refused: tuple[float, float] = (0.0, 0.0)
    """When the first and the newest of the refusals in a row came, monotonic seconds."""
    _nonces: tuple[str, str] | None = None
    joined: bool = False
    """Connected, and both sides have proved the key."""

    @property
    def reached(self) -> bool:
        """The connection was accepted, whether a message has come or not."""
        return self._wire is not None

    @property
    def refused(self) -> bool:
        """Nothing listens on the leader's port: connections were refused at least twice, a while apart."""
        first, newest = self._refused
        return newest - first >= REFUSALS_APART_S

    def descriptors(self) -> Iterator[tuple[int, int]]:
        """(file descriptor, poll mask) of everything to wait for."""
        if self._connecting is not None:
            yield self._connecting.fileno(), select.POLLOUT
        if self._wire is not None:
            yield self._wire.socket.fileno(), self._wire.interest()

    def step(self, now: float) -> list[Event]:
        """Connect, greet, read; never waits."""
        if self._wire is None:
            self._connect(now)
        if self._wire is None:
            return []
        was_joined = self.joined
        try:
            with contextlib.suppress(ConnectionClosed):  # what it said before its end comes first
                self._wire.flush()
            events = self._hear(self._wire)
        except ConnectionClosed as closed:
            self._drop(closed.reason)
            return [LinkClosed(self.leader, closed.reason, closed.broken)] if was_joined else []
        if self.joined and not was_joined:
            with contextlib.suppress(ConnectionClosed):  # the next step is told again
                events += self._hear(self._wire)
        return events

    def _hear(self, connection: Wire) -> list[Event]:
        return [event for message in connection.receive() for event in self._take(message)]

    def send(self, message: LinkMessage) -> None:
        """Send to the leader where we are joined; a broken connection is found by the next `step`."""
        if self._wire is not None and self.joined:
            with contextlib.suppress(ConnectionClosed):
                self._wire.send(message.as_json())

    def close(self) -> None:
        """Send what is left and close."""
        if self._wire is not None:
            with contextlib.suppress(ConnectionClosed):
                self._wire.flush()
        self._drop("closed by this side")

    def _connect(self, now: float) -> None:
        if self._connecting is None:
            if now - self._began >= RETRY_S:
                self._begin(now)
            return
        error = self.sockets.connected(self._connecting)
        if error == 0:
            self._wire, self._connecting = Wire(self._connecting), None
            self._refused = (0.0, 0.0)
        elif error is not None:
            self._drop(errno.errorcode.get(error, str(error)))
        elif now - self._began > CONNECT_S:
            self._drop("no answer")

    def _begin(self, now: float) -> None:
        self._began = now
        self._connecting, code = self.sockets.begin_to_connect(self.run.leader)
        if code:
            self._drop(errno.errorcode.get(code, str(code)))

    def _take(self, message: Message) -> Iterator[Event]:
        if self.joined:
            yield MessageReceived(self.leader, message)
            return
        if self._wire is None:
            return
        match heard(GREETINGS, message):
            case Challenge() as challenge:
                self._wire.send(self._hello(challenge).as_json())
            case Welcome(proof=proof) if self._nonces is not None:
                signed = (self.run.run_id, self.run.node, *self._nonces)
                if not wire.proves(self.key, proof, "leader", *signed):
                    raise ConnectionClosed("the leader's agent does not have the run's key", broken=False)
                self.joined = self._wire.trusted = True
                yield LinkOpened(self.leader)

    def _hello(self, challenge: Challenge) -> Hello:
        """Raises Closed where its leader's agent speaks another link."""
        self.misfit = misfit(challenge, __version__)
        if self.misfit:
            raise ConnectionClosed(f"it {self.misfit}", broken=False)
        self._nonces = (challenge.nonce, ours := wire.nonce())
        who, run_id = self.run.node, self.run.run_id
        proof = wire.proof(self.key, "member", run_id, who, *self._nonces)
        return Hello(format=FORMAT, node=who, run_id=run_id, nonce=ours, proof=proof, release=__version__)

    def _drop(self, reason: str) -> None:
        self.trouble = reason
        refused = reason == errno.errorcode[errno.ECONNREFUSED]
        self._refused = (self._refused[0] or self._began, self._began) if refused else (0.0, 0.0)
        if self._connecting is not None:
            self._connecting.close()
        if self._wire is not None:
            self._wire.close()
        self._connecting, self._wire, self._nonces, self.joined = None, None, None, False


REPORT_S = 2.0
"""By then an agent that has not heard it has drawn its own conclusion (RECONNECT_S in node/agent/membership.py)."""
_TRY_EVERY_S = 0.02


def report_death(run: Run) -> None:
    """Report that this node's agent ended: a member's guardian to the leader's agent, the leader's to the members.

    Returns once everybody has heard it, or after REPORT_S.
    """
    obituary = DeathReport(run, time.monotonic() + REPORT_S)
    while not obituary.step(time.monotonic()):
        poll = select.poll()
        for descriptor, mask in obituary.side.descriptors():
            poll.register(descriptor, mask)
        poll.poll(_TRY_EVERY_S * 1000)


@dataclass
class DeathReport:
    """One guardian's side of the link, in its agent's place. until: then it is given up, monotonic seconds."""

    run: Run
    until: float
    sockets: Sockets = field(default_factory=Sockets)
    side: Hub | Spoke = field(init=False)
    _unaware: set[str] = field(default_factory=set)
    _listens: bool = False

    def __post_init__(self) -> None:
        run, key = self.run, self.run.link_key()
        self._unaware = set(run.members[1:])
        self.side = Hub(run, key, self.sockets) if run.leads else Spoke(run, key, run.leader_name, self.sockets)

    def step(self, now: float) -> bool:
        """Whatever can be done without waiting; True once it is over."""
        over = self._tell(now) or now >= self.until
        if over:
            self.side.close()
        return over

    def _tell(self, now: float) -> bool:
        """True once everybody has heard it."""
        if isinstance(self.side, Spoke):
            self.side.step(now)
            self.side.send(AgentEnded())
            return self.side.joined
        if not self._unaware or not self._at_the_port(self.side):
            return not self._unaware
        for event in self.side.step(now):
            if isinstance(event, LinkOpened):
                self.side.send(AgentEnded(), only=event.node)
                self._unaware.discard(event.node)
        return not self._unaware

    def _at_the_port(self, hub: Hub) -> bool:
        """That its agent has left: there they look for it."""
        if not self._listens:
            with contextlib.suppress(DeployError):
                hub.listen()
                self._listens = True
        return self._listens
