"""Hostile clients of a gang's port, which send any bytes, and how long the agent then takes to answer."""

from __future__ import annotations

import contextlib
import os
import random
import socket
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


def resident_bytes(pid: int) -> int:
    """The process's resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(*sys.argv[1:])
