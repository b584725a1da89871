"""The list beside the files of a push: what may be fetched so far, and its SHA-256 at the source, sent as it grows.

One connection from the fetching side, to the giver's own port, JSON lines. Both sides prove that they have the secret:
    fetcher: l40s {"nonce": F}
    giver:   {"nonce": G, "proof": HMAC("giver" F G)}
    fetcher: {"proof": HMAC("fetcher" F G)}
    giver:   {"path": P, "sha256": D} for every file, {} now and then
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

from orchestrator.node.network.wire import nonce, proof, proves

HELLO = b"l40s "
"""What a connection for this begins with; rsync's begin with @RSYNCD."""
LINE_S = 20.0
"""A side that says nothing for this long in the handshake, or afterwards, is gone."""
ALIVE_S = 5.0
LONGEST = 64 * 1024


class NoNotes(Exception):
    """The connection could not be made, or ended. The text says how."""


class Ready:
    """Files that may be fetched, in the order in which they became so. Safe to use from several threads."""

    def __init__(self) -> None:
        self._files: list[tuple[str, str]] = []
        self._more = threading.Condition()

    def add(self, path: str, digest: str) -> None:
        """One more."""
        with self._more:
            self._files.append((path, digest))
            self._more.notify_all()

    def after(self, count: int, wait_s: float) -> list[tuple[str, str]]:
        """What came behind the first `count`; waits for it, [] where nothing came."""
        with self._more:
            if len(self._files) <= count:
                self._more.wait(wait_s)
            return self._files[count:]


def tell_ready(
    connection: socket.socket, secret: str, ready: Ready, trusting: contextlib.AbstractContextManager[None]
) -> None:
    """The giver's end, until the other one goes. trusting: entered once it has proved that it has the secret."""
    key = secret.encode()
    with connection, contextlib.suppress(OSError, ValueError, KeyError, NoNotes):
        connection.settimeout(LINE_S)
        lines = connection.makefile("rb")
        theirs = str(_line(lines.readline(LONGEST).removeprefix(HELLO))["nonce"])
        ours = nonce()
        _say(connection, {"nonce": ours, "proof": proof(key, "giver", "push", "", theirs, ours)})
        if not proves(key, _line(lines.readline(LONGEST)).get("proof"), "fetcher", "push", "", theirs, ours):
            return
        with trusting:
            _tell_all(connection, ready)


def _tell_all(connection: socket.socket, ready: Ready) -> None:
    count = 0
    while True:
        new = ready.after(count, ALIVE_S)
        count += len(new)
        text = "".join(json.dumps({"path": path, "sha256": digest}) + "\n" for path, digest in new)
        connection.sendall((text or "{}\n").encode())


def hear_ready(address: str, port: int, secret: str, heard: Callable[[str, str], None]) -> None:
    """The fetcher's end: `heard` receives every file, until the connection ends. Raises NoNotes then."""
    key = secret.encode()
    try:
        with socket.create_connection((address, port), timeout=LINE_S) as connection:
            lines = connection.makefile("rb")
            ours = nonce()
            connection.sendall(HELLO)
            _say(connection, {"nonce": ours})
            said = _line(lines.readline(LONGEST))
            theirs = str(said.get("nonce"))
            if not proves(key, said.get("proof"), "giver", "push", "", ours, theirs):
                raise NoNotes("another program listens on that port")
            _say(connection, {"proof": proof(key, "fetcher", "push", "", ours, theirs)})
            while True:
                said = _line(lines.readline(LONGEST))
                if "path" in said:
                    heard(str(said["path"]), str(said["sha256"]))
    except (OSError, ValueError) as wrong:
        raise NoNotes(str(wrong)) from None


def _say(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _line(text: bytes) -> dict[str, Any]:
    if not text:
        raise NoNotes("it closed the connection")
    said = json.loads(text)
    if not isinstance(said, dict):
        raise NoNotes("another program listens on that port")
    return said
