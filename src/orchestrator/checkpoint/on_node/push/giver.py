"""Verb `push-offer`, the source of a push, and how each link of a push gives its files to the next one.

A connection begins with both sides' proof that they know the push's secret (node/network/wire.py), and is for one
question: which files may be fetched, a line for each as soon as it is ready, or the bytes of one of them. Only these
files are given, and they are only read. The secret is in no file: it ends with the process.

The verb reads every file once for its SHA-256, and offers it from then on. Its answer is lines: first some {"files":
{path: bytes}}, then {"port", "secret"}, then {"bytes": how many have been read} twice a second, until nobody reads any
more.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.checkpoint.on_node.digests import CHUNK, Digests
from orchestrator.checkpoint.on_node.directory import WHICH, listed, refuse_unfinished
from orchestrator.checkpoint.on_node.push.target import PARTIAL
from orchestrator.checkpoint.on_node.work import FileWork, say
from orchestrator.node import files
from orchestrator.node.agent import weights
from orchestrator.node.network.exchange import Exchange
from orchestrator.node.network.wire import nonce, proof, proves
from orchestrator.node.os_errors import os_failures
from orchestrator.node.requests import TICK_S, in_parts, reader_is_gone, request_of, tell
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.jobs import Giving, OfferRequest, Progress, PushLine
from orchestrator.protocol.message import parsed

IDLE_S = 60
"""A connection on which nothing moves for this long is ended."""
FULL_S = 0.05
FEW = 4
"""Connections of one address that have proved nothing, unless another one of it has."""
MOST_STRANGERS = 64
LINE_S = 20.0
"""For the giver's whole greeting; a side that says nothing for this long afterwards is gone."""
ALIVE_S = 5.0
LONGEST = 64 * 1024
MOST_READERS = 4
"""Files that are read side by side; more make a disk slower, and a network is slower than four of them."""


def stream(request: dict[str, Any]) -> None:
    """Offer a directory until the caller goes away. It is only read."""
    asked = request_of(OfferRequest, request)
    with os_failures(asked.directory):
        root = Path(asked.directory)
        sizes = read(root)
        giver, digests = Giver(root), Digests(files.state_dir(asked.state_dir))
        work = FileWork(Progress(sum(sizes.values())))
        port = giver.listen(asked.address, asked.port)
        for part in in_parts(sizes.items()):
            tell({"files": dict(part)})
        tell({"port": port, "secret": giver.secret})

        def offer(path: str) -> None:
            giver.offer(path, digests.of(root / path, work.add))

        work.on(list(sizes), offer, lambda now: say(PushLine(bytes=now.done)), most=MOST_READERS)
        while not reader_is_gone(TICK_S):
            tell(PushLine(bytes=work.now.done, complete=True).as_json())


def read(directory: Path) -> Mapping[str, int]:
    """The files of a complete checkpoint with their sizes in bytes; links to files are followed.

    A hub's cache links to its blobs beside the directory. A link to what shares no folder but / with it is refused: a
    checkpoint from elsewhere must not send /etc/shadow.
    Raises DeployError for that, and for one that is not complete, or that can't be read.
    """
    if not directory.is_dir():
        raise DeployError("no such directory", where=str(directory), fix=WHICH, kind="no-checkpoint")
    if directory.name.endswith(PARTIAL):
        what = "is the unfinished copy of another push"
        raise DeployError(
            what,
            where=str(directory),
            fix="finish that push first, or specify a complete checkpoint",
            kind="unfinished",
        )
    refuse_unfinished(directory)
    for fault in weights.check(directory):
        raise fault
    paths = listed(directory)
    for path in paths:
        real = os.path.realpath(directory / path)
        if os.path.commonpath([os.path.realpath(directory), real]) == "/":
            what = f"is a symbolic link to {real}, outside the directory"
            raise DeployError(
                what, where=str(directory / path), fix="make a directory of regular files: `cp -rL`", kind="far-link"
            )
        if not os.access(directory / path, os.R_OK):
            raise DeployError(
                "can't be read", where=str(directory / path), fix="check its owner and mode", kind="unreadable"
            )
    return {path: (directory / path).stat().st_size for path in paths}


class ConnectionLost(Exception):
    """A connection could not be made, or ended early; the next try may do better. The text says how."""


