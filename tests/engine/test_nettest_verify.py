"""The ranks of a network test compare what they receive: one flipped byte of 64 MiB is found, and never without one.

The ranks are the product's own, with the stack's torch over Gloo and the sizes of GPUs; `tests/support/flipping` plants
the flipped bit behind them. On GPUs: tests/support/verifying_ranks.py, and a step of tests/gpu.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.support.verifying_ranks import STEPS, flips, found_in, run
from tests.support.waiting import slack

from l40s_lab.engine.environment import ensure_engine
from orchestrator.nettest.messages import ALL_REDUCE, PAIRS
from orchestrator.nettest.schedule import LARGE

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

RUNS = 20


@cache
def python() -> Path:
    return ensure_engine() / "bin/python3"


def lines(**env: str) -> list[dict[str, Any]]:
    return run(python(), STEPS, slack=slack(), env=env)


def healthy() -> None:
    said = lines()
    found = found_in(said)
    assert not found.corrupt and found.pairs == 2 and found.least > LARGE
    compared = {(line["step"], line["rank"]) for line in said if "wrong" in line}
    assert compared == {(step.id, rank) for step in STEPS for group in step.groups
                        for rank in (group if step.kind == ALL_REDUCE else group[1:])}  # fmt: skip


def flipped(flip: str) -> None:
    """In the largest transfers alone."""
    said = lines(FLIP_BYTE=flip)
    start, end = flip.split(",")[:2]
    assert [(str(one), one.bytes) for one in found_in(said).corrupt] == [(f"node0 GPU {start} to node0 GPU {end}", 1)]
    kinds = {STEPS[line["step"]].kind for line in said if "wrong" in line}
    assert kinds == {PAIRS}, "sums are not tried through a link that corrupts data"


def test_right_data_is_right() -> None:
    healthy()


@pytest.mark.turns(of="nettest --verify: wrong data is found")
@pytest.mark.parametrize("flip", flips(2))
def test_one_flipped_byte_of_64_mib_is_found(flip: str) -> None:
    """The last byte, which is in no whole word, and one of the first words."""
    flipped(flip)


@pytest.mark.turns(of="nettest --verify: wrong data is found")
def test_a_wrong_sum_is_found_where_every_pair_is_right() -> None:
    found = found_in(lines(FLIP_BYTE=f"-1,1,77,{LARGE}"))
    assert [(str(one), one.bytes) for one in found.corrupt] == [("all-reduce of all ranks to node0 GPU 1", 1)]
    assert found.pairs == 2


@pytest.mark.long
def test_a_flipped_byte_is_found_every_time_and_none_without_one() -> None:
    for flip in flips(RUNS):
        healthy()
        flipped(flip)
