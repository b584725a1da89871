"""Tests of the contract: well-formed rows, the stand-in in every row, the real engine in two scenarios."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.contract import Row, Scenario, differences, observe
from tests.contract.document import PAGE, claimed, page
from tests.contract.scenarios.all import SCENARIOS
from tests.contract.under_test import EngineUnderTest, Maker, real, stand_in

from l40s_lab.engine.environment import ensure_engine, ensure_model

_MOST_LAUNCHES = 2
"""Scenarios of the real engine in a run of the full test suite."""

ALWAYS = [scenario for scenario in SCENARIOS if scenario.runs == "always"]
PLAYED = [scenario for scenario in SCENARIOS if scenario.runs != "lab"]
EVERY_ROW = [(scenario, row) for scenario in SCENARIOS for row in scenario.rows]


def _name(value: object) -> str:
    return value.name if isinstance(value, (Scenario, Row)) else str(value)


def _hold(scenario: Scenario, maker: Maker, folder: Path) -> None:
    seen = observe(scenario, EngineUnderTest(maker, folder, ensure_model(), plays=scenario.plays))
    assert not differences(scenario, maker.name, seen)


@pytest.mark.parametrize("scenario", PLAYED, ids=_name)
def test_the_stand_in(scenario: Scenario, tmp_path: Path) -> None:
    _hold(scenario, stand_in(tmp_path, scenario.pace), tmp_path)


@pytest.mark.engine
@pytest.mark.timeout(1900)
@pytest.mark.parametrize("scenario", ALWAYS, ids=_name)
def test_the_real_engine(scenario: Scenario, tmp_path: Path) -> None:
    _hold(scenario, real(ensure_engine()), tmp_path)


def test_a_run_of_the_tests_launches_the_real_engine_a_few_times_only() -> None:
    assert 0 < len(ALWAYS) <= _MOST_LAUNCHES


@pytest.mark.parametrize(("scenario", "row"), EVERY_ROW, ids=_name)
def test_a_row_says_why_if_and_only_if_it_is_unequal(scenario: Scenario, row: Row) -> None:
    assert bool(row.why) == (not row.equal)


@pytest.mark.parametrize(("scenario", "row"), EVERY_ROW, ids=_name)
def test_a_row_names_its_source_if_and_only_if_the_real_engine_is_not_run_here(scenario: Scenario, row: Row) -> None:
    assert bool(row.source) != scenario.here


def test_names_are_unique() -> None:
    names = [(scenario.name, row.name) for scenario, row in EVERY_ROW]
    assert len(set(names)) == len(names)


def test_the_page_says_what_the_rows_say() -> None:
    assert PAGE.read_text("utf-8") == page(SCENARIOS, claimed(SCENARIOS)), "run `make contract`"
