"""Our side of the watchmen: one process on each node's console, which works without the node's network."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import SmallLab

SCRIPT = (Path(__file__).resolve().parent / "watchman.py").read_text()
ANSWER_S = 30.0


class NodeGone(Exception):
    """The node's watchman does not answer: the node is off, frozen, or removed."""


@dataclass
class Watchman:
    """One node's watchman; started at the first order, and again after the node was switched off."""

    lab: SmallLab
    node: str
    _process: subprocess.Popen[bytes] | None = None
    _rest: bytes = b""

    def ask(self, *, within_s: float = ANSWER_S, **order: Any) -> dict[str, Any]:
        """Send one order, return its answer."""
        self.tell(**order)
        return self.answer(within_s)

    def tell(self, **order: Any) -> None:
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            raise NodeGone(self.node) from None

    def answer(self, within_s: float = ANSWER_S) -> dict[str, Any]:
        """The next line."""
        process = self._running()
        assert process.stdout is not None
        while b"\n" not in self._rest:
            if not select.select([process.stdout], [], [], within_s)[0]:
                raise NodeGone(f"{self.node}: no answer within {within_s:.0f} s")
            more = process.stdout.read1(65536)  # type: ignore[attr-defined]
            if not more:
                raise NodeGone(self.node)
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it; it may be stopped or dead already."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # nsenter stops together with its child
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            self._process.wait(10)
        self._process, self._rest = None, b""

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            self._process = subprocess.Popen(
                [*(*L40S_DEPLOY, "lab", "exec", self.node, "--name", self.lab.name), *("--", "python3", "-Sc", SCRIPT)],
                env=self.lab.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._process


@dataclass
class Watch:
    """The watchmen of all nodes."""

    lab: SmallLab
    men: dict[str, Watchman] = field(default_factory=dict)
    usual: dict[str, list[str]] = field(default_factory=dict)
    """Listeners on each node without a gang."""

    def __getitem__(self, node: str) -> Watchman:
        return self.men.setdefault(node, Watchman(self.lab, node))

    def baseline(self) -> None:
        """Record the current listeners as the nodes' own."""
        for node in self.lab.hosts():
            self.usual[node] = self[node].ask(do="listeners")["listeners"]

    def left(self, off: frozenset[str] = frozenset()) -> list[str]:
        """Leftovers on any node that runs."""
        found = []
        for node in self.lab.hosts():
            if node not in off:
                found += [f"{node}: {what}" for what in self[node].ask(do="left", usual=self.usual[node])["left"]]
        return found

    def close(self) -> None:
        for man in self.men.values():
            man.close()
