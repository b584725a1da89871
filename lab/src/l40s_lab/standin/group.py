"""The ranks of all nodes and the connections between them: rank 0 listens on the dist-init address, and each other
rank holds one connection to it. Every step of the engine's life and every token passes through all of them.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable
from ipaddress import IPv4Address

from .played import Played

_HELLO = struct.Struct("!8sII")
_MAGIC = b"standin1"
_MESSAGE = struct.Struct("!cI")
GO, AT, STEP, ECHO, STOP, LOST = b"G", b"A", b"S", b"E", b"X", b"L"
"""Messages: barrier passed, arrived at barrier, make a token, token made, shut down, the rank at this IPv4 is lost."""


class PeerLost(Exception):
    """A peer's connection ended. address: the peer's, '' if unknown."""

    def __init__(self, address: str = "") -> None:
        super().__init__(address)
        self.address = address


class Stopped(Exception):
    """Rank 0 ordered a graceful end."""


class Peer:
    """One connection: fixed-size messages both ways."""

    def __init__(self, link: socket.socket, rank: int) -> None:
        self.link = link
        self.rank = rank
        self._buffer = b""
        self.address = _address(link)

    def fileno(self) -> int:
        return self.link.fileno()

    def send(self, kind: bytes, number: int) -> None:
        """A lost peer is noticed when reading, not here."""
        try:
            self.link.sendall(_MESSAGE.pack(kind, number))
        except OSError:
            return

    def receive(self) -> list[tuple[bytes, int]]:
        """The complete messages that have arrived. Raises PeerLost at the end of the connection."""
        try:
            more = self.link.recv(4096)
        except TimeoutError:
            raise
        except OSError:
            more = b""
        if not more:
            raise PeerLost(self.address)
        self._buffer += more
        whole = len(self._buffer) - len(self._buffer) % _MESSAGE.size
        messages = list(_MESSAGE.iter_unpack(self._buffer[:whole]))
        self._buffer = self._buffer[whole:]
        for kind, number in messages:
            if kind == LOST:
                raise PeerLost(str(IPv4Address(number)))
        return messages


class Leader:
    """Rank 0's side. `follows`: a lost peer is an error; otherwise it just never answers again."""

    rank = 0

    def __init__(self, host: str, port: int, world: int, timeout: float, follows: bool) -> None:
        self._world = world
        self._follows = follows
        self._arrived: dict[int, set[int]] = {}
        self._echoed: set[int] = set()
        self.selector = selectors.DefaultSelector()
        self.peers: dict[int, Peer] = {}
        if world > 1:
            self._gather(listen(host, port), timeout)

    def _gather(self, listener: socket.socket, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while len(self.peers) < self._world - 1:
            listener.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                link, _ = listener.accept()
            except (TimeoutError, BlockingIOError):
                raise Played(
                    "torch.distributed.DistStoreError",
                    f"Timed out after {int(timeout) + 1} seconds waiting for clients. "
                    f"{len(self.peers) + 1}/{self._world} clients joined.",
                ) from None
            self._welcome(link)
        for peer in self.peers.values():
            peer.link.settimeout(None)
            self.selector.register(peer, selectors.EVENT_READ, peer)
        self._listener = listener  # the real store listens as long as rank 0 lives
        self._tell(GO, 0)

    def _welcome(self, link: socket.socket) -> None:
        """Admit a rank of this engine; any other client of the port is disconnected."""
        link.settimeout(2)
        try:
            magic, rank, world = _HELLO.unpack(_exactly(link, _HELLO.size))
        except (OSError, PeerLost):
            link.close()
            return
        if magic != _MAGIC or world != self._world or rank in self.peers:
            link.close()
            return
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peers[rank] = Peer(link, rank)

    def barrier(self, number: int, timeout: float | None = None) -> None:
        """Wait until every rank has arrived; raises TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while len(self._arrived.get(number, ())) < self._world - 1:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self.listen_to_peers(left)
        self._tell(GO, number)

    def step(self, number: int) -> None:
        """Pass one token through all ranks. Returns when all have answered, which a dead or stopped one never does."""
        self._echoed.clear()
        self._tell(STEP, number)
        while len(self._echoed) < self._world - 1:
            self.listen_to_peers(None)

    def stop(self) -> None:
        self._tell(STOP, 0)

    def listen_to_peers(self, timeout: float | None) -> None:
        if not self.selector.get_map():
            time.sleep(min(timeout or 3600, 3600))
            return
        for key, _ in self.selector.select(timeout):
            if isinstance(key.data, Peer):
                self.hear(key.data)

    def hear(self, peer: Peer) -> None:
        """Handle a peer's messages."""
        try:
            messages = peer.receive()
        except PeerLost:
            self.selector.unregister(peer)
            if self._follows:
                self._tell(LOST, _number(peer.address))
                raise
            return
        for kind, number in messages:
            if kind == AT:
                self._arrived.setdefault(number, set()).add(peer.rank)
            elif kind == ECHO:
                self._echoed.add(peer.rank)

    def _tell(self, kind: bytes, number: int) -> None:
        for peer in self.peers.values():
            peer.send(kind, number)


class Member:
    """The side of any other rank."""

    def __init__(self, host: str, port: int, rank: int, world: int, timeout: float, follows: bool) -> None:
        self.rank = rank
        self._follows = follows
        self._waiting: list[tuple[bytes, int]] = []
        link = connect(host, port, timeout)
        self._peer = Peer(link, 0)
        link.sendall(_HELLO.pack(_MAGIC, rank, world))
        try:
            self._await_go(0)
        except PeerLost:
            raise Played(
                "torch.distributed.DistNetworkError",
                "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
            ) from None

    def barrier(self, number: int, timeout: float | None = None) -> None:
        """Report arrival and wait for the others; raises TimeoutError after `timeout` seconds."""
        self._peer.send(AT, number)
        self._peer.link.settimeout(timeout)
        try:
            self._await_go(number)
        except PeerLost:
            if self._follows:
                raise
            self._left_alone(timeout)
        finally:
            self._peer.link.settimeout(None)

    def _await_go(self, number: int) -> None:
        while (GO, number) not in self._waiting:
            self._waiting += self._peer.receive()
        self._waiting.remove((GO, number))

    def serve(self, on_step: Callable[[], None]) -> None:
        """Answer every token until rank 0 orders the end (Stopped), or forever if rank 0 is gone."""
        while True:
            for kind, number in self._waiting:
                if kind == STOP:
                    raise Stopped
                if kind == STEP:
                    on_step()
                    self._peer.send(ECHO, number)
            try:
                self._waiting = self._peer.receive()
            except PeerLost:
                if self._follows:
                    raise
                self._left_alone(None)

    def _left_alone(self, timeout: float | None) -> None:
        if timeout is not None:
            time.sleep(timeout)
            raise TimeoutError
        while True:
            time.sleep(3600)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on rank 0's own address, so that emulated nodes may share one machine.

    Raises Played(DistNetworkError) if the port is taken.
    """
    for address in dict.fromkeys((host, "0.0.0.0")):  # noqa: S104 - for a name that is not an address of this machine
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, kind, protocol)
        except OSError:
            continue
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(512)
        except OSError as error:
            listener.close()
            if error.errno == 99:  # EADDRNOTAVAIL
                continue
            break
        return listener
    raise Played(
        "torch.distributed.DistNetworkError",
        "The server socket has failed to listen on any local network address. "
        f"port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    )


def connect(host: str, port: int, timeout: float) -> socket.socket:
    """A connection to rank 0, retried until it listens. Raises Played(DistNetworkError) after the timeout."""
    deadline = time.monotonic() + timeout
    pause = 0.02
    while True:
        left = deadline - time.monotonic()
        try:
            link = socket.create_connection((host, port), timeout=max(min(left, 5.0), 0.01))
        except OSError:
            if time.monotonic() + pause >= deadline:
                raise Played(
                    "torch.distributed.DistNetworkError",
                    f"The client socket has timed out after {int(timeout * 1000)}ms while trying to connect to "
                    f"({host}, {port}).",
                ) from None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
            continue
        link.settimeout(None)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link


def _address(link: socket.socket) -> str:
    try:
        return str(link.getpeername()[0])
    except OSError:
        return ""


def _number(address: str) -> int:
    """An IPv4 address as a number in a message, 0 for any other."""
    try:
        return int(IPv4Address(address))
    except ValueError:
        return 0


def _exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = link.recv(count - len(data))
        if not more:
            raise PeerLost
        data += more
    return data
