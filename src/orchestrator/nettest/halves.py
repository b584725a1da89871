"""Bisection: which node is slow if only the collective is, and no pair of nodes shows it. Pure.

In each step the two halves of the nodes reduce at the same time, split by one bit of the nodes' numbers. A single
slow node is in the slow half every time, so that log2(nodes) steps spell its number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from orchestrator.model.benchmark import Between
from orchestrator.nettest.messages import NettestLine, NettestStep
from orchestrator.nettest.schedule import Place
from orchestrator.nettest.verdict import HALF, Odd


def bisected(steps: Sequence[NettestStep], figures: Sequence[NettestLine], places: Sequence[Place]) -> Odd | None:
    """The node whose halves all take at least twice as long as the others, in every try; None where there is none."""
    by_id = {step.id: step for step in steps if step.between == Between.HALVES.value}
    paces: dict[tuple[tuple[int, ...], ...], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in figures:
        if one.step in by_id and one.bytes > 0 and one.us > 0:
            paces[by_id[one.step].groups][one.group].append(one.us / one.bytes)
    halves = {step.groups for step in by_id.values()}
    if not halves or halves != paces.keys():
        return None
    slower = [_slower(tries) for tries in paces.values()]
    candidates = set.intersection(
        *(
            set(_nodes(groups[half], places)) if half >= 0 else set[str]()
            for groups, (half, _) in zip(paces, slower, strict=True)
        )
    )
    if len(candidates) != 1:
        return None
    least = min(times for _, times in slower)
    why = (
        f"each half of the nodes that it is in takes at least {least:.1f} times as long for an all-reduce as the other"
    )
    return Odd(node=candidates.pop(), why=why)


def _slower(tries: dict[int, list[float]]) -> tuple[int, float]:
    """The half whose best try is far slower than the other's worst, and by how much; (-1, 0) for neither."""
    for half, other in ((0, 1), (1, 0)):
        if tries.get(half) and tries.get(other) and min(tries[half]) * HALF >= max(tries[other]):
            return half, min(tries[half]) / max(tries[other])
    return -1, 0.0


def _nodes(ranks: Sequence[int], places: Sequence[Place]) -> Iterator[str]:
    return (place.node for place in places if set(place.ranks) <= set(ranks))
