"""What the proof found, in one JSON file that several calls add to."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from l40s_lab import files

Outcome = Literal["as it should", "otherwise", "not done"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One step, once.

    said:    what was seen, in a sentence, or what went wrong
    figures: numbers and words by name; seconds: how long it took
    gpus:    of the machine it was played on; engine: with which version, '' of old results
    """

    step: str
    outcome: Outcome
    said: str
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    at: str = ""
    gpus: str = ""
    engine: str = ""


@dataclass
class Figures:
    """The file; every result is written as soon as it is there."""

    path: Path
    machine: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path) -> Figures:
        """With what an earlier call found."""
        if not path.exists():
            return cls(path)
        raw = json.loads(path.read_text())
        return cls(path, raw["machine"], [Result(**result) for result in raw["results"]])

    def add(self, result: Result) -> None:
        """One more, of this machine."""
        self.results.append(replace(result, gpus=self.machine.get("gpus", ""), engine=self.machine.get("engine", "")))
        self.write()

    def write(self) -> None:
        """As it is now."""
        text = json.dumps({"machine": self.machine, "results": [asdict(result) for result in self.results]}, indent=1)
        files.put(self.path, text + "\n")

    def of_step(self, name: str) -> list[Result]:
        """Every time it was played, in that order."""
        return [result for result in self.results if result.step == name]

    def wrong(self) -> list[Result]:
        """What went otherwise and did not go as it should when it was played again; each kill counts."""
        return [
            one
            for one in self.results
            if one.outcome == "otherwise" and (one.step == "kill" or not self.passed(one.step))
        ]

    def passed(self, name: str) -> bool:
        """The step's last result that is one was as it should be."""
        done = [one for one in self.of_step(name) if one.outcome != "not done"]
        return bool(done) and done[-1].outcome == "as it should"

    def missing(self, names: Iterable[str]) -> list[str]:
        """Steps that were never played to their end."""
        return [name for name in names if not any(one.outcome != "not done" for one in self.of_step(name))]


def now() -> str:
    """Date and time of this machine."""
    return time.strftime("%Y-%m-%d %H:%M:%S")
