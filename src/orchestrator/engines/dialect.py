"""A dialect: one family of engine versions, and what changed between them. One file each; `registry` finds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.engines.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One family of an engine's versions.

    product:  what people call the engine
    versions: those whose wheels were read (scripts/engine_facts.py), oldest first
    stack:    the shipped stack that serves this family unless another is named
    of:       facts of one of `versions`
    """

    name: str
    product: str = "SGLang"
    versions: tuple[str, ...]
    stack: str
    of: Callable[[str], Engine]

    def lists(self, version: str) -> bool:
        """Whether this version's wheel was read; the builder's own part (+cu130) counts for nothing."""
        return public(version) in self.versions

    def nearest(self, version: str) -> str:
        """The listed version whose facts are taken for this one: itself where it is listed."""
        return nearest(version, self.versions)

    def engine(self, version: str) -> Engine:
        """What this version knows; for one that is not listed, what the nearest one does."""
        return self.of(self.nearest(version))


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Since(Generic[T]):
    """One fact by version range: (first version, value) in order; each holds until the next one's first version."""

    steps: tuple[tuple[str, T], ...]

    def at(self, version: str) -> T:
        """The value for this version; for one before the first range, the first range's."""
        value = self.steps[0][1]
        for first, later in self.steps:
            if order(first) <= order(version):
                value = later
        return value


def since(*steps: tuple[str, T]) -> Since[T]:
    """`since(("0.5.10", "/health"), ("0.5.23", "/ready"))`."""
    return Since(steps)


def order(version: str) -> tuple[int, ...]:
    """0.4.4.post1 as (0, 4, 4, 1): release, then post-release; what follows a `+` or `-` counts for nothing."""
    plain = re.split(r"[+-]", version, maxsplit=1)[0]
    numbers = [int(number) for number in re.findall(r"\d+", plain)]
    return tuple((numbers + [0] * 4)[:4])


def public(version: str) -> str:
    """Without the builder's own part: 0.5.23 for 0.5.23+cu130."""
    return version.partition("+")[0]


def nearest(version: str, listed: Sequence[str]) -> str:
    """The listed version that is the fewest releases away, the older one of two."""
    wanted = _position(version)
    return min(sorted(listed, key=order), key=lambda candidate: abs(_position(candidate) - wanted))


def _position(version: str) -> int:
    return sum(number * 1000**place for place, number in enumerate(reversed(order(version))))
