"""Versions of an engine in order, and facts that changed between them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

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
