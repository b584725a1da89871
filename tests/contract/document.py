"""contract.md: every row with what the real engine and the stand-in showed, and why they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.contract.contract import ENGINES, Row, Scenario

PAGE = Path(__file__).with_name("contract.md")
NOT_SEEN = "not seen"

Seen = Mapping[tuple[str, str], Mapping[str, str]]
"""(scenario, engine) -> row -> what was seen."""

_HEAD = """\
# The engine contract

The lab's stand-in imitates SGLang without a model and without GPUs. This page shows how accurately: each row is one
observable behaviour, checked in the same way on the real SGLang 0.5.23 (on CPU, a tiny DeepSeek-V3) and on the
stand-in. The rows are in `tests/contract/scenarios`; `make contract` runs all of them on both engines, those of
`gang` on the real vLLM 0.32.0 (on CPU, a tiny Qwen3 MoE) too, and writes this page; `make test` runs all but the lab's
on the stand-in, and those marked accordingly on the real engine.

Neither SGLang 0.4.4 nor a GPU is ever used here: such rows are based on the source that they name, and only the
stand-in is checked.
"""
_RUNS = {
    "always": "Run with the real engine by every `make test`.",
    "full": "Run with the real engine by `make contract`.",
    "lab": "Run with every engine by `make contract` only, as root.",
    "never": "Version 0.4.4, never run here.",
    "gpu": "It needs a GPU, and is not run here.",
}


def claimed(scenarios: Sequence[Scenario]) -> Seen:
    """The observations that the rows expect."""
    return {(scenario.name, engine): scenario.answers(engine) for scenario in scenarios for engine in ENGINES}


def page(scenarios: Sequence[Scenario], seen: Seen) -> str:
    """The complete page; rows missing in `seen` show as not seen."""
    return "\n".join([_HEAD, _summary(scenarios), *(line for one in scenarios for line in _section(one, seen))]) + "\n"


def _summary(scenarios: Sequence[Scenario]) -> str:
    rows = [row for scenario in scenarios if scenario.here for row in scenario.rows]
    old, on_gpus = (sum(len(one.rows) for one in scenarios if one.runs == runs) for runs in ("never", "gpu"))
    equal = sum(row.equal for row in rows)
    both = f"{len(rows)} rows on both engines, {equal} of them equal"
    return f"{both}; {old} rows of 0.4.4 and {on_gpus} of GPUs on the stand-in alone.\n"


def _section(scenario: Scenario, seen: Seen) -> Iterator[str]:
    yield f"## {scenario.name}\n"
    yield f"{scenario.told} {_RUNS[scenario.runs]}\n"
    played = ("real", "stand-in", *("vLLM",) * scenario.vllm, "equal")
    heads = played if scenario.here else ("by its source", "stand-in", "source")
    yield f"| row | what is checked | {' | '.join(heads)} |"
    yield "|---" * (len(heads) + 2) + "|"
    real, stand_in, vllm = (seen.get((scenario.name, engine), {}) for engine in ENGINES)
    for row in scenario.rows:
        first = row.answer if not scenario.here else real.get(row.name, NOT_SEEN)
        second = stand_in.get(row.name, NOT_SEEN)
        third = (vllm.get(row.name, NOT_SEEN),) * scenario.vllm
        cells = (row.name, row.asks, first, second, *third, row.source or _verdict(row, first, second))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _verdict(row: Row, real: str, stand_in: str) -> str:
    if NOT_SEEN in (real, stand_in):
        return "?"
    return "yes" if real == stand_in else f"no: {row.why or 'a defect of the stand-in'}"
