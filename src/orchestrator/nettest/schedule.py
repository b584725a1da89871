"""Which ranks measure what, and in what order. A link is one direction from a rank to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

from orchestrator.model.profile import BYTES_A_NUMBER, Between
from orchestrator.nettest.messages import ALL_REDUCE, PAIRS, NettestStep

TOKENS = (1, 4, 32, 128)
"""Requests that decode at once: those that the articles measured."""
LARGE = 64 << 20
BOX_S = 0.25
"""For one size of one measurement: 60 ms of a 64 MiB transfer at 1 GB/s, four times. A slow link takes its first
transfers on top."""
VERIFY_S = 1.0
"""For one transfer that is compared: a link of half a Gb/s has 64 MiB compared."""
LARGE_ON_CPUS = 8 << 20
"""Largest transfer that is compared without GPUs: a node of a lab has a share of a processor."""
TRIES = 2
"""Every all-reduce and path twice, with all others in between: what slowed one try down is over by the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One node's ranks.

    ranks:   all ranks of the test on this node, in the order of its GPUs
    gpus:    NVML's indices; () on CPUs
    switch:  of each GPU, '' where none or unknown; numa: its NUMA node, -1 where unknown
    """

    node: str
    ranks: tuple[int, ...]
    gpus: tuple[int, ...] = ()
    switch: tuple[str, ...] = ()
    numa: tuple[int, ...] = ()


def verification(places: Sequence[Place], hidden_size: int) -> tuple[NettestStep, ...]:
    """The steps that compare data, numbered from 0: every pair of GPUs within each node and the pairs between nodes
    that are timed, in both directions; then the engine's all-reduces."""
    on_gpus = all(place.gpus for place in places)
    steps = [*_every_pair_inside(places), *_between_nodes(places)]
    steps += _collectives(places, (*_decode(hidden_size), LARGE) if on_gpus else _decode(hidden_size))
    return tuple(
        NettestStep(
            id=number,
            kind=kind,
            between=between.value,
            groups=groups,
            box_s=VERIFY_S,
            bytes=sizes if on_gpus else tuple(min(size, LARGE_ON_CPUS) for size in sizes),
            captured=kind == ALL_REDUCE,
            verify=True,
        )
        for number, (kind, between, groups, sizes) in enumerate(steps)
    )


def schedule(places: Sequence[Place], hidden_size: int, first: int = 0) -> tuple[NettestStep, ...]:
    """The steps that time, numbered from `first`. hidden_size: of the model, whose decode steps reduce tokens x hidden
    x 2 bytes."""
    steps = list[_Step]()
    for _ in range(TRIES):
        steps += _collectives(places, (*_decode(hidden_size), LARGE))
        steps += _between_nodes(places)
        steps += _inside(places)
        steps += [(ALL_REDUCE, Between.HALVES, groups, (LARGE,)) for groups in halves(places)]
    return tuple(
        NettestStep(
            id=number,
            kind=kind,
            between=between.value,
            groups=groups,
            bytes=sizes,
            box_s=BOX_S,
            captured=kind == ALL_REDUCE and between is not Between.HALVES,
        )
        for number, (kind, between, groups, sizes) in enumerate(steps, first)
    )


def _decode(hidden_size: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(max(2, tokens * hidden_size * BYTES_A_NUMBER) for tokens in TOKENS))


_Step = tuple[str, Between, tuple[tuple[int, ...], ...], tuple[int, ...]]


def _collectives(places: Sequence[Place], sizes: tuple[int, ...]) -> Iterator[_Step]:
    everybody = tuple(rank for place in places for rank in place.ranks)
    if len(everybody) > 1:
        yield ALL_REDUCE, Between.ALL, (everybody,), sizes
    if len(places) > 1 and all(len(place.ranks) > 1 for place in places):
        yield ALL_REDUCE, Between.NODE, tuple(place.ranks for place in places), sizes
    below = tuple(group for place in places for group in switch_groups(place) if 1 < len(group) < len(place.ranks))
    if below:
        yield ALL_REDUCE, Between.SWITCH, below, sizes


