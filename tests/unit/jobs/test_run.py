"""Other clients' requests, before and during a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.reference_cluster import gang

from orchestrator.jobs import run
from orchestrator.protocol.errors import InputError, NodeError
from orchestrator.protocol.verbs import HttpAnswer

FLEET: Any = None


def metrics(finished: int, running: int = 0) -> list[HttpAnswer]:
    counts = f"sglang:num_running_reqs 0\nsglang:num_queue_reqs {running}\nsglang:num_requests_total {finished}.0\n"
    return [HttpAnswer(status=200, body=counts)]


def telling(monkeypatch: pytest.MonkeyPatch, *answers: list[HttpAnswer]) -> None:
    """One answer after another; the last one repeats."""
    said: Iterator[list[HttpAnswer]] = iter(answers)
    last = answers[-1]
    monkeypatch.setattr(run, "_asked", lambda *_: next(said, last))


def measured() -> None:
    with run.alone(FLEET, gang(), "http://x", ours=256, why="it is slower"):
        pass


@pytest.mark.parametrize("answered", [256, 257, 258])
def test_ours_and_those_that_warm_up_are_no_others(answered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    telling(monkeypatch, metrics(1000), metrics(1000 + answered))
    measured()


def test_more_answers_than_ours_spoil_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    telling(monkeypatch, metrics(1000), metrics(1300))
    with pytest.raises(NodeError, match="300 requests, and 256 of them were ours") as raised:
        measured()
    assert "router" in raised.value.fix


def test_an_engine_that_keeps_no_count_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = '{"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}'
    telling(monkeypatch, [HttpAnswer(status=200, body=loads)])
    measured()


def test_what_still_runs_afterwards_ran_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "QUIET_S", 0.05)
    monkeypatch.setattr(run, "LOOK_S", 0.01)
    telling(monkeypatch, metrics(0), metrics(256), metrics(256, running=3))
    with pytest.raises(InputError, match=r"3 requests now.*the figures are discarded"):
        measured()


def test_a_run_that_failed_by_itself_keeps_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    telling(monkeypatch, metrics(0), metrics(9999))
    with pytest.raises(ValueError, match="its own"), run.alone(FLEET, gang(), "http://x", ours=1, why="it is slower"):
        raise ValueError("its own")
