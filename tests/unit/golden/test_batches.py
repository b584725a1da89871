"""Prompts in batches: what is asked, what is a tie, and what is another text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orchestrator.golden.answers import PROMPTS, Answer, PromptBaseline
from orchestrator.golden.batches import (
    MOST,
    MOST_NOISE,
    OTHERS,
    BatchedAnswer,
    batches,
    difference,
    differing,
    noise_in,
    sizes,
)

MARGIN = 0.04
ACCEPTED = {
    "sure": PromptBaseline(tokens=(1, 2, 3), logprobs=(-0.1,) * 3, margins=(5.0,) * 3, varies_from=None, noise=0.0),
    "tie": PromptBaseline(
        tokens=(1, 2, 3), logprobs=(-0.1,) * 3, margins=(5.0, MARGIN, 5.0), varies_from=None, noise=0.0
    ),
}


def batched(prompt: str, *tokens: int, shift: float = 0.0) -> BatchedAnswer:
    answer = Answer(tokens=tokens, logprobs=(-0.1 - shift,) * len(tokens))
    return BatchedAnswer(prompt=prompt, request=3, beside=7, answer=answer)


@given(some.integers(2, MOST))
def test_every_accepted_prompt_is_asked_at_every_size_among_others(most: int) -> None:
    asked = batches(most, tuple(PROMPTS))
    for size in sizes(most):
        names = [name for batch in asked if len(batch) == size for name in batch]
        assert {*PROMPTS} <= {*names}
    for batch in asked:
        assert len(batch) in sizes(most) and {*batch} & {*OTHERS} and {*batch} & {*PROMPTS}


def test_the_others_are_of_other_lengths_and_names() -> None:
    assert len({len(text) for text in OTHERS.values()}) == len(OTHERS)
    assert not {*OTHERS} & {*PROMPTS}


@pytest.mark.parametrize(("shift", "noise"), [(0.0, 0.0), (0.03, 0.03), (3.0, MOST_NOISE)])
def test_a_batchs_noise_is_that_of_the_tokens_that_stay(shift: float, noise: float) -> None:
    answers = [batched("sure", 1, 2, 3, shift=shift), batched("other-1", 9, shift=9.0), batched("tie", 9, 9, 9)]
    assert noise_in(ACCEPTED, answers) == pytest.approx(noise)


@pytest.mark.parametrize(
    ("answer", "noise", "wrong"),
    [
        (batched("sure", 1, 2, 3), 0.0, False),
        (batched("sure", 1, 9, 3), MOST_NOISE, True),
        (batched("tie", 1, 9, 3), 0.0, True),
        (batched("tie", 1, 9, 3), MARGIN / 2, False),
        (batched("tie", 1, 2), MOST_NOISE, True),
        (batched("other-1", 9, 9), 0.0, False),
    ],
)
def test_only_a_tie_may_end_otherwise(answer: BatchedAnswer, noise: float, *, wrong: bool) -> None:
    assert [each for each, _ in differing(ACCEPTED, [answer], noise)] == ([answer] if wrong else [])


def test_a_difference_names_request_place_and_what_is_right_alone() -> None:
    ((answer, compared),) = differing(ACCEPTED, [batched("sure", 1, 2, 9)], 0.0)
    told = difference(answer, compared, alone=True)
    assert (told.request, told.beside, told.position) == (3, 7, 2)
    assert told.words.startswith("sure: request 3 of 8 at once: from token 3 on") and "alone it is right" in told.words
