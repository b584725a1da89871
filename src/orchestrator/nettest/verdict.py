"""What the figures of a network test should be on this hardware, and what they mean: a verdict for each link and test,
and the outlier.

Expected between GPUs are NCCL's own constants (topology.distance) and what the articles measured on 8 L40S; between
nodes the rates of the ports less headers. Nobody has measured what NCCL makes of TCP: nothing is expected of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from orchestrator.model.per_node import collected
from orchestrator.model.profile import Between
from orchestrator.model.topology import PathType, Topology
from orchestrator.nettest.messages import ALL_REDUCE, NettestLine, NettestStep
from orchestrator.nettest.schedule import Place
from orchestrator.topology.distance import Bandwidths, Distances, Version, gpu_groups

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
    measured; source: as text; enough: share of it that will do"""

    value: float
    basis: str
    source: str
    enough: float = ENOUGH


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """One end of a link. gpu: NVML's index; None on a CPU; port: of an RDMA device (mlx5_0:1), which has no rank"""

    node: str
    rank: int
    gpu: int | None = None
    port: str = ""

    @property
    def device(self) -> str:
        """'GPU 3', 'mlx5_0:1'; '' on a CPU."""
        return self.port or ("" if self.gpu is None else f"GPU {self.gpu}")

    def __str__(self) -> str:
        return f"{self.node} {self.device}".rstrip()


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


@dataclass(frozen=True, slots=True)
class Odd:
    """What is slow, and nothing else is. ends: a node, GPU or port; two of them: the link between them"""

    ends: tuple[LinkEnd, ...]
    why: str

    @property
    def name(self) -> str:
        """'node2', 'node1 GPU 3', 'node1 mlx5_0:1', 'node1 - node2'."""
        return " - ".join(map(str, self.ends))

    @property
    def device(self) -> str:
        """'GPU 3', 'mlx5_0:1'; '' for a whole node, or a link."""
        return self.ends[0].device if len(self.ends) == 1 else ""

    def as_json(self) -> dict[str, Any]:
        """`odd` of the document."""
        if len(self.ends) == 2:
            return {**dict(zip(("from", "to"), map(str, self.ends), strict=True)), "why": self.why}
        (end,) = self.ends
        return {"node": end.node, **({"port": end.port} if end.port else {"gpu": end.gpu}), "why": self.why}


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
    steps: Sequence[NettestStep], figures: Sequence[NettestLine], places: Sequence[Place], expected: Expected
) -> tuple[LinkResult, ...]:
    """Every link that was measured, in the order of the schedule; its verdict is that of all its tries together.

    Where nothing is expected, a link that was as fast as another of its kind in the same seconds is not slow.
    """
    where, tries = ends(places), _tries(steps, figures)
    kinds = collected(
        (link[0], max(plain))
        for link, lines in tries.items()
        if (plain := [_gbps(line) for line in lines if not line.beside_us])
    )
    links = []
    for (between, start, end), lines in tries.items():
        gbps, wanted = tuple(map(_gbps, lines)), expected.get((between, start))
        limit = wanted.value * wanted.enough if wanted else usual(kinds.get(between, ()))
        kept_up = wanted is None and any(line.us <= line.beside_us / HALF for line in lines)
        verdict = NettestVerdict.of(judged=bool(limit), slow=max(gbps) < limit and not kept_up)
        links.append(
            LinkResult(
                start=where[start],
                end=where[end],
                between=between,
                gbps=gbps,
                expected=wanted,
                limit=limit,
                verdict=verdict,
            )
        )
    return tuple(links)


def _tries(
    steps: Sequence[NettestStep], figures: Sequence[NettestLine]
) -> dict[tuple[Between, int, int], list[NettestLine]]:
    by_id = {step.id: step for step in steps}
    measured = [(by_id[figure.step], figure) for figure in figures]
    return collected(
        ((Between(step.between), start, end), figure)
        for step, figure in measured
        if step.kind != ALL_REDUCE and figure.us > 0
        for start, end in (step.groups[figure.group],)
    )


def _gbps(line: NettestLine) -> float:
    return line.bytes * 8e-3 / line.us


def usual(bests: Sequence[float]) -> float:
    """Below it one of its kind is slow; 0 where there are not three of them to compare, or two that differ widely."""
    return max(HALF * statistics.median(bests), TENTH * max(bests)) if len(bests) > 2 else 0.0


def _reduced(
    steps: Sequence[NettestStep], figures: Sequence[NettestLine]
) -> dict[tuple[Between, _Ranks, int], list[NettestLine]]:
    """The tries of each all-reduce but those of halves, by where it was, its ranks and its bytes: a group reports one
    figure a size, in the order of the step's sizes."""
    of_group = collected(((figure.step, figure.group), figure) for figure in figures)
    tries: dict[tuple[Between, _Ranks, int], list[NettestLine]] = {}
    for step in steps:
        if step.kind != ALL_REDUCE or step.between == Between.HALVES.value:
            continue
        for number, wanted in enumerate(step.bytes):
            for group, ranks in enumerate(step.groups):
                reported = of_group.get((step.id, group), [])
                if number < len(reported):
                    tries.setdefault((Between(step.between), ranks, wanted), []).append(reported[number])
    return tries


