"""Well, slow and hung as a table: probes and signs of work as input, a verdict as output."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.node.engine.vitality import Probe, Vitality, with_engines_own
from orchestrator.protocol.staging import ProbeOrder

Step = tuple[str, float, float] | tuple[str, float]


def fed(*steps: Step, counters: str = "") -> Vitality:
    """('ok'|'no', began, ended) is a probe, ('work', at) a log line about a batch, ('pause', at) one that announces a
    long pause."""
    vitality = Vitality()
    reads = iter(counters or "a" * len(steps))
    for step in steps:
        if step[0] == "work":
            vitality.worked(step[1])
        elif step[0] == "pause":
            vitality.paused(step[1])
        elif step[0] == "compile":
            vitality.compiled(step[1])
        else:
            moved = next(reads) if step[0] == "no" else ""
            vitality.probed(Probe(step[0] == "ok", step[1], step[2], "/health_generate: HTTP 503", moved))  # type: ignore[misc]
    return vitality


NO = (("no", 0.0, 20.0), ("no", 20.5, 40.5), ("no", 41.0, 61.0))


@pytest.mark.parametrize(
    ("word", "steps", "counters"),
    [
        ("well", [], ""),
        ("well", [("ok", 0, 0.1)], ""),
        ("well", [("ok", 0, 14.5)], ""),
        ("slow", NO[:1], ""),
        ("slow", NO[:2], ""),
        ("hung", NO, ""),
        ("well", [*NO, ("ok", 62, 63)], ""),
        ("slow", [("ok", -5, -4), *NO[:2], ("ok", 41, 42), ("no", 47, 67), ("no", 68, 88)], ""),
        ("slow", [NO[0], NO[1], ("work", 50.0), NO[2]], ""),
        ("slow", [("work", 15.0), NO[0], ("work", 33.0), NO[1], ("work", 55.0), NO[2]], ""),
        ("hung", [("work", 0.1), NO[0], ("work", 20.6), NO[1], ("work", 41.1), NO[2]], ""),
        ("slow", NO, "aab"),
        ("hung", [*NO, ("no", 62, 82), ("no", 83, 103)], "abbbb"),
        ("slow", [*NO, ("work", 75.0), ("no", 62, 82)], ""),
        ("slow", [("no", float(at), at + 0.1) for at in range(10)], ""),
        ("hung", [("no", float(at), at + 0.1) for at in range(61)], ""),
    ],
    ids=[
        "nothing asked yet",
        "answers",
        "a pause between tokens as on the articles' cluster",
        "one probe without an answer",
        "two probes without an answer",
        "three probes without anything",
        "it answers again",
        "never three in a row",
        "a batch in the log during the last probe",
        "batches all the time",
        "only the probes' own prefill shows in the log",
        "a counter moves",
        "a counter moved once, three probes ago",
        "it works again after it hung",
        "refused at once, for ten seconds",
        "refused at once, for a minute",
    ],
)
def test_the_word(word: str, steps: list[Step], counters: str) -> None:
    assert fed(*steps, counters=counters).word == word


def test_words_for_the_operator() -> None:
    hung = fed(*NO)
    assert hung.detail == "/health_generate: HTTP 503; no new token, log line or counter change for 61 s"
    assert fed(NO[0], ("work", 30.0), NO[1]).detail == "/health_generate: HTTP 503; requests make progress"


def test_a_change_is_told_once() -> None:
    vitality = Vitality()
    words = [vitality.probed(Probe(False, at, at + 20)) for at in (0.0, 20.0, 40.0, 60.0)]
    assert words == [True, False, True, False]


@pytest.mark.parametrize(
    ("env", "answer_s"), [({}, 20.0), ({"ANSWER": "7"}, 7.0), ({"ANSWER": "soon"}, 20.0), ({"ANSWER": "0"}, 0.1)]
)
def test_the_engines_own_patience_is_taken_over(env: dict[str, str], answer_s: float) -> None:
    order = ProbeOrder(answer_env="ANSWER")
    assert with_engines_own(order, env) == replace(order, answer_s=answer_s)


@pytest.mark.parametrize(
    ("word", "steps"),
    [
        ("slow", [("pause", -10.0), *NO, ("no", 1000.0, 1020.0)]),
        ("hung", [("pause", -1300.0), *NO]),
        ("hung", [("pause", -10.0), ("work", -5.0), *NO]),
        ("well", [("pause", -10.0), *NO, ("ok", 62, 63)]),
    ],
    ids=["a pause", "one that lasts too long", "one that has ended", "it answers again"],
)
def test_an_engine_that_announced_a_pause_is_not_hung(word: str, steps: list[Step]) -> None:
    vitality = fed(*steps)
    assert vitality.word == word
    assert ("compiles kernels or replaces weights" in vitality.detail) == (word == "slow")


@pytest.mark.parametrize(("asked_s", "hung_at"), [(0.0, 60.0), (150.0, 160.0), (30.0, 40.0), (5.0, 40.0)])
def test_the_operators_patience_goes_before_the_engines(asked_s: float, hung_at: float) -> None:
    vitality = Vitality(ProbeOrder(hung_after_s=asked_s))
    for at in range(0, 400, 20):
        vitality.probed(Probe(False, float(at), at + 20.0))
        assert vitality.word == ("hung" if at + 20.0 >= hung_at else "slow"), at


def test_half_an_hour_of_compiling_is_slow_and_silence_after_it_is_hung() -> None:
    rounds = [(("compile", at + 19.0), ("no", at, at + 20.0)) for at in range(0, 1800, 21)]
    compiled = [step for pair in rounds for step in pair]
    assert fed(*compiled).word == "slow" and "it compiles kernels" in fed(*compiled).detail
    assert fed(*compiled, *((step, at + 1900.0, end + 1900.0) for step, at, end in NO)).word == "hung"
