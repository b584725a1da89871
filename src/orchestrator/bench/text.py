"""The prompts' text if no data set is given: conversations in ShareGPT's format, the same on every call. Pure."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass

NAME = "own text"
TURNS = 512
"""Conversations: more than the articles' 256 prompts, so that none is asked twice."""
_TEXT = """the a this that every one two three old new large small quick slow open plain river bridge train station
letter garden winter summer morning evening city village school teacher student question answer number table window
door paper water light stone tree bird horse machine engine network cable switch memory kernel file folder describe
explain compare list write read find build measure count begin end move carry hold turn follow and or but because when
while before after between below above near with without from into over under"""
_WORDS = _TEXT.split()


LONGEST = 32 << 20
"""Bytes of a data set: it is sent to the leader unchanged."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Prompts of a run. name: as records say it; text: what the client reads"""

    name: str
    text: str


def dataset_of(name: str, text: str, prompts: int) -> Dataset:
    """Somebody's own file in ShareGPT's form. Raises ValueError where the client could not draw `prompts` from it."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise ValueError(f"it is no JSON: {wrong}") from None
    if not isinstance(entries, list):
        form = "a list of {conversations: [{value: text}, ...]}"
        raise ValueError(f"found no list, wanted ShareGPT's form: {form}")  # noqa: TRY004 - the file's fault
    usable = sum(map(_is_conversation, entries))
    if usable < prompts:
        raise ValueError(f"{usable} of its {len(entries)} entries are conversations of two turns; wanted {prompts}")
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return Dataset(f"{name} (sha256 {digest})", text)


def _is_conversation(entry: object) -> bool:
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list) or len(turns) < 2:
        return False
    values = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
    return all(isinstance(value, str) and value.strip() for value in values)


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
