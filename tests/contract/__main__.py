"""`python -m tests.contract [SCENARIO or ENGINE ...]`: play scenarios on every engine that plays them.

Without words all are played. Exits with 1 if anything was seen that contract.md does not say.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.contract.contract import ENGINES, REAL, VLLM, Scenario, differences, observe
from tests.contract.scenarios.all import SCENARIOS
from tests.contract.under_test import EngineUnderTest, Maker, real, stand_in, vllm

from l40s_lab.engine.environment import ensure_engine, ensure_model


def main(names: list[str]) -> int:
    known = {scenario.name for scenario in SCENARIOS}
    if unknown := set(names) - known - {*ENGINES}:
        print(f"no such scenario: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}", file=sys.stderr)
        return 2
    chosen = [one for one in SCENARIOS if one.name in (known & {*names} or known)]
    engines = {*ENGINES} & {*names} or {*ENGINES}
    problems: list[str] = []
    for scenario in chosen:
        for engine in filter(engines.__contains__, scenario.engines):
            began = time.monotonic()
            try:
                found = differences(scenario, engine, _play(scenario, engine))
            except AssertionError as error:
                found = [f"{scenario.name} ({engine}): {error}"]
            problems += found
            print(f"{scenario.name:24} {engine:9} {time.monotonic() - began:6.1f} s  {'; '.join(found) or 'as said'}")
    return 1 if problems else 0


def _play(scenario: Scenario, engine: str) -> dict[str, str]:
    """The observations; the folder with the logs is kept if the scenario could not be played to its end."""
    folder = Path(tempfile.mkdtemp(prefix=f"contract-{scenario.name}-"))
    maker = _maker(engine, folder, scenario.pace)
    seen = observe(scenario, EngineUnderTest(maker, folder, ensure_model(), plays=scenario.plays))
    shutil.rmtree(folder)
    return seen


def _maker(engine: str, folder: Path, pace: float) -> Maker:
    if engine == VLLM:
        return vllm()
    return real(ensure_engine(print)) if engine == REAL else stand_in(folder, pace)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
