"""Valid messages of a node in a network test: its own steps, and their number when all are done."""

from __future__ import annotations

import pytest

from orchestrator.nettest.messages import ALL_REDUCE, NettestLine, NettestStep
from orchestrator.nettest.steps import nettest

STEP = NettestStep(id=0, kind=ALL_REDUCE, between="all ranks", groups=((0, 1),), bytes=(8, 16), box_s=1.0)


def heard() -> nettest._NettestAnswers:
    return nettest._NettestAnswers("gang0", [STEP], {"a": (0,), "b": (1,)}, lambda *_: None)


@pytest.mark.parametrize("line", [NettestLine(done=0), NettestLine(done=1), NettestLine(step=0, group=0, us=1.0)])
def test_a_steps_end_and_the_end_of_all_are_its_own(line: NettestLine) -> None:
    assert heard().odd("a", line) == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (NettestLine(done=2), "step 2 of 1"),
        (NettestLine(step=1, group=0, us=1.0), "step 1, group 0"),
        (NettestLine(step=0, group=1, us=1.0), "step 0, group 1"),
        (NettestLine(died=1), "a rank that is not on it"),
    ],
)
def test_what_is_none_of_the_test_is_said(line: NettestLine, words: str) -> None:
    assert words in heard().odd("a", line)
