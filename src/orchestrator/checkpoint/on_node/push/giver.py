"""The sending side of a push: a directory for reading, over rsync's own protocol, as long as this process lives.

We listen; every connection becomes the stdin of an `rsync --daemon`, as inetd does it (rsync(1), "STARTING AN RSYNC
DAEMON TO ACCEPT CONNECTIONS"), but for those that ask for the list of what may be fetched (notes). Such a daemon is
started for an address only while somebody there holds that list, for which it has proved that it knows the secret.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from orchestrator.node import files, processes
from orchestrator.node.failure import Failure
from orchestrator.node.network.http_connection import Exchange
from orchestrator.node.network.wire import nonce, proof, proves
from orchestrator.protocol.message import parsed

USER = "l40s"
FILES = "files"
SAYS_S = 0.3
"""A connection that has said nothing until then is rsync's: it may wait for the daemon's first word."""
IDLE_S = 60
"""A connection on which nothing moves for this long is ended."""
FULL_S = 0.05
FEW = 4
"""Connections of one address that have proved nothing; a fetching side has one at a time."""
MOST_GREETED = 64
MOST_DAEMONS = 64
"""One fetching side has as many as `--streams`, 16 at most."""
HELLO = b"l40s "
"""What a connection for this begins with; rsync's begin with @RSYNCD."""
LINE_S = 20.0
"""For the giver's whole handshake; a side that says nothing for this long afterwards is gone."""
ALIVE_S = 5.0
LONGEST = 64 * 1024


def rsync(*words: str) -> list[str]:
    """argv of an rsync that ends with us; setpriv is part of util-linux."""
    program = shutil.which("rsync")
    if program is None:
        fix = "install it with `l40s-deploy prepare --tags system_packages`"
        raise Failure("no-rsync", "rsync is not installed", "PATH", fix)
    ender = shutil.which("setpriv")
    return [*((ender, "--pdeathsig", "KILL", "--") if ender else ()), program, *words]


def own_folder(state: str, role: str) -> Path:
    """A folder for the secrets of this process. Those of processes that were killed are taken away."""
    host, parent = socket.gethostname(), Path(state, "push")
    for found in parent.glob(f"*-{host}-*-*"):
        pid, start = found.name.rsplit("-", 2)[1:]
        if pid.isdigit() and start.isdigit() and not processes.alive(int(pid), int(start)):
            shutil.rmtree(found, ignore_errors=True)
    return parent / f"{role}-{host}-{os.getpid()}-{processes.start_of(os.getpid())}"


