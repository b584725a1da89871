"""NCCL's own settings compared, by the all-reduces that a model needs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.model.measured import NetworkTrial
from orchestrator.model.profile import Between

CLEARLY = 0.9
"""Share of the time as planned below which another setting is worth a word: two tests of one network differ by less."""


def trial_of(name: str, env: Mapping[str, str], record: Mapping[str, Any]) -> NetworkTrial:
    """From the record of a network test. Wrong data counts for nothing."""
    if record["verification"]["verdict"] != "ok":
        return NetworkTrial(name=name, env=env, cause="data arrived corrupt")
    reduces = [test for test in record["tests"] if test["kind"] == Between.ALL.value]
    return NetworkTrial(
        name=name, env=env, reduces_us={str(test["bytes"]): float(test["measured_us"]) for test in reduces}
    )


def faster(trials: Iterable[NetworkTrial]) -> dict[str, str]:
    """By bytes: the setting that is clearly faster than NCCL's own choice; a size without one is left out."""
    known = [trial for trial in trials if trial.reduces_us]
    usual = next((trial for trial in known if not trial.env), None)
    if usual is None:
        return {}
    records = {}
    for size, took in usual.reduces_us.items():
        fastest = min(known, key=lambda trial: trial.reduces_us.get(size, took))
        if fastest.reduces_us.get(size, took) < CLEARLY * took:
            records[size] = fastest.name
    return records
