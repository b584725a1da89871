"""Token ids in answers of SGLang."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestrator.golden.greedy import answer_of, request

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
    answer = answer_of(RECORDED)
    assert (answer.tokens, answer.logprobs, answer.text) == ((12095, 16), (-0.25, -1.5), " Paris.")
    assert answer.margins == (2.0, math.inf)


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
    body = request("Hello", 8)
    assert body["sampling_params"] == {"temperature": 0, "max_new_tokens": 8}
    assert body["return_logprob"] is True
