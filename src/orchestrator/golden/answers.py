"""Accepted answers: how they are asked for, made from repeated ones, compared with a new one and kept. Pure.

Two runs of one engine may differ where two tokens are nearly equally likely: the sum of an all-reduce depends on its
order, a kernel on the batch it sees. What an engine varies by itself is measured when a baseline is accepted, and
only that much is tolerated later.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import takewhile
from typing import Any

from orchestrator.protocol.message import Message, schema

NOISE_TIMES = 2.0
"""Two log-probabilities, each uncertain by the noise, may change places when they are this many times it apart."""
FORMAT = 1
TOO_LONG = "longer than the model's context length"
"""What SGLang says of such a prompt (managers/tokenizer_manager.py)."""
PATH = "/generate"
_RUNNERS_UP = 2


class GoldenVerdict(str, Enum):
    """Of one gang: none where no baseline was accepted."""

    SAME = "same"
    DIFFERS = "differs"
    NONE = "none"


@schema(frozen=True, slots=True, kw_only=True)
class Answer(Message):
    """One greedy answer. tokens: ids; logprobs: of each token, natural logarithm; margins: how much more likely than
    the runner-up each token was (difference of the two log-probabilities), None where the engine named none; text: as
    decoded."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    margins: tuple[float | None, ...] = ()
    text: str = ""

    @property
    def numbers(self) -> int:
        """How many of its tokens come before the first whose log-probability is NaN."""
        return next((place for place, logprob in enumerate(self.logprobs) if math.isnan(logprob)), len(self.tokens))


@schema(frozen=True, slots=True, kw_only=True)
class PromptBaseline(Answer):
    """A prompt's accepted answer. varies_from: index of the first token that the repetitions did not share, None where
    they were alike; noise: the largest difference between the log-probabilities that they gave the same token."""

    varies_from: int | None
    noise: float


_LONGEST_NAME = 200
"""A file's name has 255 bytes; a node may report any name of a model."""


@schema(frozen=True, slots=True, kw_only=True)
class Subject(Message):
    """What a baseline is for: the same checkpoint by another stack or layout may rightly answer otherwise."""

    model: str
    stack: str
    layout: str

    @property
    def name(self) -> str:
        """As a file is named."""
        plain = "_".join((self.model, self.stack, self.layout))
        return re.sub(r"[^A-Za-z0-9._-]", "-", plain)[:_LONGEST_NAME]

    def __str__(self) -> str:
        return f"{self.model} by {self.stack} at {self.layout}"


@schema(frozen=True, slots=True, kw_only=True)
class Baseline(Subject):
    """The document that is stored. made_at: epoch seconds; prompts: by prompt id; batch_noise: by how much a batch
    changes log-probabilities, at most (natural logarithm), None where it was not measured; drafts: the accepted engine
    drafted."""

    format: int = FORMAT
    made_at: float
    prompts: Mapping[str, PromptBaseline]
    batch_noise: float | None = None
    drafts: bool = False

    @property
    def known(self) -> dict[str, PromptBaseline]:
        """Of its prompts those that this release can ask: a later one may have accepted more."""
        return {name: self.prompts[name] for name in PROMPTS if name in self.prompts}

    def noise_of(self, *, drafts: bool) -> float:
        """How much an engine may change log-probabilities of a prompt asked alone, beside what it varies by itself: one
        that drafts checks several tokens at once, as a batch.

        Seen with SGLang 0.5.23 on an H200 (docs/proven.md)."""
        return self.batch_noise or 0.0 if drafts or self.drafts else 0.0

    @property
    def varies(self) -> tuple[str, ...]:
        """Prompts whose answer the accepted engine varied by itself."""
        return tuple(prompt for prompt, accepted in self.prompts.items() if accepted.varies_from is not None)

    @property
    def how_many(self) -> str:
        """`11 of 12 answers`."""
        return f"{len(self.prompts)}{f' of {len(PROMPTS)}' if self.left_out else ''} answers"

    @property
    def left_out(self) -> tuple[str, ...]:
        """Prompts that were longer than its context."""
        return tuple(name for name in PROMPTS if name not in self.prompts)


@schema(frozen=True, slots=True, kw_only=True)
class AnswerComparison(Message):
    """position: index of the first differing token, None where the answers agree; tolerated: why a difference is none,
    in words, '' where there is nothing to tolerate."""

    id: str
    same: bool
    position: int | None = None
    expected: str = ""
    found: str = ""
    tolerated: str = ""

    @property
    def words(self) -> str:
        """Of one that differs, for a person."""
        return f"{self.id}: from token {(self.position or 0) + 1} on {self.expected!r} is now {self.found!r}"


def accept(answers: Sequence[Answer]) -> PromptBaseline:
    """The baseline that repeated answers of one engine to one prompt give; the first of them is kept."""
    first, *others = answers
    varies_from = min((_shared(first, other) for other in others if other.tokens != first.tokens), default=None)
    noise = max((logprob_distance(first, other) for other in others), default=0.0)
    return PromptBaseline(
        tokens=first.tokens,
        logprobs=first.logprobs,
        margins=first.margins,
        text=first.text,
        varies_from=varies_from,
        noise=noise,
    )