def judge_tests(
    steps: Sequence[NettestStep], figures: Sequence[NettestLine], places: Sequence[Place], expected: Expected
) -> tuple[Test, ...]:
    """Every all-reduce, a size at a time, in the order of the schedule; of its tries the best one counts. Those of
    halves are compared with each other: `bisected`."""
    where = ends(places)
    tests = []
    for (between, ranks, wanted), tries in _reduced(steps, figures).items():
        best = min(tries, key=lambda figure: (-figure.bytes, figure.us))
        expectation = expected.get((between, wanted))
        late = expectation is not None and best.us > expectation.value / expectation.enough
        verdict = NettestVerdict.of(judged=expectation is not None, slow=late or best.bytes < wanted)
        tests.append(
            Test(
                between=between,
                where=_where(between, ranks, where),
                ranks=len(ranks),
                wanted=wanted,
                bytes=best.bytes,
                us=best.us,
                captured=best.captured,
                expected=expectation,
                verdict=verdict,
                uncaptured=best.uncaptured,
            )
        )
    return tuple(tests)


def _where(between: Between, ranks: Sequence[int], where: Mapping[int, LinkEnd]) -> str:
    if between is Between.ALL:
        return "all"
    first = where[ranks[0]]
    if between is Between.NODE or first.gpu is None:
        return first.node
    return f"{first.node} GPUs {', '.join(str(where[rank].gpu) for rank in ranks)}"


def odd(links: Sequence[LinkResult]) -> Odd | None:
    """The one thing that all slow links have in common, the smallest such thing; None where there is none.

    A GPU or a node is named where it is slow towards more than one other; two nodes where their other links are not.
    """
    slow = [link for link in links if link.verdict is NettestVerdict.SLOW]
    return (_slow_port(slow) or _common(slow)) if slow else None


def _slow_port(slow: Sequence[LinkResult]) -> Odd | None:
    """A slow port makes the GPUs' ways over it slow: what the ports' links have in common, if it explains all others.
    None, too, where only ports are slow or none is."""
    rails = [link for link in slow if link.start.port]
    common = _common(rails) if 0 < len(rails) < len(slow) else None
    if common is None:
        return None
    nodes = {end.node for end in common.ends}
    return common if all(nodes & _nodes(link) for link in slow) else None


def _common(slow: Sequence[LinkResult]) -> Odd | None:
    worst = min(slow, key=lambda link: link.best / link.limit)
    why = f"{worst.start} to {worst.end}: {worst.why or f'{worst.best:.3g} Gb/s'}, {_than(worst)}"
    common = set.intersection(*({link.start, link.end} for link in slow))
    if len(common) == 2:
        return Odd((worst.start, worst.end), why)
    if common and len(peers(slow, common)) > 1:
        return Odd(tuple(common), why)
    nodes = set.intersection(*map(_nodes, slow))
    return Odd(tuple(LinkEnd(node, -1) for node in sorted(nodes)), why) if nodes else None


def _nodes(link: LinkResult) -> set[str]:
    return {link.start.node, link.end.node}


def peers(links: Iterable[LinkResult], common: set[LinkEnd]) -> set[LinkEnd]:
    """The other ends of links that have an end in `common`."""
    return {end for link in links for end in (link.start, link.end)} - common


def _than(link: LinkResult) -> str:
    if link.expected is not None:
        return f"and {link.expected.value:.3g} are expected ({link.expected.basis}: {link.expected.source})"
    return f"the others of its kind at least {link.limit:.3g}"


def overall(judged: Iterable[LinkResult | Test]) -> NettestVerdict:
    """Slow where anything is."""
    verdicts = {link_or_test.verdict for link_or_test in judged}
    return next(
        (verdict for verdict in (NettestVerdict.SLOW, NettestVerdict.OK) if verdict in verdicts), NettestVerdict.NONE
    )


def _is_timed(figure: NettestLine) -> bool:
    return figure.bytes > 0 and figure.us > 0


def _nodes_in_all(halves: Sequence[Sequence[int]], places: Sequence[Place]) -> list[str]:
    return [place.node for place in places if all({*half}.issuperset(place.ranks) for half in halves)]


def bisected(steps: Sequence[NettestStep], figures: Sequence[NettestLine], places: Sequence[Place]) -> Odd | None:
    """The node whose halves all take at least twice as long as the others, in every try; None where there is none."""
    by_id = {step.id: step.groups for step in steps if step.between == Between.HALVES.value}
    timed = (figure for figure in figures if figure.step in by_id and _is_timed(figure))
    paces = collected((by_id[figure.step][figure.group], figure.us / figure.bytes) for figure in timed)
    slower = [_slower(paces, halves) for halves in dict.fromkeys(by_id.values())]
    least = min((times for times, _ in slower), default=0.0)
    nodes = _nodes_in_all([half for _, half in slower], places)
    if least * HALF < 1 or len(nodes) != 1:
        return None
    why = (
        f"each half of the nodes that it is in takes at least {least:.1f} times as long for an all-reduce as the other"
    )
    return Odd((LinkEnd(nodes[0], -1),), why)


