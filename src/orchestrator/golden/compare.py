"""Makes a baseline from repeated answers, and compares a new answer with it. Pure.

Two runs of one engine may differ where two tokens are nearly equally likely: the sum of an all-reduce depends on its
order, a kernel on the batch it sees. What an engine varies by itself is measured when a baseline is accepted, and
only that much is tolerated later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

NOISE_TIMES = 2.0
"""Two log-probabilities, each uncertain by the noise, may change places when they are this many times it apart."""


class GoldenVerdict(str, Enum):
    """Of one prompt, or of all: none where no baseline was accepted."""

    SAME = "same"
    DIFFERS = "differs"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One greedy answer. tokens: ids; logprobs: of each token, natural logarithm; margins: how much more likely than
    the runner-up each token was (difference of the two log-probabilities); text: as decoded."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    margins: tuple[float, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBaseline:
    """A prompt's baseline. varies_from: index of the first token that the repetitions did not share, None where they
    were alike; noise: the largest difference between the log-probabilities that they gave the same token."""

    answer: Answer
    varies_from: int | None = None
    noise: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
    """position: index of the first differing token, None where the answers agree; tolerated: why a difference is none,
    in words, '' where there is nothing to tolerate."""

    id: str
    verdict: GoldenVerdict
    position: int | None = None
    expected: str = ""
    found: str = ""
    tolerated: str = ""

    @property
    def same(self) -> bool:
        return self.verdict is GoldenVerdict.SAME


def accept(answers: Sequence[Answer]) -> PromptBaseline:
    """The baseline that repeated answers of one engine to one prompt give; the first of them is kept."""
    first, *others = answers
    varies_from = min((_shared(first, other) for other in others if other.tokens != first.tokens), default=None)
    noise = max(
        (
            abs(mine - theirs)
            for other in others
            for mine, theirs in zip(first.logprobs[:varies_from], other.logprobs[:varies_from], strict=False)
        ),
        default=0.0,
    )
    return PromptBaseline(answer=first, varies_from=varies_from, noise=noise)


def compare(prompt: str, accepted: PromptBaseline, answer: Answer) -> AnswerComparison:
    """An answer against its baseline: the same, tolerated, or different from a position on."""
    expected = accepted.answer
    position = _shared(expected, answer)
    if position == len(expected.tokens) == len(answer.tokens):
        return AnswerComparison(id=prompt, verdict=GoldenVerdict.SAME)
    tolerated = _tolerated(accepted, position)
    return AnswerComparison(
        id=prompt,
        verdict=GoldenVerdict.SAME if tolerated else GoldenVerdict.DIFFERS,
        position=position,
        expected=expected.text,
        found=answer.text,
        tolerated=tolerated,
    )


def overall(compared: Mapping[str, AnswerComparison] | Sequence[AnswerComparison]) -> GoldenVerdict:
    """Of all prompts: differs where one differs; none where nothing was compared."""
    each = list(compared.values()) if isinstance(compared, Mapping) else list(compared)
    if not each:
        return GoldenVerdict.NONE
    return GoldenVerdict.SAME if all(one.same for one in each) else GoldenVerdict.DIFFERS


def _shared(one: Answer, other: Answer) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one.tokens, other.tokens, strict=False))
    shorter = min(len(one.tokens), len(other.tokens))
    return next((place for place, (mine, theirs) in pairs if mine != theirs), shorter)


def _tolerated(accepted: PromptBaseline, position: int) -> str:
    if accepted.varies_from is not None and position >= accepted.varies_from:
        return f"the accepted engine's own answers vary from token {accepted.varies_from + 1} on"
    margins = accepted.answer.margins
    if position < len(margins) and margins[position] <= NOISE_TIMES * accepted.noise:
        return f"token {position + 1} was a tie: {margins[position]:.4f} apart, noise {accepted.noise:.4f}"
    return ""
