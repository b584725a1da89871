"""What is compared, and what it means where data differs."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model.finding import Severity
from orchestrator.nettest.messages import ALL_REDUCE, PAIRS, NettestLine
from orchestrator.nettest.report import Corrupt, Verification, data_finding, verified
from orchestrator.nettest.schedule import LARGE, Place, verification
from orchestrator.nettest.verdict import LinkEnd

from .test_schedule import cluster


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_every_pair_within_a_node_and_every_two_nodes_are_compared_both_ways(sizes: list[int]) -> None:
    places, first = list[Place](), 0
    for number, count in enumerate(sizes):
        ranks = tuple(range(first, first + count))
        places.append(Place(node=f"node{number}", ranks=ranks, gpus=tuple(range(count))))
        first += count
    steps = verification(places, 64)
    assert [step.id for step in steps] == list(range(len(steps))) and all(step.verify for step in steps)
    kinds = [step.kind for step in steps]
    assert kinds == sorted(kinds, key=[PAIRS, ALL_REDUCE].index), "a corrupt pair ends the test before sums"
    pairs = [(one, two) for step in steps if step.kind == PAIRS for one, two in step.groups]
    where = {rank: place.node for place in places for rank in place.ranks}
    assert {pair for place in places for pair in permutations(place.ranks, 2)} <= set(pairs)
    assert {(where[one], where[two]) for one, two in pairs} >= set(permutations([place.node for place in places], 2))
    for step in steps:
        busy = [rank for group in step.groups for rank in group]
        assert len(busy) == len(set(busy)), step
        assert LARGE in step.bytes


def compared(places: tuple[Place, ...], wrong: dict[tuple[int, ...], int]) -> list[NettestLine]:
    """All that the ranks of a test say. wrong: bytes of a pair (start, end) or of a sum (rank,)"""
    found = []
    for step in verification(places, 64):
        for place, group in enumerate(step.groups):
            for rank in group if step.kind == ALL_REDUCE else group[1:]:
                key = (rank,) if step.kind == ALL_REDUCE else group
                found.append(NettestLine(step=step.id, group=place, rank=rank, bytes=LARGE, wrong=wrong.get(key, 0)))
    return found


@pytest.mark.parametrize(
    ("gpus", "wrong", "node", "words", "tries"),
    [
        (True, {(0, 1): 2}, "node0", ["1 of ", "node0 GPU 0 to node0 GPU 1"], "NCCL_P2P_DISABLE"),
        (True, {(0, 1): 2, (3, 0): 1}, "node0", ["2 of ", "all of them at node0 GPU 0"], "IOMMU"),
        (True, {(0, 4): 2}, "", ["node0 GPU 0 to node1 GPU 0"], "NCCL_NET_GDR_LEVEL"),
        (True, {(1, 0): 1, (4, 0): 1}, "node0", ["all of them at node0 GPU 0"], "ACS"),
        (True, {(2,): 7}, "node0", ["every pair is right", "all-reduce of all ranks to node0 GPU 2"], "driver"),
        (False, {(0, 4): 2}, "", ["node0 to node1"], "ethtool"),
    ],
)
def test_the_finding_names_pairs_and_what_they_share(
    gpus: bool, wrong: dict[tuple[int, ...], int], node: str, words: list[str], tries: str
) -> None:
    places = cluster(2, 4, switches=2 if gpus else 0)
    found = verified(verification(places, 64), compared(places, wrong), places, 0.5)
    said = data_finding("g7", found)
    assert said is not None and (said.id, said.severity, said.node) == ("DATA-CORRUPT", Severity.STOP, node)
    assert all(one in said.title for one in words), said.title
    assert tries in said.fix and said.fix.endswith("l40s-deploy nettest --verify g7")
    assert found.as_json()["verdict"] == "corrupt"
    assert sum(one["bytes"] for one in found.as_json()["corrupt"]) >= sum(wrong.values())


def test_right_data_is_no_finding_and_what_nobody_compared_is_not_right() -> None:
    places = cluster(2, 2, switches=1)
    steps, said = verification(places, 64), compared(places, {})
    found = verified(steps, said, places, 0.5)
    assert (found.as_json()["verdict"], found.least, data_finding("g", found)) == ("ok", LARGE, None)
    assert found.pairs == 2 * 2 + 2 * 2 * 2
    for missing in range(len(said)):
        with pytest.raises(LookupError):
            verified(steps, said[:missing] + said[missing + 1 :], places, 0.5)


def test_many_pairs_are_counted() -> None:
    ends = [LinkEnd("node0", rank, rank) for rank in range(20)]
    corrupt = tuple(Corrupt(start=one, end=two, bytes=1) for one, two in zip(ends[::2], ends[1::2], strict=True))
    said = data_finding("g", Verification(pairs=380, least=1, seconds=1.0, corrupt=corrupt))
    assert said is not None and "10 of 380 pairs" in said.title and "and 2 more" in said.title
