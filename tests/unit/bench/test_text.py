"""Data sets: ours, and a user's own in ShareGPT's format."""

from __future__ import annotations

import json

import pytest

from orchestrator.bench.text import dataset_of, own_text

TURN = {"from": "human", "value": "why"}
EMPTY = {"from": "gpt", "value": " "}


def test_our_own_text_is_a_data_set_and_always_the_same() -> None:
    one = dataset_of("own.json", own_text(16), 16)
    assert one == dataset_of("own.json", own_text(16), 16)
    assert one.name.startswith("own.json (sha256 ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"a": 1}', "ShareGPT"),
        (
            json.dumps([{"conversations": [TURN, TURN]}, {"conversations": [TURN]}, {"conversations": [1, 2]}, 7]),
            "1 of",
        ),
        (json.dumps([]), "0 of its 0"),
        (json.dumps([{"conversations": [TURN, EMPTY]}, {"conversations": [TURN, TURN]}]), "1 of its 2"),
    ],
)
def test_what_the_client_could_not_draw_from_is_told(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dataset_of("x", text, 2)
