"""Hostile clients, which send any bytes, hostile servers, logins that print, and YAML that nobody writes."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROBE_FROM = "127.0.0.2"
"""An address for each client: the agent keeps only a few connections per address."""
PROBE_EVERY_S = 0.02
ANSWER_S = 30.0


def odd(rng: random.Random) -> bytes:
    """What hostile clients send."""
    kinds = (
        lambda: rng.randbytes(rng.randrange(1, 4096)),
        lambda: b"\n" * rng.randrange(1, 1 << 16),
        lambda: b"[" * rng.randrange(1, 1 << 16) + b"\n",
        lambda: b'{"type": "hello", "node": "node1", "nonce": "x", "proof": "%s"}\n' % rng.randbytes(32).hex().encode(),
        lambda: b'{"type": ' + b"9" * rng.randrange(1, 5000) + b"}\n",
        lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200),
        lambda: b"SSH-2.0-x\r\n" + rng.randbytes(100),
        lambda: b"x" * rng.randrange(1, 1 << 18),
        lambda: b"",
    )  # fmt: skip
    return rng.choice(kinds)()


@dataclass
class Strangers:
    """A process whose many threads keep connecting and sending odd bytes while the body runs."""

    address: str
    port: int
    count: int = 64
    seed: int = 0
    connections: int = 0

    def __enter__(self) -> Strangers:
        words = (self.address, self.port, self.count, self.seed)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.hostile", *map(str, words)],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
        )
        self._counting = threading.Thread(target=self._count, daemon=True)
        self._counting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(30)
        self._counting.join(30)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _count(self) -> None:
        for line in self._process.stdout or ():
            self.connections = int(line)


@dataclass
class Dripping:
    """So many HTTP clients that send a byte of their headers now and then, and come again. A context manager."""

    address: str
    port: int
    count: int
    connections: int = 0

    def __enter__(self) -> Dripping:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _live(self) -> None:
        lines = [socket.socket() for _ in range(self.count)]
        while not self._over.wait(0.3):
            lines = [self._dripped(line) for line in lines]
        for line in lines:
            line.close()

    def _dripped(self, line: socket.socket) -> socket.socket:
        with contextlib.suppress(OSError):
            line.send(b"G", socket.MSG_NOSIGNAL)
            return line
        line.close()
        with contextlib.suppress(OSError):
            line = socket.create_connection((self.address, self.port), timeout=5)
            self.connections += 1
        return line


def _live(address: str, port: int, rng: random.Random, made: list[int]) -> None:
    while True:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=5) as line:
            made[0] += 1
            line.settimeout(1.0)
            line.sendall(odd(rng))
            if rng.random() < 0.3:
                line.recv(4096)
        time.sleep(0.001)


def main(address: str, port: str, count: str, seed: str) -> None:
    """The hostile clients' process: prints how many connections it has made."""
    made = [0]
    for number in range(int(count)):
        rng = random.Random(int(seed) * 1000 + number)
        threading.Thread(target=_live, args=(address, int(port), rng, made), daemon=True).start()
    while True:
        time.sleep(0.2)
        print(made[0], flush=True)


@contextlib.contextmanager
def talker(says: bytes, drips: bytes = b"") -> Iterator[int]:
    """A peer on loopback that says something at once and then a piece at a time, without an end; its port."""
    over = threading.Event()

    class Talk(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.sendall(says)
                while not over.wait(0.05) and drips:
                    self.request.sendall(drips)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Talk) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            over.set()
            server.shutdown()


OK = b"HTTP/1.1 200 OK\r\n"
HOSTILE = {
    "deep": (OK + b"Content-Length: 61440\r\n\r\n" + b"[" * 61440, b""),
    "dripping status": (b"", b"H"),
    "dripping headers": (OK, b"A: b\r\n"),
    "dripping body": (OK + b"Content-Length: 60000\r\n\r\n", b"["),
    "going on": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "too much": (b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000, b""),
    "noise": (bytes(range(256)) * 300, b""),
}


@dataclass
class Probe:
    """Keeps asking the agent's port for its challenge. worst_s: the longest answer time."""

    address: str
    port: int
    worst_s: float = 0.0
    answers: int = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[Probe]:
        """Ask while the body runs."""
        over = threading.Event()
        thread = threading.Thread(target=self._live, args=(over,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join(ANSWER_S)

    def _live(self, over: threading.Event) -> None:
        while not over.wait(PROBE_EVERY_S):
            begin = time.monotonic()
            if self._ask():
                self.worst_s = max(self.worst_s, time.monotonic() - begin)
                self.answers += 1

    def _ask(self) -> bool:
        with contextlib.suppress(OSError), socket.socket() as line:
            line.settimeout(ANSWER_S)
            line.bind((PROBE_FROM, 0))
            line.connect((self.address, self.port))
            return b"challenge" in line.recv(4096)
        return False


NOISES = {
    "words": "printf welcome",
    "title": r"printf '\033]0;%s\007' node7",
    "lines": "echo 'Last login: Tue'; echo; echo '*** maintenance on Friday ***'",
    "answer": """echo '{"ok":true,"value":7}'""",
    "half an answer": """printf '{"ok":true,"value":'""",
    "bytes": r"printf '\377\376\000\033[2J'",
    "carriage returns": r"printf 'hi\r\n\r'",
    "picture": "head -c 200000 /dev/zero | tr '\\0' '#'",
    "not a terminal": "stty -g; tput cols",
    "manager": "echo 'Now using node v18.19.0 (npm v10.2.3)'; printf '\\342\\234\\224 '",
    "almost a begin": r"printf '\036l40s-deploy \036l40s'",
    "a begin": r"printf '\036l40s-deploy\036'; echo; printf '\036l40s-deploy\036{\"ok\":true}'",
    "something that stays": "sleep 30 &",
    "the command": """echo "$SSH_ORIGINAL_COMMAND"; printf %b "$SSH_ORIGINAL_COMMAND" """,
    "errors": "echo 'mesg: ttyname failed: Inappropriate ioctl for device' >&2",
    "errors of sudo": "echo 'sudo: unable to resolve host node7' >&2",
}
"""What start-up files print, as sh writes it."""


def resident_bytes(pid: int) -> int:
    """The process's resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(*sys.argv[1:])


ODD_YAML = (
    "a: " + "[" * 3000, "{" * 90 + "}" * 90, "a: !!int x", "a: !!bool x", "a: 2001-99-99", "!!timestamp x: 1",
    "? [a]\n: b",
    "a: !vault x", "!!set {a, b}", "&a [*a]", "steps: &a [*a]\nsummary: x",
    "a: !!python/object:os.system x", "a: \x9b",
    "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 10}]\n" for n in range(1, 12)),
    "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 5000)),
    "base: &a {b: *a}", "nodes: &a [*a]", "gpus: !!binary x",
)  # fmt: skip
