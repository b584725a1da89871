"""How long a command waits for one node in all, over every question of all its fleets."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from orchestrator.protocol.errors import Unreachable


class Allowance:
    """seconds: of each node, whatever came of its questions; one that has taken them is not asked any more, so that a
    command lasts so long and its longest question beside a node that is slow at each. Safe to use from threads."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._taken: defaultdict[str, float] = defaultdict(float)
        self._counting = threading.Lock()

    @contextmanager
    def counted(self, node: str) -> Iterator[None]:
        """One question. Raises Unreachable where the node has taken its time before."""
        if (taken := self._taken[node]) >= self.seconds:
            raise Unreachable(
                f"not asked again: it has taken {taken:.0f} s of this command already",
                where=node,
                fix=f"see what makes it slow (ssh {node} uptime), then run the same command again",
            )
        begun = _now()
        try:
            yield
        finally:
            with self._counting:
                self._taken[node] += _now() - begun


_now = time.monotonic
_current: ContextVar[Allowance] = ContextVar("allowance")


def allowance() -> Allowance:
    """Of what this thread does now; without an end where nothing was allotted."""
    return _current.get(_ENDLESS)


@contextmanager
def allotted(seconds: float) -> Iterator[None]:
    """Fleets that are made within share one allowance."""
    token = _current.set(Allowance(seconds))
    try:
        yield
    finally:
        _current.reset(token)


_ENDLESS = Allowance(float("inf"))
