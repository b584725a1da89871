"""What the figures of a network test mean: a verdict for each link and test, and the outlier."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from orchestrator.model.benchmark import Between
from orchestrator.nettest.messages import ALL_REDUCE, NettestLine, NettestStep
from orchestrator.nettest.schedule import Place

ENOUGH = 0.8
"""Of what is expected."""
HALF = 0.5
"""Of the median of its kind, where nothing is expected."""
TENTH = 0.1
"""Of the best of its kind: where most are slow, the median is slow too."""


class NettestVerdict(str, Enum):
    """Of a link, of a test, of all."""

    OK = "ok"
    SLOW = "slow"
    FAILED = "failed"
    """Data came out wrong, so nothing was timed."""
    NONE = "not judged"
    """Nothing is expected, and there is nothing of its kind to compare with."""

    @classmethod
    def of(cls, *, judged: bool, slow: bool) -> NettestVerdict:
        """SLOW or OK, if there was anything to judge by."""
        if not judged:
            return cls.NONE
        return cls.SLOW if slow else cls.OK


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a figure should be, and who says so. value: us of an all-reduce, Gb/s of a link; basis: calculated or
    measured; source: as text; enough: sufficient share of it, 0 for the operator's setting"""

    value: float
    basis: str
    source: str
    enough: float = 0.0


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """One end of a link. gpu: NVML's index; None on a CPU; port: of an RDMA device (mlx5_0:1), which has no rank"""

    node: str
    rank: int
    gpu: int | None = None
    port: str = ""

    def __str__(self) -> str:
        if self.port:
            return f"{self.node} {self.port}"
        return self.node if self.gpu is None else f"{self.node} GPU {self.gpu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkResult:
    """One direction between two ranks or ports, in all its tries.

    gbps: of each try, in Gb/s; limit: below it is slow; why: text, if there is no figure
    on_gpu: one end's memory was a GPU's, in a test of RDMA ports
    """

    start: LinkEnd
    end: LinkEnd
    between: Between
    gbps: tuple[float, ...]
    expected: Expectation | None
    limit: float
    verdict: NettestVerdict
    why: str = ""
    on_gpu: bool = False

    @property
    def best(self) -> float:
        """Of its tries, in Gb/s."""
        return max(self.gbps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One size of an all-reduce over some ranks. wanted: bytes that were to be reduced; bytes: that were; uncaptured:
    why they were not in a CUDA graph, where they should have been"""

    between: Between
    where: str
    ranks: int
    wanted: int
    bytes: int
    us: float
    captured: bool
    expected: Expectation | None
    verdict: NettestVerdict
    uncaptured: str = ""

    @property
    def share(self) -> float:
        """Of the expected speed; 1 where nothing is expected."""
        return self.expected.value / self.us if self.expected and self.us else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """What is slow, and nothing else is. end: a node, GPU or port; None: a link, from `start` to `stop`"""

    end: LinkEnd | None = None
    start: str = ""
    stop: str = ""
    why: str

    @property
    def name(self) -> str:
        """'node2', 'node1 GPU 3', 'node1 mlx5_0:1', 'node1 - node2'."""
        return str(self.end) if self.end else f"{self.start} - {self.stop}"

    @property
    def node(self) -> str:
        """Where it is; of a link, where it starts."""
        return self.end.node if self.end else self.start.split()[0]

    @property
    def device(self) -> str:
        """'GPU 3', 'mlx5_0:1'; '' for a whole node, or a link."""
        if self.end is None:
            return ""
        return self.end.port or ("" if self.end.gpu is None else f"GPU {self.end.gpu}")

    def as_json(self) -> dict[str, Any]:
        """`odd` of the document."""
        if self.end is None:
            return {"from": self.start, "to": self.stop, "why": self.why}
        what = {"port": self.end.port} if self.end.port else {"gpu": self.end.gpu}
        return {"node": self.end.node, **what, "why": self.why}


Expected = Mapping[tuple[Between, int], Expectation]
"""By what is measured, and bytes of an all-reduce or the sending rank of a link."""


def ends(places: Iterable[Place]) -> dict[int, LinkEnd]:
    """Every rank's node and GPU."""
    return {
        rank: LinkEnd(place.node, rank, place.gpus[number] if place.gpus else None)
        for place in places
        for number, rank in enumerate(place.ranks)
    }


def judge_links(
    steps: Sequence[NettestStep],
    figures: Sequence[NettestLine],
    places: Sequence[Place],
    expected: Expected,
    *,
    enough: float = ENOUGH,
) -> tuple[LinkResult, ...]:
    """Every link that was measured, in the order of the schedule; its verdict is that of all its tries together.

    Where nothing is expected, a link that was as fast as another of its kind in the same seconds is not slow.
    """
    by_id, where = {step.id: step for step in steps}, ends(places)
    tries: dict[tuple[Between, int, int], list[float]] = defaultdict(list)
    first: dict[tuple[Between, int, int], float] = {}
    cleared = set()
    for one in figures:
        step = by_id[one.step]
        if step.kind != ALL_REDUCE and one.us > 0:
            start, end = step.groups[one.group]
            link = Between(step.between), start, end
            tries[link].append(one.bytes * 8e-3 / one.us)
            if not one.beside_us:
                first[link] = max(tries[link])
            elif one.us <= one.beside_us / HALF:
                cleared.add(link)
    kinds: dict[Between, list[float]] = defaultdict(list)
    for (between, _, _), best in first.items():
        kinds[between].append(best)
    found = []
    for (between, start, end), gbps in tries.items():
        wanted = expected.get((between, start))
        limit = wanted.value * (wanted.enough or enough) if wanted else usual(kinds[between])
        slow = max(gbps) < limit and (wanted is not None or (between, start, end) not in cleared)
        found.append(
            LinkResult(start=where[start], end=where[end], between=between, gbps=tuple(gbps), expected=wanted,
                       limit=limit, verdict=NettestVerdict.of(judged=bool(limit), slow=slow))
        )  # fmt: skip
    return tuple(found)


def usual(bests: Sequence[float]) -> float:
    """Below it one of its kind is slow; 0 where there are not three of them to compare, or two that differ widely."""
    if len(bests) < 3:
        return 0.0
    return max(HALF * statistics.median(bests), TENTH * max(bests))


def judge_tests(
    steps: Sequence[NettestStep],
    figures: Sequence[NettestLine],
    places: Sequence[Place],
    expected: Expected,
    *,
    enough: float = ENOUGH,
) -> tuple[Test, ...]:
    """Every all-reduce, a size at a time, in the order of the schedule; of its tries the best one counts."""
    where = ends(places)
    tries: dict[tuple[Between, tuple[int, ...], int], list[NettestLine]] = defaultdict(list)
    for step in steps:
        if step.kind != ALL_REDUCE:
            continue
        if step.between == Between.HALVES.value:
            continue  # compared with each other: nettest.halves
        between, seen = Between(step.between), dict[int, int]()
        for one in (figure for figure in figures if figure.step == step.id):
            number = seen[one.group] = seen.get(one.group, -1) + 1
            tries[between, tuple(step.groups[one.group]), step.bytes[number]].append(one)
    found = []
    for (between, ranks, wanted), figures_of_one in tries.items():
        one = min(figures_of_one, key=lambda figure: (-figure.bytes, figure.us))
        expectation = expected.get((between, wanted))
        share = enough if expectation is None else expectation.enough or enough
        slow = expectation is not None and (one.bytes < wanted or one.us > expectation.value / share)
        verdict = NettestVerdict.of(judged=expectation is not None, slow=slow)
        found.append(
            Test(between=between, where=_where(between, ranks, where), ranks=len(ranks), wanted=wanted,
                 bytes=one.bytes, us=one.us, captured=one.captured, expected=expectation, verdict=verdict,
                 uncaptured=one.uncaptured)
        )  # fmt: skip
    return tuple(found)


def _where(between: Between, ranks: Sequence[int], where: Mapping[int, LinkEnd]) -> str:
    if between is Between.ALL:
        return "all"
    first = where[ranks[0]]
    if between is Between.NODE or first.gpu is None:
        return first.node
    return f"{first.node} GPUs {', '.join(str(where[rank].gpu) for rank in ranks)}"


def odd(found: Sequence[LinkResult]) -> Odd | None:
    """The one thing that all slow links have in common, the smallest such thing; None where there is none.

    A GPU or a node is named where it is slow towards more than one other; two nodes where their other links are not.
    """
    slow = [link for link in found if link.verdict is NettestVerdict.SLOW]
    rails = [link for link in slow if link.start.port]
    if rails and len(rails) < len(slow):
        one = _common(rails)
        nodes = {one.end.node} if one and one.end else {node for link in rails for node in _nodes(link)}
        if one is not None and all(nodes & set(_nodes(link)) for link in slow):
            return one  # a slow port makes the GPUs' ways over it slow
    return _common(slow) if slow else None


def _common(slow: Sequence[LinkResult]) -> Odd | None:
    worst = min(slow, key=lambda link: link.best / link.limit)
    why = f"{worst.start} to {worst.end}: {worst.why or f'{worst.best:.3g} Gb/s'}, {_than(worst)}"
    common = set.intersection(*({link.start, link.end} for link in slow))
    if len(common) == 1 and len(peers(slow, common)) > 1:
        return Odd(end=next(iter(common)), why=why)
    if len(common) == 2:
        return Odd(start=str(worst.start), stop=str(worst.end), why=why)
    pairs = {_nodes(link) for link in slow}
    if len(pairs) == 1:
        ((start, *more),) = pairs
        return Odd(start=start, stop=more[0], why=why) if more else Odd(end=LinkEnd(start, -1), why=why)
    nodes = set.intersection(*(set(pair) for pair in pairs))
    return Odd(end=LinkEnd(next(iter(nodes)), -1), why=why) if len(nodes) == 1 else None


def _nodes(link: LinkResult) -> tuple[str, ...]:
    return tuple(sorted({link.start.node, link.end.node}))


def peers(links: Iterable[LinkResult], common: set[LinkEnd]) -> set[LinkEnd]:
    """The other ends of links that have an end in `common`."""
    return {end for link in links for end in (link.start, link.end)} - common


def _than(link: LinkResult) -> str:
    if link.expected is not None:
        return f"and {link.expected.value:.3g} are expected ({link.expected.basis}: {link.expected.source})"
    return f"the others of its kind at least {link.limit:.3g}"


def overall(found: Iterable[LinkResult | Test]) -> NettestVerdict:
    """Slow where anything is."""
    verdicts = {one.verdict for one in found}
    return next((one for one in (NettestVerdict.SLOW, NettestVerdict.OK) if one in verdicts), NettestVerdict.NONE)


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
            set(_whole_nodes(groups[half], places)) if half >= 0 else set[str]()
            for groups, (half, _) in zip(paces, slower, strict=True)
        )
    )
    if len(candidates) != 1:
        return None
    least = min(times for _, times in slower)
    why = (
        f"each half of the nodes that it is in takes at least {least:.1f} times as long for an all-reduce as the other"
    )
    return Odd(end=LinkEnd(candidates.pop(), -1), why=why)


def _slower(tries: dict[int, list[float]]) -> tuple[int, float]:
    """The half whose best try is far slower than the other's worst, and by how much; (-1, 0) for neither."""
    for half, other in ((0, 1), (1, 0)):
        if tries.get(half) and tries.get(other) and min(tries[half]) * HALF >= max(tries[other]):
            return half, min(tries[half]) / max(tries[other])
    return -1, 0.0


def _whole_nodes(ranks: Sequence[int], places: Sequence[Place]) -> Iterator[str]:
    return (place.node for place in places if set(place.ranks) <= set(ranks))