def switch_groups(place: Place) -> tuple[tuple[int, ...], ...]:
    """Ranks below one switch each; those of GPUs without one are in none."""
    named = [name for name in dict.fromkeys(place.switch) if name]
    return tuple(
        tuple(rank for rank, switch in zip(place.ranks, place.switch, strict=True) if switch == name) for name in named
    )


def halves(places: Sequence[Place]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The ranks of two halves of the nodes, for each bit of the nodes' numbers; a half is two nodes at least."""
    for bit in range(max(len(places) - 1, 0).bit_length()):
        pair = [[place for number, place in enumerate(places) if number >> bit & 1 == half] for half in (0, 1)]
        if all(len(half) > 1 for half in pair):
            yield tuple(tuple(rank for place in half for rank in place.ranks) for half in pair)


def _between_nodes(places: Sequence[Place]) -> Iterator[_Step]:
    """Rounds in which every node has one partner and all its GPUs send at once, in one direction and then the other."""
    for pairs in rounds(places):
        same = [(first, two) for here, there in pairs for first, two in zip(here.ranks, there.ranks, strict=False)]
        yield from _there_and_back(Between.NODES, same)
    pairs = next(iter(rounds(places)), ())
    crossed = [
        (first, two)
        for here, there in pairs
        if len(here.ranks) > 1
        for first, two in zip(here.ranks, _other_half(there.ranks), strict=False)
    ]
    yield from _there_and_back(Between.OTHER_HALF, crossed)


def _other_half(ranks: tuple[int, ...]) -> tuple[int, ...]:
    half = len(ranks) // 2
    return ranks[half:] + ranks[:half]


_T = TypeVar("_T")


def rounds(these: Sequence[_T]) -> Iterator[tuple[tuple[_T, _T], ...]]:
    """Every pair of them once, each in one pair of a round (the circle method)."""
    ring: list[_T | None] = [*these]
    if len(ring) % 2:
        ring.append(None)
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield tuple((first, two) for first, two in pairs if first is not None and two is not None)
        ring = [ring[0], ring[-1], *ring[1:-1]]


def _every_pair_inside(places: Sequence[Place]) -> Iterator[_Step]:
    """All nodes at once."""
    for of_each in zip_longest(*(rounds(place.ranks) for place in places), fillvalue=()):
        yield from _there_and_back(Between.SAME_NODE, [pair for pairs in of_each for pair in pairs])


def _inside(places: Sequence[Place]) -> Iterator[_Step]:
    """Neighbours below a switch, then across the sockets; one GPU of each pair is in no other of its round."""
    groups = [group for place in places for group in switch_groups(place)]
    near = [pair for group in groups for pair in _neighbours(group)]
    yield from _there_and_back(Between.SAME_SWITCH, near)
    far = [pair for place in places for pair in _across(place)]
    yield from _there_and_back(Between.ACROSS_SOCKETS, far)
    if not near and not far:
        others = [pair for place in places for pair in _neighbours(place.ranks)]
        yield from _there_and_back(Between.SAME_NODE, others)


def _neighbours(ranks: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(ranks[::2], ranks[1::2], strict=False)


def _across(place: Place) -> Iterable[tuple[int, int]]:
    sockets = [number for number in dict.fromkeys(place.numa) if number >= 0]
    if len(sockets) != 2:
        return ()
    first, two = (
        [rank for rank, numa in zip(place.ranks, place.numa, strict=True) if numa == socket] for socket in sockets
    )
    return zip(first, two, strict=False)


def _there_and_back(between: Between, pairs: Sequence[tuple[int, int]]) -> Iterator[_Step]:
    if pairs:
        yield PAIRS, between, tuple(pairs), (LARGE,)
        yield PAIRS, between, tuple((two, first) for first, two in pairs), (LARGE,)
