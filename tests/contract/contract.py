"""The parts of the contract: rows (one observable behaviour each) and scenarios that observe many in one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tests.contract.under_test import EngineUnderTest

ENGINES = REAL, STAND_IN, VLLM = "real", "stand-in", "vLLM"
See = Callable[[str, object], None]
"""Records an observation for a row."""


@dataclass(frozen=True)
class Row:
    """One observable behaviour.

    asks:     what is looked at, in words
    answer:   what the real engine shows; for a version that is never run here, what its source says; if it needs a
              GPU, what was seen there
    stand_in: what the stand-in shows, None if it is the same
    vllm:     what vLLM shows where it is played too, None if it is the same
    why:      why the stand-in's answer differs; given exactly then
    source:   where the answer was taken from, if the real engine is not run here
    """

    name: str
    asks: str
    answer: str
    _: KW_ONLY
    stand_in: str | None = None
    vllm: str | None = None
    why: str = ""
    source: str = ""

    @property
    def equal(self) -> bool:
        return self.stand_in is None or self.stand_in == self.answer

    def answer_of(self, engine: str) -> str:
        """The expected observation of an engine."""
        own = {STAND_IN: self.stand_in, VLLM: self.vllm}.get(engine)
        return self.answer if own is None else own


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One launch and what it shows. `play` drives the engine and notes every row once, in any order.

    told: the story, for the document
    runs: `always` for what every run of the test suite plays with the real engine, `full` for what only
          `make contract` plays with it, `lab` for what only `make contract` plays, with either engine in a lab that
          needs root, `never` for a version that can't run here, `gpu` for what takes a GPU
    vllm: the real vLLM plays it too
    pace: multiplies the length of the stand-in's phases and pauses
    """

    name: str
    told: str
    rows: tuple[Row, ...]
    play: Callable[[EngineUnderTest, See], None]
    runs: Literal["always", "full", "lab", "never", "gpu"] = "full"
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
        return {row.name: row.answer_of(engine) for row in self.rows}


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
    odd = set(seen) ^ {row.name for row in scenario.rows}
    assert not odd, f"{scenario.name}: noted without a row, or not noted: {odd}"
    return seen


def differences(scenario: Scenario, engine: str, seen: Mapping[str, str]) -> list[str]:
    """Rows whose answer differs from the observation, one line each."""
    return [
        f"{scenario.name}/{name} ({engine}): the contract says {said!r}, seen {seen[name]!r}"
        for name, said in scenario.answers(engine).items()
        if seen[name] != said
    ]
