"""What counts as a different answer, what the engine may vary by itself, and token ids in answers of SGLang."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.golden.answers import (
    PROMPTS,
    Answer,
    Baseline,
    GoldenVerdict,
    PromptBaseline,
    Subject,
    accept,
    answer_of,
    compare,
    generation,
    overall,
)


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
    ("accepted", "found", "same", "position"),
    [
        (SURE, answer(1, 2, 3, 4), True, None),
        (SURE, answer(1, 2, 7, 4), False, 2),
        (SURE, answer(7, 2, 3, 4), False, 0),
        (SURE, answer(1, 2, 3), False, 3),
        (SURE, answer(1, 2, 3, 4, 5), False, 4),
        (TIED, answer(1, 2, 7, 4), True, 2),
        (TIED, answer(1, 2, 3, 4, 5), False, 4),
        (VARYING, answer(1, 2, 7, 7), True, 2),
        (VARYING, answer(1, 7, 3, 4), False, 1),
        (SURE, answer(1, 2, 3, 4, logprob=math.nan), False, 0),
        (VARYING, answer(1, 2, 7, 7, logprob=math.nan), False, 0),
    ],
)
def test_a_difference_counts_unless_the_engine_varied_there_itself(
    accepted: PromptBaseline, found: Answer, same: bool, position: int | None
) -> None:
    compared = compare("p", accepted, found)
    assert (compared.same, compared.position) == (same, position)
    assert bool(compared.tolerated) == (same and position is not None)


def test_one_prompt_that_differs_decides() -> None:
    same, other = compare("a", SURE, answer(1, 2, 3, 4)), compare("b", SURE, answer(9))
    assert overall([same]) is GoldenVerdict.SAME
    assert overall([same, other]) is GoldenVerdict.DIFFERS
    assert overall([]) is GoldenVerdict.NONE


ANSWERS = st.builds(
    lambda tokens, logprobs: Answer(
        tokens=tuple(tokens), logprobs=tuple(logprobs[: len(tokens)]), margins=(None,) * len(tokens), text="t"
    ),
    st.lists(st.integers(0, 200_000), min_size=1, max_size=8),
    st.lists(st.floats(-50, 0), min_size=8, max_size=8),
)


@given(st.lists(ANSWERS, min_size=1, max_size=4))
def test_an_engine_agrees_with_its_own_baseline_which_survives_its_file(repeats: list[Answer]) -> None:
    accepted = accept(repeats)
    assert all(compare("p", accepted, one).same for one in repeats)
    baseline = Baseline(model="m", stack="s", layout="TP8 PP4", made_at=1.0, prompts={"p": accepted})
    text = json.dumps(baseline.as_json(), allow_nan=False)
    assert Baseline.read(json.loads(text)) == baseline


def test_prompts_are_a_dozen_with_names_of_their_own() -> None:
    assert len(PROMPTS) == 12
    assert max(map(len, PROMPTS.values())) > 2000


def test_a_subject_names_a_file_that_stays_in_its_folder() -> None:
    assert Subject(model="../a b", stack="s/1", layout="TP8 PP4").name == "..-a-b_s-1_TP8-PP4"


RECORDED: dict[str, Any] = {
    "text": " Paris.",
    "output_ids": [12095, 16],
    "meta_info": {
        "id": "7c1d",
        "finish_reason": {"type": "length", "length": 2},
        "output_token_logprobs": [[-0.25, 12095, None], [-1.5, 16, None]],
        "output_top_logprobs": [[[-0.25, 12095, None], [-2.25, 264, None]], [[-1.5, 16, None]]],
        "completion_tokens": 2,
    },
}


def test_an_answer_brings_ids_log_probabilities_and_margins() -> None:
    wanted = Answer(tokens=(12095, 16), logprobs=(-0.25, -1.5), margins=(2.0, None), text=" Paris.")
    assert answer_of(RECORDED) == wanted


def test_null_is_no_number() -> None:
    meta = {
        "output_token_logprobs": [[-0.25, 1, None], [None, 0, None]],
        "output_top_logprobs": [[], [[None, 0, None]] * 2],
    }
    found = answer_of({"text": "!", "meta_info": meta})
    assert (found.numbers, found.margins) == (1, (None, None))


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"text": "x"},
        {"text": "x", "meta_info": {}},
        {**RECORDED, "meta_info": {"output_token_logprobs": []}},
    ],
)
def test_an_answer_without_ids_is_said_in_words(document: Any) -> None:
    with pytest.raises(ValueError, match="answer"):
        answer_of(document)


def test_a_request_is_greedy_and_wants_ids() -> None:
    body = generation("Hello", 8)
    assert body["sampling_params"] == {"temperature": 0, "max_new_tokens": 8}
    assert body["return_logprob"] is True
