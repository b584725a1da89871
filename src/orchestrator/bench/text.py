"""The prompts' text where nobody brings a data set: conversations in ShareGPT's form, the same on every call. Pure."""

from __future__ import annotations

import json
import random

NAME = "own text"
TURNS = 512
"""Conversations: more than the articles' 256 prompts, so that none is asked twice."""
_TEXT = """the a this that every one two three old new large small quick slow open plain river bridge train station
letter garden winter summer morning evening city village school teacher student question answer number table window
door paper water light stone tree bird horse machine engine network cable switch memory kernel file folder describe
explain compare list write read find build measure count begin end move carry hold turn follow and or but because when
while before after between below above near with without from into over under"""
_WORDS = _TEXT.split()


def own_text(conversations: int = TURNS) -> str:
    """JSON of so many conversations of two turns, of 40 to 400 words each."""
    chosen = random.Random(1)  # noqa: S311 - the same text on every call is what is wanted
    return json.dumps(
        [
            {"id": f"own-{place}", "conversations": [_turn(chosen, "human"), _turn(chosen, "gpt")]}
            for place in range(conversations)
        ]
    )


def _turn(chosen: random.Random, speaker: str) -> dict[str, str]:
    return {"from": speaker, "value": " ".join(chosen.choices(_WORDS, k=chosen.randint(40, 400)))}