_Ranks = tuple[int, ...]


def _slower(paces: Mapping[_Ranks, Sequence[float]], halves: Iterable[_Ranks]) -> tuple[float, _Ranks]:
    """How many times as long the best try of one half took as the other's worst, and which half; 0 where one of them
    was not measured."""
    first, other = halves
    if not (paces.get(first) and paces.get(other)):
        return 0.0, first
    return max((min(paces[slow]) / max(paces[fast]), slow) for slow, fast in ((first, other), (other, first)))


LESS_HEADERS = 0.92
"""Of a port's rate at RoCE MTU 4096 (line rate less headers)."""
NVLINK_SHARE = 0.6
"""Of NCCL's constant for all NVLinks between two GPUs: one sender and one receiver do not fill them."""
ACROSS_SOCKETS_GBS = 11.0
OVER_RDMA_GBS = 19.0
_ALL_REDUCE_RIGHT_US = {14336: 48.0, 57344: 63.0, 458752: 158.0, 1835008: 283.0}


@dataclass(frozen=True, slots=True)
class NodeHardware:
    """What a node's figures follow from. rdma: the plan's transport between nodes is RDMA over the ports of `rate`

    rate_gbps: of all ports that the plan uses on this node, together
    """

    topology: Topology
    nccl: Version
    rdma: bool = False
    rate_gbps: float = 0.0


def _known_places(places: Sequence[Place], machines: Mapping[str, NodeHardware]) -> dict[int, Place]:
    """Of each rank whose GPU and machine are known."""
    return {rank: place for place in places for rank in place.ranks if place.gpus and place.node in machines}


def expectations(
    steps: Sequence[NettestStep], places: Sequence[Place], machines: Mapping[str, NodeHardware], enough: float = ENOUGH
) -> dict[tuple[Between, int], Expectation]:
    """By what is measured, and bytes of an all-reduce (us) or sending rank (Gb/s)."""
    where = _known_places(places, machines)
    pairs_expected = list[tuple[tuple[Between, int], Expectation | None]]()
    for step in steps:
        between = Between(step.between)
        if step.kind == ALL_REDUCE:
            pairs_expected += [((between, size), _all_reduce(size, between, places, machines)) for size in step.bytes]
        else:
            pairs = [pair for pair in step.groups if where.keys() >= {*pair}]
            pairs_expected += [((between, pair[0]), _link(pair[0], pair[1], where, machines)) for pair in pairs]
    return {key: replace(expectation, enough=enough) for key, expectation in pairs_expected if expectation is not None}


def _link(start: int, end: int, where: Mapping[int, Place], machines: Mapping[str, NodeHardware]) -> Expectation | None:
    here, there = where[start], where[end]
    machine, other = machines[here.node], machines[there.node]
    if here is there:
        return _inside(here, start, end, machine)
    rate, share = min(machine.rate_gbps, other.rate_gbps), len(here.ranks)
    if not (machine.rdma and other.rdma and rate):
        return None
    source = f"{LESS_HEADERS * 100:.0f} % of {rate:g} Gb/s, shared by {share} GPUs"  # all of a node send at once
    return Expectation(rate * LESS_HEADERS / share, "calculated", source)


def _inside(place: Place, start: int, end: int, machine: NodeHardware) -> Expectation | None:
    gpus = {gpu.index: gpu for gpu in machine.topology.gpus}
    first, two = (gpus.get(place.gpus[place.ranks.index(rank)]) for rank in (start, end))
    if first is None or two is None:
        return None
    path = Distances(machine.topology).path_type(first.key, two.key)
    gbs = Bandwidths(machine.topology, machine.nccl).between(first.key, two.key) if path is not PathType.DIS else 0.0
    basis, source = "calculated", "NCCL's constants for this path"
    if path is PathType.NVL:
        gbs, source = gbs * NVLINK_SHARE, f"{NVLINK_SHARE:g} of {source}"
    elif path > PathType.PXB:
        ends = {first.index, two.index}
        over_rdma = machine.rdma and not any(
            ends <= {*group} for group in gpu_groups(machine.topology, machine.nccl).groups
        )
        best, way = (OVER_RDMA_GBS, "over GPUDirect RDMA") if over_rdma else (ACROSS_SOCKETS_GBS, "through the CPUs")
        basis, gbs, source = "measured", min(gbs, best), f"the articles, 8 L40S a node: across the sockets {way}"
    return Expectation(gbs * 8, basis, source) if gbs else None


def _all_reduce(
    size: int, between: Between, places: Sequence[Place], machines: Mapping[str, NodeHardware]
) -> Expectation | None:
    """Only for the case that was calculated."""
    ranks = sum(len(place.ranks) for place in places)
    rdma = all(place.node in machines and machines[place.node].rdma for place in places)
    us = _ALL_REDUCE_RIGHT_US.get(size)
    if us is None or not rdma or (between, ranks, len(places)) != (Between.ALL, 32, 4):
        return None
    return Expectation(us, "calculated", "NCCL's tuning model for 4 nodes of 8 GPUs, not measured")
