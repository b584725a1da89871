"""What most nodes have, so that the others stand out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

V = TypeVar("V")

FEWEST_FOR_A_MAJORITY = 3


def majority(values: Mapping[str, V]) -> tuple[V, dict[str, V]] | None:
    """The value that more than half of at least three nodes have, with the exceptions; None where there are none."""
    if len(values) < FEWEST_FOR_A_MAJORITY:
        return None
    (common, count), *_ = Counter(values.values()).most_common(1)
    odd = {name: value for name, value in values.items() if value != common}
    return (common, odd) if odd and count * 2 > len(values) else None