def logprob_distance(first: Answer, other: Answer) -> float:
    """The largest difference between the log-probabilities of the tokens that both begin with."""
    shared = _shared(first, other)
    both = zip(first.logprobs[:shared], other.logprobs[:shared], strict=False)
    return max((abs(mine - theirs) for mine, theirs in both), default=0.0)


def compare(prompt: str, accepted: PromptBaseline, answer: Answer, *, noise: float = 0.0) -> AnswerComparison:
    """An answer against its baseline: the same, tolerated, or different from a position on.

    noise: of log-probabilities, where it was asked for otherwise than the accepted one; at least that one's counts
    """
    position = min(_shared(accepted, answer), answer.numbers)
    if position == len(accepted.tokens) == len(answer.tokens):
        return AnswerComparison(id=prompt, same=True)
    tolerated = (
        _tolerated(accepted, position, max(noise, accepted.noise)) if answer.numbers == len(answer.tokens) else ""
    )
    return AnswerComparison(
        id=prompt,
        same=bool(tolerated),
        position=position,
        expected=accepted.text,
        found=answer.text,
        tolerated=tolerated,
    )


def overall(compared: Sequence[AnswerComparison]) -> GoldenVerdict:
    """Of all prompts: differs where one differs; none where nothing was compared."""
    if not compared:
        return GoldenVerdict.NONE
    return GoldenVerdict.SAME if all(answer.same for answer in compared) else GoldenVerdict.DIFFERS


def _shared(first: Answer, other: Answer) -> int:
    """How many tokens both begin with."""
    return len(list(takewhile(lambda both: both[0] == both[1], zip(first.tokens, other.tokens, strict=False))))


def _tolerated(accepted: PromptBaseline, position: int, noise: float) -> str:
    if accepted.varies_from is not None and position >= accepted.varies_from:
        return f"the accepted engine's own answers vary from token {accepted.varies_from + 1} on"
    margin = accepted.margins[position] if position < len(accepted.margins) else None
    if margin is not None and margin <= NOISE_TIMES * noise:
        return f"token {position + 1} was a tie: {margin:.4f} apart, noise {noise:.4f}"
    return ""


def generation(prompt: str, max_tokens: int) -> dict[str, Any]:
    """The body of a request for a greedy generation with its token ids, to SGLang's own /generate.

    The same in 0.4.4 and 0.5.23: `return_logprob` brings `meta_info.output_token_logprobs` and `output_top_logprobs`,
    each entry (log-probability, token id, text or null) (srt/managers/tokenizer_manager.py,
    detokenize_logprob_tokens).
    """
    return {
        "text": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": max_tokens},
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": _RUNNERS_UP,
    }


def answer_of(document: Any) -> Answer:
    """The answer in a response's JSON. Raises ValueError where it holds no token ids."""
    try:
        meta = document["meta_info"]
        chosen = meta["output_token_logprobs"]
        answer = Answer(
            tokens=tuple(int(entry[1]) for entry in chosen),
            logprobs=tuple(_number(entry[0]) for entry in chosen),
            margins=tuple(_margin(place, meta) for place in range(len(chosen))),
            text=str(document["text"]),
        )
    except (KeyError, TypeError, IndexError, ValueError) as wrong:
        raise ValueError(f"the engine's answer contains no token ids: {type(wrong).__name__} {wrong}") from None
    if not answer.tokens:
        raise ValueError("the engine's answer is empty")
    return answer


def _margin(place: int, meta: Mapping[str, Any]) -> float | None:
    """How far the runner-up is behind; None, too, where it is impossible."""
    top = (meta.get("output_top_logprobs") or [])[place : place + 1]
    likely = sorted((_number(entry[0]) for entry in top[0]), reverse=True) if top and top[0] else []
    return margin if len(likely) > 1 and math.isfinite(margin := likely[0] - likely[1]) else None


def _number(logprob: Any) -> float:
    """SGLang's JSON has null for NaN (orjson)."""
    return math.nan if logprob is None else float(logprob)


MAX_TOKENS = 32
"""Of each answer. Twelve answers are some 400 decode steps: under half a minute on the slowest layout."""


SENTENCE = "The inventory of shelf {n} lists {n} boxes of screws, {m} boxes of nails and a note that says 'shelf {n}'. "

PROMPTS = {
    "english-fact": "The capital of France is",
    "english-story": "It was two in the morning when the lights of the data centre went out, and",
    "english-explain": "An all-reduce over PCIe is slower than one over NVLink because",
    "chinese-fact": "中国的首都是",
    "chinese-explain": "深度学习中,混合专家模型的主要优点是",
    "spanish-fact": "El río más largo de América del Sur es",
    "german-list": "Die sieben Tage der Woche heißen",
    "japanese-fact": "日本で一番高い山は",
    "code-python": 'def fibonacci(n: int) -> int:\n    """The n-th Fibonacci number."""\n',
    "code-sql": "-- the ten customers with the highest total of orders\nSELECT",
    "arithmetic": "12 + 30 = 42\n17 + 25 = 42\n123 + 456 = 579\n608 + 291 =",
    "long-context": "".join(SENTENCE.format(n=n, m=3 * n) for n in range(1, 41))
    + "According to the list above, shelf 17 holds this many boxes of nails:",
}
"""By name, as shown and as stored in baselines, so that none ever changes its meaning."""
