"""One time for each node over all the questions of a command."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.fuzz import answers

from orchestrator.model.inventory import NodeSpec
from orchestrator.protocol.errors import Unreachable
from orchestrator.remote import allowance
from orchestrator.remote.allowance import allotted
from orchestrator.remote.fleet import Fleet

SLOW, QUICK = (node.name for node in answers._nodes()[:2])


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """One node's questions last 7 s, by this clock alone."""
    times = itertools.count(step=7.0)
    monkeypatch.setattr(allowance, "_now", lambda: next(times))
    monkeypatch.setattr("orchestrator.remote.fleet.connect", _connected)


def _connected(spec: NodeSpec, _: float) -> Any:
    return answers.Node(spec, {})


def ask(name: str) -> Any:
    """By a fleet of its own."""
    with Fleet(answers._nodes()) as fleet:
        return fleet.on_every(lambda session: session.spec.name, only={name})


def test_a_node_that_has_taken_its_time_is_not_asked_by_any_fleet() -> None:
    with allotted(14.0):
        assert [ask(SLOW).values, ask(SLOW).values] == [{SLOW: SLOW}] * 2
        told = ask(SLOW).failures[SLOW]
        assert "14 s of this command" in told.what and SLOW in told.fix
        assert ask(QUICK).values == {QUICK: QUICK}


def test_connections_apart_count_too() -> None:
    with allotted(7.0), Fleet(answers._nodes()) as fleet:
        assert fleet.on_every(lambda _: 1, only={SLOW}).values
        assert fleet.apart.on_every(lambda _: 1, only={SLOW}).failures


def test_what_fails_has_taken_its_time() -> None:
    def lost(_: object) -> None:
        raise Unreachable("did not end within 7 s", where=SLOW, fix="look")

    with allotted(7.0):
        with Fleet(answers._nodes()) as fleet:
            assert "did not end" in fleet.on_every(lost, only={SLOW}).failures[SLOW].what
        assert "not asked again" in ask(SLOW).failures[SLOW].what


def test_without_an_allowance_nothing_ends() -> None:
    assert all(ask(SLOW).values for _ in range(40))
    with allotted(1.0):
        ask(SLOW)
    assert ask(SLOW).values
