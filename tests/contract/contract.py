"""The contract: contract.md has a table of rows (one observable behaviour each) for every scenario, which observes all
of them in one launch. Who changes what an engine shows changes the page by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tests.contract.under_test import EngineUnderTest

PAGE = Path(__file__).with_name("contract.md")
ENGINES = REAL, STAND_IN, VLLM = "real", "stand-in", "vLLM"
"""Columns of the page too."""
See = Callable[[str, object], None]
"""Records an observation for a row."""
_CELL = re.compile(r"(?<!\\)\|")


@cache
def tables() -> Mapping[str, list[dict[str, str]]]:
    """The page's tables by scenario: of each row the cells by their column.

    real: what the real engine shows; `by its source` instead for a version that is never run here (what its `source`
          says) or what needs a GPU (what was seen there)
    stand-in, vLLM: what these show
    equal: whether real and stand-in show the same, and why not
    """
    found: dict[str, list[dict[str, str]]] = {}
    for section in PAGE.read_text("utf-8").split("\n## ")[1:]:
        lines = [_CELL.split(line)[1:-1] for line in section.splitlines() if line.startswith("|")]
        heads, _, *rows = [[cell[1:-1].replace("\\|", "|") for cell in line] for line in lines]
        found[section.partition("\n")[0]] = [dict(zip(heads, row, strict=True)) for row in rows]
    return found


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One launch and what it shows. `play` drives the engine and notes every row of its table once, in any order.

    runs: `turns` for what runs of the test suite play with the real engine, one each, `full` for what only
          `make contract` plays with it, `lab` for what only `make contract` plays, with either engine in a lab that
          needs root, `never` for a version that can't run here, `gpu` for what takes a GPU
    vllm: the real vLLM plays it too
    pace: multiplies the length of the stand-in's phases and pauses
    """

    name: str
    play: Callable[[EngineUnderTest, See], None]
    runs: Literal["turns", "full", "lab", "never", "gpu"] = "full"
    plays: str = "0.5.23"
    vllm: bool = False
    pace: float = 0.02

    @property
    def here(self) -> bool:
        """The real engine can be played on any machine."""
        return self.runs not in ("never", "gpu")

    @property
    def engines(self) -> tuple[str, ...]:
        """Who can be played on any machine."""
        return (STAND_IN, *((REAL,) if self.here else ()), *((VLLM,) if self.vllm else ()))

    def answers(self, engine: str) -> dict[str, str]:
        """The expected observations of an engine."""
        return {row["row"]: row[engine] for row in tables()[self.name]}


def observe(scenario: Scenario, engine: EngineUnderTest) -> dict[str, str]:
    """Play a scenario; returns each row's observation. A row noted twice or never is a defect of the scenario."""
    seen: dict[str, str] = {}

    def see(row: str, value: object) -> None:
        assert row not in seen, f"{scenario.name}: row {row} was noted twice"
        seen[row] = str(value)

    try:
        scenario.play(engine, see)
    finally:
        engine.end()
    odd = seen.keys() ^ scenario.answers(STAND_IN).keys()
    assert not odd, f"{scenario.name}: noted without a row, or not noted: {odd}"
    return seen


def differences(scenario: Scenario, engine: str, seen: Mapping[str, str]) -> list[str]:
    """Rows whose answer differs from the observation, one line each."""
    return [
        f"{scenario.name}/{name} ({engine}): the contract says {said!r}, seen {seen[name]!r}"
        for name, said in scenario.answers(engine).items()
        if seen[name] != said
    ]