class Giver:
    """Offers one directory to clients with the secret. folder: our own, for the secret and the list; it is removed."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.secret = secrets.token_hex(16)
        self._folder = folder
        self._root = root
        self._ready = Ready()
        self._lock = threading.Lock()
        self._strangers: Counter[str] = Counter()
        self._proved: Counter[str] = Counter()
        self._children: list[subprocess.Popen[bytes]] = []
        self._command = rsync("--daemon", f"--config={folder}/rsyncd.conf", f"--log-file={folder}/rsyncd.log")

    def listen(self, address: str, port: int) -> int:
        """Begin; port 0 takes a free one. Returns the port. Raises Failure where it can't be opened."""
        with files.state_failures(str(self._folder)):
            self._folder.mkdir(mode=0o700, parents=True)
            self._folder.chmod(0o700)
            files.write(f"{self._folder}/secret", f"{USER}:{self.secret}\n")
            self.move(self._root)
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(64)
        except OSError as wrong:
            what = f"can't listen on {address} port {port}: {wrong.strerror}"
            fix = "choose a port that is free on every node with --port"
            raise Failure("port", what, f"port {port}", fix) from None
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return int(listener.getsockname()[1])

    def offer(self, path: str, digest: str) -> None:
        """One more file that may be fetched, with its SHA-256 at the source."""
        self._ready.add(path, digest)

    def move(self, root: Path) -> None:
        """The directory has another name now; connections that are open go on."""
        self._root = root
        files.write(f"{self._folder}/rsyncd.conf", self._config())

    def close(self) -> None:
        """End every connection and remove what we made."""
        with self._lock:
            for child in self._children:
                child.kill()
                child.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self, listener: socket.socket) -> None:
        """All children come from this thread: they end with the thread that made them (prctl(2), PR_SET_PDEATHSIG)."""
        waiting: dict[socket.socket, tuple[float, str]] = {}
        while True:
            readable, _, _ = select.select([listener, *waiting], [], [], SAYS_S if waiting else None)
            if listener in readable:
                try:
                    connection, (host, *_) = listener.accept()
                except OSError:  # gone again, or no descriptor is free
                    time.sleep(FULL_S)
                    continue
                if self._greet(host):
                    waiting[connection] = (time.monotonic() + SAYS_S, host)
                else:
                    connection.close()
            now = time.monotonic()
            for connection in [one for one, (end, _) in waiting.items() if one in readable or end < now]:
                _, host = waiting.pop(connection)
                with contextlib.suppress(OSError):
                    self._serve(connection, host)

    def _greet(self, host: str) -> bool:
        """Whether one more that has proved nothing may say what it wants."""
        with self._lock:
            if host not in self._proved and self._strangers[host] >= FEW:
                return False
            if self._strangers.total() >= MOST_GREETED:
                return False
            self._strangers[host] += 1
            return True

    def _greeted(self, host: str) -> None:
        with self._lock:
            self._strangers -= Counter([host])

    @contextlib.contextmanager
    def _trusting(self, host: str) -> Iterator[None]:
        """While a client that knows the secret is connected."""
        self._greeted(host)
        with self._lock:
            self._proved[host] += 1
        try:
            yield
        finally:
            with self._lock:
                self._proved -= Counter([host])
                self._strangers[host] += 1  # until its thread has ended

    def _tell(self, connection: socket.socket, host: str) -> None:
        try:
            tell_ready(connection, self.secret, self._ready, self._trusting(host))
        finally:
            self._greeted(host)

    def _serve(self, connection: socket.socket, host: str) -> None:
        connection.setblocking(False)
        try:
            first = connection.recv(len(HELLO), socket.MSG_PEEK)
        except BlockingIOError:
            first = b""
        connection.setblocking(True)
        if first == HELLO:
            threading.Thread(target=self._tell, args=(connection, host), daemon=True).start()
            return
        self._greeted(host)
        with connection, self._lock:
            self._children = [child for child in self._children if child.poll() is None]
            if host not in self._proved or len(self._children) >= MOST_DAEMONS:
                return
            ends, null = connection.fileno(), subprocess.DEVNULL
            self._children.append(subprocess.Popen(self._command, stdin=ends, stdout=ends, stderr=null))

    def _config(self) -> str:
        """uid and gid only root may and must name: as root the daemon would become `nobody`."""
        owner = f"uid = {os.geteuid()}\ngid = {os.getegid()}\n" if os.geteuid() == 0 else ""
        return (
            f"{owner}use chroot = no\nmunge symlinks = no\nread only = yes\nlist = no\ntimeout = {IDLE_S}\n"
            f"auth users = {USER}\nsecrets file = {self._folder}/secret\n"
            f"[{FILES}]\npath = {self._root}\n"
        )


class ConnectionLost(Exception):
    """A connection could not be made, or ended early; the next try may do better. The text says how."""


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
    with connection, contextlib.suppress(OSError, ValueError, KeyError, ConnectionLost):
        connection.settimeout(LINE_S)
        lines = Exchange(LINE_S).makefile(connection)
        theirs = str(_line(lines.readline(LONGEST).removeprefix(HELLO))["nonce"])
        ours = nonce()
        _say(connection, {"nonce": ours, "proof": proof(key, "giver", "push", "", theirs, ours)})
        if not proves(key, _line(lines.readline(LONGEST)).get("proof"), "fetcher", "push", "", theirs, ours):
            return
        connection.settimeout(LINE_S)
        with trusting:
            count = 0
            while True:
                new = ready.after(count, ALIVE_S)
                count += len(new)
                text = "".join(json.dumps({"path": path, "sha256": digest}) + "\n" for path, digest in new)
                connection.sendall((text or "{}\n").encode())


def hear_ready(address: str, port: int, secret: str, heard: Callable[[str, str], None]) -> None:
    """The fetcher's end: `heard` receives every file, until the connection ends. Raises ConnectionLost then."""
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
                raise ConnectionLost("another program listens on that port")
            _say(connection, {"proof": proof(key, "fetcher", "push", "", ours, theirs)})
            while True:
                said = _line(lines.readline(LONGEST))
                if "path" in said:
                    heard(str(said["path"]), str(said["sha256"]))
    except (OSError, ValueError) as wrong:
        raise ConnectionLost(str(wrong)) from None


def _say(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _line(text: bytes) -> dict[str, Any]:
    if not text:
        raise ConnectionLost("it closed the connection")
    said = parsed(text)
    if not isinstance(said, dict):
        raise ConnectionLost("another program listens on that port")
    return said
