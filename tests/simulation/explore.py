"""Many scenarios: every small one, and sampled larger ones."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.simulation.gang import AT_ONCE, FAULTS, PAIRS, Fault, Violated, play
from tests.simulation.world import World

MOMENTS = (0.05, 0.11, 0.5, 1.5, 2.3, 3.5)
"""Seconds after the gang was armed: before and at *go*, while the engines load, as they become ready, and later."""
LASTS = (0.5, 4.0, 9.0)
"""Shorter than any timeout; longer than those of a broken connection; longer than the lease."""


class Played(Protocol):
    """What was played, with its world."""

    world: World


@dataclass
class Explored:
    """What was played. violations: message and scenario of each."""

    scenarios: int = 0
    steps: int = 0
    cpu_s: float = 0.0
    violations: list[str] = field(default_factory=list)

    def play(self, faults: Sequence[Fault], size: int, seed: object) -> None:
        """One scenario of faults."""
        self.count(f"play({tuple(faults)!r}, size={size}, seed={seed!r})", lambda: play(faults, size=size, seed=seed))

    def count(self, what: object, play_it: Callable[[], Played]) -> None:
        """One scenario of any kind."""
        began = time.process_time()
        try:
            self.steps += play_it().world.steps
        except Violated as violated:
            self.violations.append(f"{what}: {violated}")
        self.scenarios += 1
        self.cpu_s += time.process_time() - began


def places(kind: str, size: int) -> Iterator[tuple[int, ...]]:
    """The places where a fault of this kind can strike."""
    return itertools.permutations(range(size), 2 if kind in PAIRS else 1)


def single(size: int, moments: Sequence[float] = MOMENTS) -> Iterator[Fault]:
    """Every fault of every kind, place, moment and length."""
    for kind in FAULTS:
        for where, at, lasts in itertools.product(places(kind, size), moments, (0.0,) if kind in AT_ONCE else LASTS):
            yield Fault(kind, where, at, lasts)


def pairs(size: int, moments: Sequence[float]) -> Iterator[tuple[Fault, Fault]]:
    """Every pair of faults."""
    return itertools.combinations(single(size, moments), 2)


def sample(rng: random.Random, size: int, most: int = 3) -> tuple[Fault, ...]:
    """One to three faults of any kind at any moment."""

    def fault() -> Fault:
        kind = rng.choice(list(FAULTS))
        lasts = 0.0 if kind in AT_ONCE else rng.choice(LASTS)
        at = round(rng.choice(MOMENTS) + 0.3 * rng.random(), 3)
        return Fault(kind, rng.choice(list(places(kind, size))), at, lasts)

    return tuple(fault() for _ in range(rng.randint(1, most)))


def sampled(seed: object, steps: int) -> Explored:
    """Play so many steps of sampled scenarios."""
    rng, explored = random.Random(repr(seed)), Explored()
    while explored.steps < steps and len(explored.violations) < 3:
        size = rng.choice((2, 2, 3))
        explored.play(sample(rng, size), size, seed)
    return explored
