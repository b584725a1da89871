"""A file of questions, asked of a gang's engine: a few at a time, all of them within one deadline."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from orchestrator.gang.steps.status.reports import request_keys
from orchestrator.golden.questions import Graded, Question, questions_of
from orchestrator.golden.steps.asking import Progress, refuse_unanswered
from orchestrator.model.deadlines import ANSWER_S
from orchestrator.model.inventory import GangSpec
from orchestrator.protocol.errors import InputError, NodeError
from orchestrator.protocol.verbs import AskRequest, HttpAnswer, HttpRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask_http

LARGEST_FILE = 4 << 20
EVAL_S = 1800.0
"""For all questions of a file."""
AT_ONCE = 16
MOST_TOKENS = 1024
"""Of an answer, what a model thinks before it included."""
PATH = "/v1/chat/completions"


def read_questions(name: str) -> tuple[Question, ...]:
    """Raises InputError where the file can't be read as such."""
    file = Path(name).expanduser()
    fix = 'one JSON object a line: {"question": "...", "answer": "..."}'
    try:
        with file.open("rb") as opened:
            data = opened.read(LARGEST_FILE + 1)
        if len(data) <= LARGEST_FILE:
            return questions_of(data.decode("utf-8-sig"))
        why = f"it is larger than {LARGEST_FILE >> 20} MiB"
    except OSError as failure:
        why = failure.strerror or str(failure)
    except ValueError as wrong:
        why = str(wrong)
    raise InputError(f"these questions can't be read: {why}", where=str(file), fix=fix)


def graded(
    fleet: Fleet, gang: GangSpec, url: str, model: str, questions: Sequence[Question], progress: Progress
) -> Graded:
    """What the engine answers at temperature 0, as a chat, asked from its leader with the gang's own key. Raises
    NodeError where one is not answered, or not all are within EVAL_S."""
    end, answers = time.monotonic() + EVAL_S, list[str]()
    for first in range(0, len(questions), AT_ONCE):
        progress(f"{gang.name}, questions", first, len(questions))
        left_s = end - time.monotonic()
        if left_s <= 0:
            raise _too_slow(gang, first, len(questions))
        answers += _asked(fleet, gang, url, model, questions[first : first + AT_ONCE], first, left_s)
    return Graded(questions, answers)


def _asked(
    fleet: Fleet, gang: GangSpec, url: str, model: str, questions: Sequence[Question], first: int, left_s: float
) -> list[str]:
    leader = gang.leader
    asks = tuple(_chat(url, model, question, left_s) for question in questions)
    request = AskRequest(**request_keys(leader, gang.name), asks=asks, at_once=True)
    ask = partial(ask_http, request=request, deadline_s=left_s + ANSWER_S)
    answered = fleet.on_every(ask, only=[leader.name]).all()[leader.name]
    place = f"{leader.name}, {url}{PATH}"
    return [_text(gang, place, f"question {first + number}", each) for number, each in enumerate(answered, start=1)]


def _chat(url: str, model: str, question: Question, timeout_s: float) -> HttpRequest:
    messages = [{"role": "user", "content": question.text}]
    body = json.dumps({"model": model, "messages": messages, "temperature": 0, "max_tokens": MOST_TOKENS})
    return HttpRequest(method="POST", url=url + PATH, body=body, timeout_s=timeout_s)


def _text(gang: GangSpec, place: str, name: str, answered: HttpAnswer) -> str:
    refuse_unanswered(gang, place, name, answered)
    try:
        content = json.loads(answered.body)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as wrong:
        what = f"{name}: the engine's answer is no chat completion: {type(wrong).__name__} {wrong}"
        raise NodeError(what, where=place, fix="l40s-deploy logs") from None
    return content if isinstance(content, str) else ""


def _too_slow(gang: GangSpec, done: int, of: int) -> NodeError:
    what = f"{done} of {of} questions were answered within {EVAL_S / 60:.0f} minutes"
    return NodeError(what, where=f"gang {gang.name}", fix="give --gate-eval a file of fewer questions")
