"""tests/gpu/measured.md: what the proof found, failures too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.gpu.figures import Figures, Result

PAGE = Path(__file__).with_name("measured.md")

_HEAD = """\
# Measured on GPUs

Written by `make gpu` (tests/gpu). `lab up --gpus host` divided one machine's GPUs among several nodes: each
node has its own network, processes and device files, and real SSH. The engine is real, the model a DeepSeek-V3 of 80 MB
in block FP8, made for the test and re-blocked by `checkpoint reblock`; nodes communicate over TCP on one host. So this
page shows how the product behaves with real CUDA processes. It says nothing about RDMA, PCIe switches, L40S, loading
times of 700 GB, or a large model's tokens per second.

The machine of the newest results; every result names its GPUs:
"""


_KILLS = """\
SIGKILL to one rank's process: `status` named node, TP rank and signal in {right} of {of} kills.
Seconds are from the kill: until `status` had answered with the cause, until the main threads of all the
gang's processes were dead, and until their memory was free.

| layout | killed | load | cause in status | reported s | all dead s | memory free s | right | machine | when |
|---|---|---|---|---|---|---|---|---|---|"""
_SHOWN = {"as it should": "as expected", "otherwise": "failed", "not done": "not run"}

_NOTES = {
    "bench": """\
On *bench*: tokens a second rose from run to run, and the client by hand always ran after ours. Ours is now
measured first and last. On 2026-11-26 the client ended once since it met an agent's probe, and a run now starts again
then; the next time the step's 300 s were over before the second `bench`, which runs its load up to five times, had
ended. Its verdict by those runs was not yet seen on GPUs; the step now wants 400 s.
""",
    "up --nettest": """\
On *up --nettest*: the all-reduce of 8192 bytes took 66 us in the test before and 394 us in this one, between two nodes
of one machine over TCP, and the next tests measured 73 to 79 us. An all-reduce is now measured twice, and the better
try counts.
""",
    "degrade": """\
On *degrade*: the first time, the guard had the gang served by the other node alone, it answered correctly there, and
`status` reported *warming* on both nodes when the step's 88 s from the lost node's power-on were over; it now waits
longer.
The second time the engine was healthy on the other node 78 s after the loss, and the step read the status
before the gang's canary was answered; it now waits for *degraded*. The third time it saw both, the gang degraded and
back on all nodes. There the guard staged the other plan 47 s after the gang had failed, with `--degrade-after 5s`: each
of its looks asked the lost node twice, and waited 15 s for the second answer. It now asks once; in a rehearsal with the
stand-in that made 29 s from the loss to *degraded* of 60 s.
""",
}


def page(figures: Figures, head: str = _HEAD, *, details: bool = True) -> str:
    """The complete page below such a head. details: with all figures of every step, as they are"""
    return "\n".join(_lines(figures, head, details=details)).rstrip() + "\n"


def _lines(figures: Figures, head: str, *, details: bool) -> Iterator[str]:
    yield f"{head}\n| | |\n|---|---|"
    yield from (f"| {name} | {value} |" for name, value in figures.machine.items())
    yield ""
    yield from _kills(figures.of_step("kill"))
    yield "## Steps\n\n| step | outcome | what was seen | s | machine | when |\n|---|---|---|---|---|---|"
    for result in _last_of_each(figures):
        outcome = _SHOWN[result.outcome]
        seen = f"{_cell(result.said)} | {result.seconds:.0f} | {_cards(result)} | {result.at}"
        yield f"| {result.step} | {outcome} | {seen} |"
    yield ""
    yield from _failures(figures)
    if details:
        yield from _details(figures)


def kills_in_short(figures: Figures) -> str:
    """'28 of 28 on H200 and H100'."""
    kills = figures.of_step("kill")
    cards = dict.fromkeys(_cards(one).rpartition(" ")[2] for one in kills)
    return f"{sum(map(_right, kills))} of {len(kills)} on {' and '.join(cards)}"


def _kills(kills: list[Result]) -> Iterator[str]:
    yield "## A serving rank is killed\n"
    if not kills:
        yield "Not run.\n"
        return
    yield _KILLS.format(right=sum(map(_right, kills)), of=len(kills))
    for one in kills:
        have = one.figures
        cause = have.get("cause") or have.get("first")
        told = one.said if not cause else cause[3] if cause[1] is None else f"{cause[0]} TP{cause[1]} signal {cause[2]}"
        cells = [
            f"{have.get('gang', '')}, TP{have.get('ranks', '')}",
            f"{have.get('node', '')} TP{have.get('tp_rank', '')}",
            "under load" if have.get("load") else "idle",
            _cell(told),
            *(str(have.get(name, "")) for name in ("told_s", "processes_dead_s", "memory_free_s")),
            "yes" if _right(one) else "NO",
            _cards(one),
            one.at,
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _last_of_each(figures: Figures) -> list[Result]:
    last = {one.step: one for one in figures.results if one.step != "kill" and one.outcome != "not done"}
    never = {one.step: one for one in figures.results if one.step != "kill" and one.step not in last}
    return [*last.values(), *never.values()]


def _failures(figures: Figures) -> Iterator[str]:
    wrong = [one for one in figures.results if one.outcome == "otherwise"]
    yield "## Failures\n"
    if not wrong:
        yield "None."
    yield from (f"- {one.at}, {one.step}: {_cell(one.said)}{_since(figures, one)}" for one in wrong)
    yield ""
    yield from (note for step, note in _NOTES.items() if any(one.step == step for one in wrong))


def _since(figures: Figures, failure: Result) -> str:
    """What became of it; a kill is one of many."""
    if failure.step == "kill" or not figures.passed(failure.step):
        return ""
    return f" (as expected when run again, {figures.of_step(failure.step)[-1].at})"


def _cards(result: Result) -> str:
    """'2 x NVIDIA H100': the machine's own words have the host and the memory's kind too."""
    return result.gpus.partition(",")[0].removesuffix(" 80GB HBM3")


def _right(result: Result) -> bool:
    return result.outcome == "as it should"


def _details(figures: Figures) -> Iterator[str]:
    yield "## Figures\n"
    for result in _last_of_each(figures):
        if result.figures:
            words = "; ".join(f"{name}: {_value(value)}" for name, value in result.figures.items())
            yield f"- {result.step} ({result.at}): {_cell(words)}"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value).replace('"', "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
