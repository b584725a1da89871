"""Tests of the contract: well-formed rows, the stand-in in every row, the real engine without a model in every run and
in a whole life by turns with tests/engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.contract.contract import REAL, STAND_IN, Scenario, differences, observe, tables
from tests.contract.scenarios.all import SCENARIOS
from tests.contract.under_test import EngineUnderTest, Maker, real, stand_in
from tests.support.turns import by_turns

from l40s_lab.engine.environment import ensure_engine, ensure_model

_MOST_LAUNCHES = 2
"""Scenarios of the real engine that runs of the full test suite play in turn."""

A_LIFE = "the real engine from nothing to nothing"
BY_TURNS = [scenario for scenario in SCENARIOS if scenario.runs == "turns"]
PLAYED = [scenario for scenario in SCENARIOS if scenario.runs != "lab"]


def _name(scenario: Scenario) -> str:
    return scenario.name


def _kind(scenario: Scenario) -> str:
    """A whole life is played here or by tests/engine/test_two_nodes.py, on two nodes."""
    return A_LIFE if scenario.name == "life" else scenario.name


def _hold(scenario: Scenario, maker: Maker, folder: Path) -> None:
    seen = observe(scenario, EngineUnderTest(maker, folder, ensure_model(), plays=scenario.plays))
    assert not differences(scenario, maker.name, seen)


@pytest.mark.parametrize("scenario", PLAYED, ids=_name)
def test_the_stand_in(scenario: Scenario, tmp_path: Path) -> None:
    _hold(scenario, stand_in(tmp_path, scenario.pace), tmp_path)


@pytest.mark.engine
@pytest.mark.timeout(1900)
@pytest.mark.parametrize("scenario", by_turns(BY_TURNS, of=_kind), ids=_name)
def test_the_real_engine(scenario: Scenario, tmp_path: Path) -> None:
    _hold(scenario, real(ensure_engine()), tmp_path)


def test_runs_of_the_tests_play_few_scenarios_of_the_real_engine() -> None:
    assert 0 < len(BY_TURNS) <= _MOST_LAUNCHES


def test_every_row_has_a_name_and_says_why_or_by_which_source_it_holds() -> None:
    assert [*tables()] == [scenario.name for scenario in SCENARIOS]
    for scenario in SCENARIOS:
        rows = tables()[scenario.name]
        assert len(scenario.answers(STAND_IN)) == len(rows)
        for row in rows:
            if scenario.here:
                assert row["equal"] == "yes" if row[REAL] == row[STAND_IN] else re.match("no: .", row["equal"]), row
            else:
                assert row["source"] and row["by its source"] == row[STAND_IN], row
