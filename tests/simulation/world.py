"""A clock that only the simulation moves, and the events that are due by it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

BEGIN_S = 1000.0
"""Monotonic seconds at which every world begins."""


@dataclass
class World:
    """Runs due events, one at a time, in order of time; equal seeds give equal worlds."""

    seed: object = 0
    now: float = BEGIN_S
    steps: int = 0
    """Rounds of an agent's or a guardian's loop, messages that arrived, steps of controllers."""
    rng: random.Random = field(init=False)
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.rng = random.Random(repr(self.seed))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Schedule an event at so many seconds from now."""
        heapq.heappush(self._due, (self.now + seconds, next(self._order), do))

    def run(self, until: float, checked: Callable[[], None], done: Callable[[], bool] = lambda: False) -> None:
        """Proceed to a moment, or until `done`; `checked` is called after every step."""
        while self._due and self._due[0][0] <= until and not done():
            moment, _, do = heapq.heappop(self._due)
            self.now = max(self.now, moment)
            self.steps += 1
            do()
            checked()
        if not done():
            self.now = max(self.now, until)
