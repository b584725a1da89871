"""What counts as a different answer, and what the engine may vary by itself."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.golden import document
from orchestrator.golden.compare import Answer, GoldenVerdict, PromptBaseline, accept, compare, overall
from orchestrator.golden.document import PROMPTS, Baseline, Subject


def answer(*tokens: int, logprob: float = -0.1, margin: float = 3.0) -> Answer:
    return Answer(
        tokens=tokens,
        logprobs=(logprob,) * len(tokens),
        margins=(margin,) * len(tokens),
        text=" ".join(map(str, tokens)),
    )


SURE = accept([answer(1, 2, 3, 4)] * 3)
TIED = accept([answer(1, 2, 3, 4, margin=0.01), answer(1, 2, 3, 4, logprob=-0.11)])
VARYING = accept([answer(1, 2, 3, 4), answer(1, 2, 9, 9)])


@pytest.mark.parametrize(
    ("accepted", "found", "verdict", "position"),
    [
        (SURE, answer(1, 2, 3, 4), GoldenVerdict.SAME, None),
        (SURE, answer(1, 2, 7, 4), GoldenVerdict.DIFFERS, 2),
        (SURE, answer(7, 2, 3, 4), GoldenVerdict.DIFFERS, 0),
        (SURE, answer(1, 2, 3), GoldenVerdict.DIFFERS, 3),
        (SURE, answer(1, 2, 3, 4, 5), GoldenVerdict.DIFFERS, 4),
        (TIED, answer(1, 2, 7, 4), GoldenVerdict.SAME, 2),
        (VARYING, answer(1, 2, 7, 7), GoldenVerdict.SAME, 2),
        (VARYING, answer(1, 7, 3, 4), GoldenVerdict.DIFFERS, 1),
    ],
)
def test_a_difference_counts_unless_the_engine_varied_there_itself(
    accepted: PromptBaseline, found: Answer, verdict: GoldenVerdict, position: int | None
) -> None:
    compared = compare("p", accepted, found)
    assert (compared.verdict, compared.position) == (verdict, position)
    assert bool(compared.tolerated) == (verdict is GoldenVerdict.SAME and position is not None)


def test_a_longer_answer_is_no_tie_beyond_what_was_accepted() -> None:
    assert compare("p", TIED, answer(1, 2, 3, 4, 5)).verdict is GoldenVerdict.DIFFERS


def test_one_prompt_that_differs_decides() -> None:
    same, other = compare("a", SURE, answer(1, 2, 3, 4)), compare("b", SURE, answer(9))
    assert overall([same]) is GoldenVerdict.SAME
    assert overall({"a": same, "b": other}) is GoldenVerdict.DIFFERS
    assert overall([]) is GoldenVerdict.NONE


answers = st.builds(
    lambda tokens, logprobs: Answer(
        tokens=tuple(tokens), logprobs=tuple(logprobs[: len(tokens)]), margins=(math.inf,) * len(tokens), text="t"
    ),
    st.lists(st.integers(0, 200_000), min_size=1, max_size=8),
    st.lists(st.floats(-50, 0), min_size=8, max_size=8),
)


@given(st.lists(answers, min_size=1, max_size=4))
def test_an_engine_agrees_with_its_own_baseline_which_survives_its_file(repeats: list[Answer]) -> None:
    accepted = accept(repeats)
    assert all(compare("p", accepted, one).same for one in repeats)
    subject = Subject(model="m", stack="s", layout="TP8 PP4")
    baseline = Baseline(subject=subject, made_at=1.0, prompts={"p": accepted})
    text = json.dumps(document.to_json(baseline), allow_nan=False)
    assert document.from_json(json.loads(text)) == baseline


@pytest.mark.parametrize("raw", [None, [], {}, {"format": 2}, {"format": 1, "model": "m"}, {"format": 1, "prompts": 3}])
def test_what_is_no_baseline_is_said_in_words(raw: object) -> None:
    with pytest.raises(ValueError, match=r"baseline|format"):
        document.from_json(raw)


def test_prompts_are_a_dozen_with_names_of_their_own() -> None:
    assert len({prompt.id for prompt in PROMPTS}) == len(PROMPTS) == 12
    assert max(len(prompt.text) for prompt in PROMPTS) > 2000


def test_a_subject_names_a_file_that_stays_in_its_folder() -> None:
    assert Subject(model="../a b", stack="s/1", layout="TP8 PP4").name == "..-a-b_s-1_TP8-PP4"
