"""What a changed plan must be as good as: the verdict by noise, the page, and which benchmarks count."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.cli.options import share
from orchestrator.golden.gate import (
    SPEED,
    GatePart,
    GateReport,
    OldSpeed,
    decided,
    kernels_part,
    old_speeds,
    questions_part,
    speed_part,
    start_part,
)
from orchestrator.golden.hooks import gate
from orchestrator.golden.questions import Graded, Question
from orchestrator.golden.steps.gate_page import gate_html, page_of
from orchestrator.planning.plan_file import SettingChange
from orchestrator.protocol.errors import InputError

LOAD = {"input": 20, "output": 10, "prompts": 8, "rate": 100, "concurrency": 4}


def runs(*speeds: float) -> tuple[dict[str, float], ...]:
    return tuple({SPEED: speed} for speed in speeds)


@pytest.mark.parametrize(
    ("old", "new", "passed", "words"),
    [
        ((100, 100), (100, 100), True, ""),
        ((100, 100), (140, 140), True, ""),
        ((100, 100), (96, 96), True, ""),
        ((100, 100), (80, 80), False, "20% slower"),
        ((100, 100), (60, 120), True, "may explain"),
        ((60, 140), (80, 80), True, "may explain"),
        ((99, 101), (49, 51), False, "50% slower"),
    ],
)
def test_slower_counts_beyond_the_noise_of_both(
    old: tuple[float, ...], new: tuple[float, ...], passed: bool, words: str
) -> None:
    part = speed_part(OldSpeed(LOAD, runs(*old)), runs(*new), 0.05)
    assert part.passed is passed and words in part.why
    assert bool(part.why) is bool(words)


def test_it_measures_until_the_runs_leave_one_verdict() -> None:
    old = OldSpeed(LOAD, runs(100, 100))
    assert not decided(old, runs(50), 0.05), "one run has no noise"
    assert decided(old, runs(100, 100.1), 0.05) and decided(old, runs(50, 50.1), 0.05)
    assert not decided(old, runs(80, 110), 0.05)


def record(at: int, **change: Any) -> dict[str, Any]:
    usual = {"gang": "gang0", "plan_id": "old", "dataset": "own", "load": LOAD, "runs": list(runs(at, at))}
    return {**usual, "serving": {SPEED: at}, **change}


def test_the_newest_bench_of_each_load_under_the_old_plan_counts() -> None:
    other = {**LOAD, "concurrency": 8}
    records = [
        record(1),
        record(2),
        record(3, plan_id="before"),
        record(4, gang="gang1"),
        record(5, dataset="others.json"),
        record(6, load=other),
        record(7, load=other, runs=None),
        record(8, serving={}, runs=None),
    ]
    speeds = old_speeds(records, "old", "gang0", "own")
    assert [(each.name, each.runs[0][SPEED]) for each in speeds] == [("speed, 4 at once", 2), ("speed, 8 at once", 7)]


def report(*parts: GatePart) -> GateReport:
    changes = (SettingChange("node0", "NCCL_ALGO", "Ring", "Tree"), SettingChange("node0", "--page-size", None, "64"))
    return GateReport(gang="gang0", old="aaa", new="bbb", changes=changes, parts=parts)


def test_the_page_has_both_plans_and_the_reason() -> None:
    answers = GatePart(name="answers", old="12 accepted", new="0 the same", passed=False, why="english-fact: token 3")
    speed = GatePart(name="speed", old="no bench of this plan", new="-", passed=None)
    failed = report(answers, speed)
    assert not failed.passed and failed.why == "answers: english-fact: token 3"
    text = "\n".join(failed.lines())
    assert text.startswith("gate of gang0: not passed\n  changed: node0: NCCL_ALGO: Ring -> Tree;")
    assert "old aaa" in text and "new bbb" in text and "not compared" in text
    told = {"verdict": "not passed", "old": "aaa", "new": "bbb", "why": failed.why, "page": list(failed.lines())}
    assert failed.as_json() == told
    assert report(speed).passed, "what nobody measured before decides nothing"


def test_a_plan_that_was_refused_has_its_cause_on_the_page() -> None:
    failed = report(start_part("gang gang0: node1 TP1", "a rank ran out of memory\n    | CUDA out of memory"))
    assert not failed.passed and "ran out of memory" in failed.why and "CUDA" not in failed.why


def test_the_page_for_a_browser_has_all_of_it() -> None:
    cause = "gang gang0: node1 TP1: a rank ran out of memory\n    | CUDA out of memory"
    failed = replace(report(start_part("node1 TP1", "a rank ran out of memory")), cause=cause, fix="less KV cache")
    page = gate_html(page_of(failed, "run-1"))
    for words in ("not passed", "| CUDA out of memory", "less KV cache", "run-1", "<td>not there</td><td>64</td>"):
        assert words in page
    assert "Why the new plan did not serve" not in gate_html(page_of(report(), "run-1"))


@pytest.mark.parametrize(
    ("right", "passed", "why"),
    [([True, True], True, ""), ([True, False, False], None, "2 could not be run"), ([], None, "")],
)
def test_a_kernel_that_could_not_be_run_is_unknown(right: list[bool], passed: bool | None, why: str) -> None:
    part = kernels_part(right, ("node0",))
    assert part.passed is passed and part.why.startswith(why) and bool(part.why) is bool(why)
    assert part.new == f"{sum(right)} of {len(right)} right on node0"
    assert report(part).passed


def test_fewer_right_answers_than_the_old_plans_fail() -> None:
    questions = [Question("a", "1"), Question("b", "2")]
    both, first, second = (Graded(questions, answers) for answers in (["1", "2"], ["1", "no"], ["no", "2"]))
    failed = questions_part(both, first)
    assert (failed.passed, failed.old, failed.new) == (False, "2 of 2 right", "1 of 2 right")
    assert failed.why == "1 fewer; question 2, wanted '2', ends now with 'no'"
    assert questions_part(first, second).passed and questions_part(first, both).passed


def asked(**options: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"gate": True, "gate_within": None, "gate_eval": None, "timeout": 60.0, **options})


def test_the_options() -> None:
    assert gate(asked(gate=False)) is None
    usual, wider = gate(asked()), gate(asked(gate_within=share("12.5%")))
    assert usual is not None and wider is not None
    assert (usual.within, wider.within) == (0.05, 0.125)
    for alone in ({"gate_within": 0.1}, {"gate_eval": "questions.jsonl"}):
        with pytest.raises(InputError, match="without --gate"):
            gate(asked(gate=False, **alone))
    for wrong in ("", "%", "-5%", "101%", "5 %", "0x5", "1e1", "\u0665%"):
        with pytest.raises(argparse.ArgumentTypeError):
            share(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match="found '0', wanted a percentage from 1 to 100"):
        share("0", least_percent=1)
