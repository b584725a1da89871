"""Questions are asked a few at a time, at temperature 0, within one deadline; what is not answered is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.reference_cluster import gang

from orchestrator.golden.questions import Graded, Question
from orchestrator.golden.steps import questions as asking
from orchestrator.golden.steps.questions import AT_ONCE, EVAL_S, LARGEST_FILE, graded, read_questions
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import InputError, NodeError
from orchestrator.protocol.verbs import AskRequest, HttpAnswer

QUESTIONS = tuple(Question(f"how many are {number}?", str(number)) for number in range(AT_ONCE + 3))


class Fleet:
    """The leader answers by this function."""

    def on_every(self, work: Callable[[Any], Any], only: Sequence[str]) -> PerNode[Any]:
        return PerNode({name: work(SimpleNamespace()) for name in only}, {})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], HttpAnswer]], list[AskRequest]]:
    """Answers each question by this; returns what it is asked."""

    def made(answer: Callable[[str], HttpAnswer]) -> list[AskRequest]:
        calls: list[AskRequest] = []

        def ask_http(_: object, request: AskRequest, *, deadline_s: float) -> tuple[HttpAnswer, ...]:
            calls.append(request)
            assert all(ask.timeout_s < deadline_s for ask in request.asks)
            return tuple(answer(json.loads(ask.body or "")["messages"][0]["content"]) for ask in request.asks)

        monkeypatch.setattr(asking, "ask_http", ask_http)
        return calls

    return made


def said(text: str | None) -> HttpAnswer:
    return HttpAnswer(status=200, body=json.dumps({"choices": [{"message": {"content": text}}]}))


def ask() -> Graded:
    return graded(Fleet(), gang(nodes=2), "http://n0:30000", "m", QUESTIONS, lambda *_: None)  # type: ignore[arg-type]


def test_all_are_asked_a_few_at_once_at_temperature_0(engine: Any) -> None:
    calls = engine(lambda text: said(None if "how many are 0?" in text else text))
    done = ask()
    assert done.right == (False, *[True] * (len(QUESTIONS) - 1))
    assert [len(call.asks) for call in calls] == [AT_ONCE, 3] and all(call.at_once for call in calls)
    bodies = [json.loads(each.body or "") for call in calls for each in call.asks]
    assert {(body["model"], body["temperature"]) for body in bodies} == {("m", 0)}


def test_the_deadline_is_one_for_all(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((0.0, 1.0, EVAL_S + 1.0))
    monkeypatch.setattr("orchestrator.golden.steps.questions.time.monotonic", lambda: next(now))
    calls = engine(said)
    with pytest.raises(NodeError, match=f"{AT_ONCE} of {len(QUESTIONS)} questions were answered within 30 minutes"):
        ask()
    assert [each.timeout_s for each in calls[0].asks] == [EVAL_S - 1.0] * AT_ONCE


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HttpAnswer(error="TimeoutError: no answer"), "did not answer question 3: TimeoutError"),
        (HttpAnswer(status=401), "does not accept the gang's API key"),
        (HttpAnswer(status=200, body="{}"), "question 3: the engine's answer is no chat completion"),
        (HttpAnswer(status=200, body="[" * 100_000), "question 3: the engine's answer is no chat completion"),
    ],
)
def test_one_that_is_not_answered_is_told_by_its_number(engine: Any, answer: HttpAnswer, words: str) -> None:
    engine(lambda text: answer if "are 2?" in text else said(text))
    with pytest.raises(NodeError, match=words):
        ask()


def test_a_file_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text('\ufeff{"question": "a", "answer": 1}\n')
    assert read_questions(str(file)) == (Question("a", "1"),)
    for data, words in ((b"\xff\xfe", "utf-8"), (b" " * (LARGEST_FILE + 1), "larger than 4 MiB"), (b"{", "line 1")):
        file.write_bytes(data)
        with pytest.raises(InputError, match=words):
            read_questions(str(file))
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match="can't be read"):
            read_questions(str(missing))