class Giver:
    """Gives files below `root` to clients with the secret. Safe to use from several threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.secret = secrets.token_hex(16)
        self._ready: set[str] = set()
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._strangers: Counter[str] = Counter()
        self._proved: Counter[str] = Counter()

    def listen(self, address: str, port: int) -> int:
        """Begin; port 0 takes a free one. Returns the port. Raises DeployError where it can't be opened."""
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(64)
        except OSError as wrong:
            what = f"can't listen on {address} port {port}: {wrong.strerror}"
            raise DeployError(
                what, where=f"port {port}", fix="choose one that is free on every node: --port", kind="port"
            ) from None
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return int(listener.getsockname()[1])

    def offer(self, path: str, digest: str) -> None:
        """One more file that may be fetched, with its SHA-256 at the source."""
        with self._changed:
            self._ready.add(path)
            self._lines.append(json.dumps({"path": path, "sha256": digest}) + "\n")
            self._changed.notify_all()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, (host, *_) = listener.accept()
            except OSError:  # gone again, or no descriptor is free
                time.sleep(FULL_S)
                continue
            with self._changed:
                few = host in self._proved or self._strangers[host] < FEW
                welcome = few and self._strangers.total() < MOST_STRANGERS
                self._strangers[host] += welcome
            if welcome:
                threading.Thread(target=self._serve, args=(connection, host), daemon=True).start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket, host: str) -> None:
        """One client, until it goes."""
        among = self._strangers
        try:
            with connection, contextlib.suppress(OSError, ValueError, KeyError, ConnectionLost):
                asked = _proved(connection, self.secret)
                with self._changed:
                    self._strangers -= Counter([host])
                    among = self._proved
                    among[host] += 1
                if "path" in asked:
                    self._give(connection, str(asked["path"]), int(asked["at"]))
                else:
                    self._list(connection)
        finally:
            with self._changed:
                among -= Counter([host])

    def _give(self, connection: socket.socket, path: str, at: int) -> None:
        connection.settimeout(IDLE_S)
        if path in self._ready:
            with open(files.opened(self.root / path), "rb") as file:
                connection.sendfile(file, at)

    def _list(self, connection: socket.socket) -> None:
        connection.settimeout(LINE_S)
        count = 0
        while True:
            with self._changed:
                if len(self._lines) == count:
                    self._changed.wait(ALIVE_S)
                new = self._lines[count:]
            count += len(new)
            connection.sendall(("".join(new) or "{}\n").encode())


def _proved(connection: socket.socket, secret: str) -> dict[str, Any]:
    """What a client asks that has proved that it knows the secret. Raises ConnectionLost for any other."""
    key = secret.encode()
    lines = Exchange(LINE_S).makefile(connection)
    theirs, ours = str(_line(lines.readline(LONGEST))["nonce"]), nonce()
    _say(connection, {"nonce": ours, "proof": proof(key, "giver", "push", "", theirs, ours)})
    asked = _line(lines.readline(LONGEST))
    if not proves(key, asked.get("proof"), "fetcher", "push", "", theirs, ours):
        raise ConnectionLost("it does not know the secret")
    return asked


@contextmanager
def _asked(giver: Giving, question: Mapping[str, Any]) -> Iterator[BinaryIO]:
    """What a giver answers. Raises ConnectionLost, also for what goes wrong in reading it."""
    key, ours = giver.secret.encode(), nonce()
    try:
        with (
            socket.create_connection((giver.address, giver.port), timeout=LINE_S) as connection,
            connection.makefile("rb") as answer,
        ):
            _say(connection, {"nonce": ours})
            # it says no more before our question: a reader of its own leaves nothing unread
            reply = _line(Exchange(LINE_S).makefile(connection).readline(LONGEST))
            theirs = str(reply.get("nonce"))
            if not proves(key, reply.get("proof"), "giver", "push", "", ours, theirs):
                raise ConnectionLost("another program listens on that port")
            _say(connection, {**question, "proof": proof(key, "fetcher", "push", "", ours, theirs)})
            connection.settimeout(IDLE_S if question else LINE_S)  # a disk may stall, a list has a line every ALIVE_S
            yield answer
    except (OSError, ValueError) as wrong:
        raise ConnectionLost(str(wrong)) from None


def ready_at(giver: Giving) -> Iterator[tuple[str, str]]:
    """Each file that may be fetched and its SHA-256, as it becomes ready. Ends by ConnectionLost only."""
    with _asked(giver, {}) as answer:
        while True:
            reply = _line(answer.readline(LONGEST))
            if "path" in reply:
                yield str(reply["path"]), str(reply["sha256"])


def bytes_of(giver: Giving, path: str, at: int, most: int = CHUNK) -> Generator[memoryview, None, None]:
    """A ready file from an offset on, at most so many bytes at a time. Raises ConnectionLost."""
    buffer = memoryview(bytearray(min(most, CHUNK)))
    with _asked(giver, {"path": path, "at": at}) as answer:
        while count := answer.readinto1(buffer):  # type: ignore[attr-defined]
            yield buffer[:count]


def _say(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _line(text: bytes) -> dict[str, Any]:
    if not text:
        raise ConnectionLost("it closed the connection")
    if not isinstance(reply := parsed(text), dict):
        raise ConnectionLost("another program listens on that port")
    return reply
