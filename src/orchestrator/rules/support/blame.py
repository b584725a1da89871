"""Which nodes explain a set of failed paths: the fewest that explain all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

Way = tuple[str, str]
"""(source, target)."""


def blamed(failed: Collection[Way]) -> Iterator[tuple[str, list[Way]]]:
    """Nodes with the paths that each explains, the one with most first; in a tie, the target."""
    left = sorted(set(failed))
    while left:
        counts = Counter(node for way in left for node in way)
        targets = Counter(target for _, target in left)
        worst = min(counts, key=lambda node: (-counts[node], -targets[node], node))
        yield worst, [way for way in left if worst in way]
        left = [way for way in left if worst not in way]
