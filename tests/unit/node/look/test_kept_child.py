"""A child process that is kept: its answers, one that hangs, one that ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.support.waiting import until

from orchestrator.node.look.kept_child import KeptChild

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
DIES = "import sys; sys.stdin.readline(); print('{\"n\": 1}', flush=True)"
SLOW = """
import sys, time
for number, line in enumerate(sys.stdin):
    time.sleep(0.3 if number == 0 else 0)
    print(line, end="", flush=True)
"""


@pytest.fixture
def children() -> Iterator[list[KeptChild]]:
    started: list[KeptChild] = []
    yield started
    for child in started:
        child.close()


def standing(children: list[KeptChild], source: str) -> KeptChild:
    children.append(KeptChild([sys.executable, "-c", source], "the driver"))
    return children[-1]


def test_one_child_answers_again_and_again(children: list[KeptChild]) -> None:
    child = standing(children, ECHO)
    for number in range(3):
        child.ask({"number": number})
        assert child.answer(20) == {"number": number}


def test_one_that_hangs_is_asked_no_more_and_no_second_one_is_started(children: list[KeptChild]) -> None:
    child = standing(children, "import time; time.sleep(60)")
    child.ask({})
    assert "the driver did not respond within" in child.answer(0.1)["error"]
    process = child._child
    child.ask({})
    assert "did not respond" in child.answer(0.0)["error"] and child._child is process


def test_a_late_answer_is_not_taken_for_the_next_one(children: list[KeptChild]) -> None:
    child = standing(children, SLOW)
    child.ask({"question": 1})
    assert "error" in child.answer(0.0)

    def asked_again() -> bool:
        child.ask({"question": 2})
        return child.answer(0.5) == {"question": 2}

    assert until(asked_again, 20)


def test_one_that_has_ended_is_started_again(children: list[KeptChild]) -> None:
    child = standing(children, DIES)
    child.ask({})
    assert child.answer(20) == {"n": 1}
    process = child._child
    assert process is not None
    process.wait(20)
    child.ask({})
    assert child.answer(20) == {"n": 1}


def test_one_that_ends_without_an_answer_says_so(children: list[KeptChild]) -> None:
    child = standing(children, "raise SystemExit(3)")
    child.ask({})
    assert child.answer(20) == {"error": "the process that queries the driver exited without an answer"}
