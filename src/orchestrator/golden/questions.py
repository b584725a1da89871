"""`up --gate-eval FILE`: questions with the answers wanted, and which answers are right. Pure.

A file has one JSON object a line, {"question": ..., "answer": ...}, as GSM8K's have: of an answer that ends with
`#### 72`, only what follows the mark is wanted. Grading is plain. Where a number is wanted, the last number of the
text must be that one; else the text must be the wanted one exactly, but for white space around it. What a model thinks
before `</think>` is no answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

MOST_QUESTIONS = 1000
LONGEST_QUESTION = 16_000
"""In characters."""
_MARK = "####"
_THOUGHT = "</think>"
_NUMBER = re.compile(r"(?:(?<![0-9])-)?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Question:
    """text: as it is asked; wanted: the answer that is right."""

    text: str
    wanted: str


@dataclass(frozen=True, slots=True)
class Graded:
    """What a plan answered to all questions of a file, in its order. right: whether each answer is the wanted one"""

    questions: Sequence[Question]
    answers: Sequence[str]

    @property
    def right(self) -> tuple[bool, ...]:
        """In the order of the questions."""
        both = zip(self.questions, self.answers, strict=True)
        return tuple(is_right(question.wanted, answer) for question, answer in both)

    @property
    def words(self) -> str:
        """`71 of 100 right`."""
        return f"{sum(self.right)} of {len(self.questions)} right"

    def fewer_than(self, old: Graded) -> str:
        """How many fewer are right than the old plan had, with the first that became wrong; '' where no fewer are."""
        fewer = sum(old.right) - sum(self.right)
        if fewer <= 0:
            return ""
        lost = next(place for place, (was, now) in enumerate(zip(old.right, self.right, strict=True)) if was > now)
        wanted, said = self.questions[lost].wanted, _ending(self.answers[lost])
        return f"{fewer} fewer; question {lost + 1}, wanted {wanted!r}, ends now with {said!r}"


def questions_of(text: str) -> tuple[Question, ...]:
    """Out of a file's text. Raises ValueError, which names the line."""
    questions = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                questions.append(_question(json.loads(line)))
            except (ValueError, RecursionError) as wrong:
                raise ValueError(f"line {number}: {wrong}") from None
        if len(questions) > MOST_QUESTIONS:
            raise ValueError(f"it has more than {MOST_QUESTIONS} questions")
    if not questions:
        raise ValueError("it has no question")
    return tuple(questions)


def _question(document: object) -> Question:
    keys = document if isinstance(document, dict) else {}
    text, wanted = (_text(keys.get(key)).strip() for key in ("question", "answer"))
    wanted = wanted.rpartition(_MARK)[2].strip()
    if not text or not wanted:
        raise ValueError("found no text as `question`, or none as `answer`")
    if len(text) > LONGEST_QUESTION:
        raise ValueError(f"the question has {len(text)} characters, and at most {LONGEST_QUESTION} are asked")
    return Question(text, wanted)


def _text(value: object) -> str:
    """Numbers are text as well; '' for anything else."""
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def is_right(wanted: str, answer: str) -> bool:
    """As the file's head says."""
    text = answer.rpartition(_THOUGHT)[2].strip()
    number = _as_number(wanted)
    if number is None:
        return text == wanted
    numbers = _NUMBER.findall(text)
    return bool(numbers) and _as_number(numbers[-1]) == number


def _as_number(text: str) -> Decimal | None:
    try:
        return Decimal(text.replace(",", "")) if _NUMBER.fullmatch(text) else None
    except InvalidOperation:
        return None


def _ending(answer: str) -> str:
    return answer.strip()[-60:]
