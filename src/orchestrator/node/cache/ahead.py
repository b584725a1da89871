"""Reading ahead, the agent's side and verb `weights-ahead`: one child process, its progress, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.node import itself
from orchestrator.node.requests import request_of
from orchestrator.node.telling import TICK_S, reader_is_gone, tell
from orchestrator.protocol.page_cache import WeightsAheadLine, WeightsAheadRequest
from orchestrator.protocol.report import AgentState, PageCache
from orchestrator.protocol.staging import CacheOrder


@dataclass
class ReadAhead:
    """Starts the reader, reads its messages without waiting, stops it at any time."""

    order: CacheOrder | None
    ranks: int
    application: str = field(default_factory=itself.application)
    cache: PageCache | None = None
    """What is known of it; None before the start."""
    _child: subprocess.Popen[bytes] | None = None
    _dropped: subprocess.Popen[bytes] | None = None
    """A child that SIGKILL has not ended yet: a disk holds it (D, proc(5))."""
    _rest: bytes = b""

    @property
    def begins(self) -> AgentState:
        """When to start."""
        return AgentState.STARTING if self.order is not None and self.order.from_go else AgentState.ARMED

    @property
    def helpers(self) -> set[int]:
        """Process ids of the children that may still be there: none is one of the engine's."""
        return {child.pid for child in (self._child, self._dropped) if child is not None and child.poll() is None}

    def start(self) -> None:
        """Begin, where something was ordered. A node that can't is none the worse for it."""
        if self.order is None or self._child is not None:
            return
        order = json.dumps(self.order.as_json())
        with contextlib.suppress(OSError):
            self._child = subprocess.Popen(
                itself.command(self.application, "read-ahead", str(self.ranks), order),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert self._child.stdout is not None
            os.set_blocking(self._child.stdout.fileno(), False)
            self.cache = PageCache(state="reading")

    def fileno(self) -> int:
        """Readable when it has sent something; -1 if there is no reader."""
        return self._child.stdout.fileno() if self._child is not None and self._child.stdout is not None else -1

    def take(self) -> None:
        """Read the child's messages, without waiting."""
        if self._child is None or self._child.stdout is None or self.cache is None:
            return
        try:
            data = os.read(self._child.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._understand(json.loads(line))
        if not data or self.cache.state != "reading":
            self.stop("the reading process exited")

    def stop(self, why: str) -> None:
        """No further, whatever it has read; why: for the report, if it was not done."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        self._dropped = child
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.05)
        if child.stdout is not None:
            child.stdout.close()
        if self.cache is not None and self.cache.state == "reading":
            self.cache = replace(self.cache, state="stopped", why=why)

    def _understand(self, said: dict[str, object]) -> None:
        assert self.cache is not None
        if "ended" in said:
            why = str(said["ended"])
            self.cache = replace(self.cache, state="stopped" if why else "done", why=why)
            return
        was = self.cache
        done, of, disk, skipped = (
            int(str(said.get(name, getattr(was, name)))) for name in ("done", "of", "disk", "skipped")
        )
        self.cache = replace(was, done=done, of=of, disk=disk, skipped=skipped)


def stream(request: dict[str, Any]) -> None:
    """Read, for as long as somebody wants it."""
    asked = request_of(WeightsAheadRequest, request)
    ahead = ReadAhead(asked.order, asked.ranks)
    ahead.start()
    try:
        while ahead.cache is not None:
            tell(WeightsAheadLine(cache=ahead.cache).as_json())
            if ahead.cache.state != "reading" or reader_is_gone(TICK_S):
                return
            ahead.take()
    finally:
        ahead.stop("nobody waits for it any more")
