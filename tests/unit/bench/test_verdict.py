"""How a figure is judged against an expected one, and which run a run is compared with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.bench.verdict import (
    BenchVerdict,
    applying,
    causes,
    held_against,
    judge,
    looks_like_wrong_wiring,
    mean_of,
    other_prompts,
    overall,
)
from orchestrator.loading.profiles import load_profile
from orchestrator.model.profile import Load

INT8 = load_profile("DeepSeek-R1-Channel-INT8").expected
CASE = {"stack": "sglang-0.4.4-l40s", "layout": "TP32", "gpu": "NVIDIA L40S", "load": Load()}


@pytest.mark.parametrize(
    ("name", "found", "expected", "verdict"),
    [
        ("output_tok_s", 584.64, 584.64, BenchVerdict.EXPECTED),
        ("output_tok_s", 90, 100, BenchVerdict.EXPECTED),
        ("output_tok_s", 300, 100, BenchVerdict.EXPECTED),
        ("output_tok_s", 89, 100, BenchVerdict.NOTE),
        ("output_tok_s", 80, 100, BenchVerdict.NOTE),
        ("output_tok_s", 79, 100, BenchVerdict.SLOW),
        ("duration_s", 110, 100, BenchVerdict.EXPECTED),
        ("duration_s", 120, 100, BenchVerdict.NOTE),
        ("duration_s", 130, 100, BenchVerdict.SLOW),
    ],
)
def test_within_ten_percent_is_as_expected_and_below_eighty_is_slow(
    name: str, found: float, expected: float, verdict: BenchVerdict
) -> None:
    (one,) = judge({name: found}, {name: expected})
    assert one.verdict is verdict
    assert overall([one]) is verdict


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        ((100.0,), BenchVerdict.EXPECTED),  # one says nothing of its noise
        ((100.0, 101.0), BenchVerdict.EXPECTED),
        ((90.0, 90.5), BenchVerdict.EXPECTED),  # on the border, by less than lies between two verdicts
        ((88.0, 101.0), BenchVerdict.UNDECIDED),
        ((70.0, 100.0, 85.0, 99.0, 72.0), BenchVerdict.UNDECIDED),
        ((90.0, 96.0, 92.0, 93.0), BenchVerdict.EXPECTED),
        ((40.0, 60.0, 50.0), BenchVerdict.SLOW),  # far from every border
        ((150.0, 190.0, 160.0), BenchVerdict.EXPECTED),
    ],
)
@pytest.mark.parametrize("name", ["output_tok_s", "itl_mean_ms"])
def test_runs_that_differ_more_than_the_verdicts_decide_nothing(
    name: str, runs: tuple[float, ...], verdict: BenchVerdict
) -> None:
    values = runs if name == "output_tok_s" else tuple(10_000 / speed for speed in runs)
    served = [{name: value} for value in values]
    judged = judge(mean_of(served), {name: 100.0}, served)
    assert overall(judged) is verdict, judged
    slow_too = judge({"duration_s": 200}, {"duration_s": 100})
    assert overall((*judged, *slow_too)) is BenchVerdict.SLOW


def test_a_tail_is_judged_and_does_not_decide() -> None:
    judged = judge({"itl_max_ms": 900, "output_tok_s": 10}, {"itl_max_ms": 100, "output_tok_s": 10})
    assert [one.verdict for one in judged] == [BenchVerdict.EXPECTED, BenchVerdict.SLOW]
    assert overall(judged) is BenchVerdict.EXPECTED
    assert overall(judge({"itl_max_ms": 900}, {"itl_max_ms": 100})) is BenchVerdict.NONE
    assert overall(()) is BenchVerdict.NONE


def test_the_articles_wrong_network_fails_the_gate_of_the_right_one() -> None:
    entries = applying(INT8, **CASE)  # type: ignore[arg-type]
    assert "--dataset" in other_prompts(held_against(entries), "own text")
    assert other_prompts(held_against(entries), "sharegpt.json") == other_prompts(None, "own text") == ""
    right = held_against(entries)
    wrong = next(entry for entry in entries if entry.wiring == "wrong")
    assert right is not None
    found = dict(wrong.figures)
    assert overall(judge(found, dict(right.figures))) is BenchVerdict.SLOW
    assert looks_like_wrong_wiring(found, entries) is wrong
    assert looks_like_wrong_wiring(dict(right.figures), entries) is None


@pytest.mark.parametrize(
    "other", [{"stack": "sglang-0.5.23"}, {"layout": "TP8 PP4"}, {"gpu": "NVIDIA L20"}, {"load": Load(concurrency=1)}]
)
def test_another_case_is_not_judged(other: dict[str, object]) -> None:
    assert applying(INT8, **{**CASE, **other}) == ()  # type: ignore[arg-type]
    assert held_against(()) is None


def test_causes_come_in_the_order_of_their_evidence() -> None:
    found = causes(
        transport=["traffic on TCP"],
        remarks=["the disk is slow", "no tuned MoE kernel config"],
        graph_batch=32,
        load=Load(),
        throttled=["node0: GPU 1 is throttled"],
        grown=["node1: mlx5_0:1 counters/symbol_error grew by 7 during the run"],
        network="node1 - node2 is slow",
        wrong=INT8[1],
    )
    assert [words.split()[0] for words in found] == ["traffic", "no", "CUDA", "node0:", "node1:", "the", "the"]
    assert "the last network test: node1 - node2" in found[-2]
    assert causes(transport=(), remarks=(), graph_batch=128, load=Load(), wrong=None) == ()
    (eager,) = causes(transport=(), remarks=(), graph_batch=0, load=Load(), wrong=None)
    assert eager.startswith("no CUDA graph is captured, but 128 requests run at once: their steps run eager")
    assert "1.0 to 1.4 times" in eager and "a guess" in eager
    assert causes(transport=(), remarks=(), graph_batch=32, shares=4, load=Load(), wrong=None) == ()
    (shared,) = causes(transport=(), remarks=(), graph_batch=32, shares=2, load=Load(), wrong=None)
    assert "but 128 requests run at once in batches of 64:" in shared and "With graphs up to 64" in shared
    short, tcp = causes(transport=("TCP",), remarks=(), graph_batch=None, load=Load(), wrong=None, duration_s=0.74)
    assert "took 0.7 s" in short and "--prompts" in short and tcp == "TCP"


@given(st.floats(0.001, 1e9), st.floats(0.001, 1e9))
def test_faster_is_never_worse(found: float, expected: float) -> None:
    (more,) = judge({"output_tok_s": found}, {"output_tok_s": expected})
    (faster,) = judge({"output_tok_s": found * 2}, {"output_tok_s": expected})
    assert faster.speed > more.speed
