"""Accepted prompts among others, all at once: whether a batch changes the text. Pure.

Kernels are chosen by the size of a batch, so that a wrong one may show only under load. A batch rightly changes the
last digits: how much is measured when answers are accepted (`noise_in`), and where a prompt's likeliest token was no
further ahead than that, another one is a tie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.golden.answers import SENTENCE, Answer, AnswerComparison, PromptBaseline, compare, logprob_distance
from orchestrator.protocol.message import Message, schema

LEAST = 2
MOST = 256
AT_ACCEPTANCE = 16
"""Requests of the largest batch in which an engine's noise is measured."""
BY_GUARD = 8
MOST_NOISE = 0.5
"""Of a log-probability (natural logarithm). More is no rounding: it would hide a wrong token that is nearly twice as
unlikely as the right one."""
_OTHERS = 4
"""One request in so many is none of the accepted prompts."""

OTHERS = {
    f"other-{count}": "".join(SENTENCE.format(n=n, m=5 * n) for n in range(count, 2 * count)) + "The last note says:"
    for count in (1, 2, 5, 12)
}
"""Prompts beside the accepted ones, by name: a batch of real requests has many lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedAnswer:
    """One answer of a batch. request: which of the batch, from 1; beside: how many others ran."""

    prompt: str
    request: int
    beside: int
    answer: Answer


@schema(frozen=True, slots=True, kw_only=True)
class BatchDifference(Message):
    """An answer that no tie explains. position: index of the first token that differs; alone: whether the same prompt,
    asked alone right after, was answered as accepted."""

    prompt: str
    request: int
    beside: int
    position: int
    expected: str
    found: str
    alone: bool

    @property
    def words(self) -> str:
        """For a person."""
        alone = "alone it is right" if self.alone else "alone it is wrong too"
        return (
            f"{self.prompt}: request {self.request} of {self.beside + 1} at once: from token {self.position + 1} on"
            f" {self.expected!r} is {self.found!r}; {alone}"
        )


@schema(frozen=True, slots=True, kw_only=True)
class BatchCheck(Message):
    """sizes: of the batches, in requests; answers: how many of accepted prompts were compared."""

    sizes: tuple[int, ...]
    answers: int
    differ: tuple[BatchDifference, ...] = ()


def sizes(most: int) -> tuple[int, ...]:
    """Of the batches: the largest, half of it and a quarter."""
    return tuple(dict.fromkeys(max(LEAST, most // part) for part in (1, 2, 4)))


def batches(most: int, prompts: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Names of prompts that are asked at once: at each size every accepted prompt once, and among them others."""
    asked: list[tuple[str, ...]] = []
    for size in sizes(most):
        others = max(1, size // _OTHERS)
        accepted = size - others
        for first in range(0, len(prompts), accepted):
            some = list(prompts[first : first + accepted])
            names = list(OTHERS)
            while len(some) < size:
                some.insert(len(some) // 2, names[len(some) % len(names)])
            asked.append(tuple(some))
    return tuple(asked)


def noise_in(accepted: Mapping[str, PromptBaseline], answers: Iterable[BatchedAnswer]) -> float:
    """How much a batch changes log-probabilities of tokens that stay the same, at most; MOST_NOISE where it is more."""
    distances = (logprob_distance(accepted[each.prompt], each.answer) for each in answers if each.prompt in accepted)
    return min(MOST_NOISE, max(distances, default=0.0))


def differing(
    accepted: Mapping[str, PromptBaseline], answers: Iterable[BatchedAnswer], noise: float
) -> tuple[tuple[BatchedAnswer, AnswerComparison], ...]:
    """Answers to accepted prompts that are other ones, and no tie explains it; with what was compared."""
    known = [each for each in answers if each.prompt in accepted]
    compared = [compare(each.prompt, accepted[each.prompt], each.answer, noise=noise) for each in known]
    return tuple((each, told) for each, told in zip(known, compared, strict=True) if not told.same)


def difference(answered: BatchedAnswer, compared: AnswerComparison, *, alone: bool) -> BatchDifference:
    """One of `differing`, as it is told."""
    return BatchDifference(
        prompt=answered.prompt,
        request=answered.request,
        beside=answered.beside,
        position=compared.position or 0,
        expected=compared.expected,
        found=compared.found,
        alone=alone,
    )
