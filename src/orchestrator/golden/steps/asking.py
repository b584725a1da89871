"""Prompts sent to a gang's engine, from its leader and with the gang's own key: one after the other, or all at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http import HTTPStatus

from orchestrator.gang.steps.status.reports import request_keys
from orchestrator.golden.answers import MAX_TOKENS, PATH, PROMPTS, TOO_LONG, Answer, answer_of, generation
from orchestrator.golden.batches import OTHERS, BatchedAnswer
from orchestrator.model.deadlines import ANSWER_S, PROMPT_S
from orchestrator.model.inventory import GangSpec
from orchestrator.protocol.errors import NodeError
from orchestrator.protocol.verbs import AskRequest, HttpAnswer, HttpRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask_http

AT_ONCE = 4
"""Prompts of one call."""
Progress = Callable[[str, int, int], None]
"""(gang, prompts asked so far, of)."""


def asked(
    fleet: Fleet, gang: GangSpec, url: str, prompts: Sequence[str], progress: Progress
) -> Iterator[tuple[str, Answer | None]]:
    """Some prompts with one call: a call takes longer than an answer of a fast engine. They are asked one after the
    other on the leader itself, with the gang's own key; None for one that is longer than the model's context."""
    leader = gang.leader
    for first in range(0, len(prompts), AT_ONCE):
        progress(gang.name, first, len(prompts))
        some = prompts[first : first + AT_ONCE]
        asks = tuple(_generate(url, PROMPTS[name]) for name in some)
        request = AskRequest(**request_keys(leader, gang.name), asks=asks)
        ask = partial(ask_http, request=request, deadline_s=PROMPT_S * len(asks) + ANSWER_S)
        answers = fleet.on_every(ask, only=[leader.name]).all()[leader.name]
        for name, answered in zip(some, answers, strict=True):
            yield name, _answer(gang, f"{leader.name}, {url}{PATH}", name, answered)
    progress(gang.name, len(prompts), len(prompts))


def _answer(gang: GangSpec, place: str, prompt: str, answered: HttpAnswer) -> Answer | None:
    if answered.status == 400 and TOO_LONG in answered.body:
        return None
    refuse_unanswered(gang, place, f"prompt {prompt}", answered)
    try:
        return answer_of(json.loads(answered.body))
    except (ValueError, RecursionError) as wrong:
        raise NodeError(f"prompt {prompt}: {wrong}", where=place, fix="l40s-deploy logs") from None


def refuse_unanswered(gang: GangSpec, place: str, name: str, answered: HttpAnswer) -> None:
    """Raises NodeError for any answer but status 200. name: of what was asked; place: whom"""
    if answered.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise NodeError(
            "the engine does not accept the gang's API key",
            where=place,
            fix=f"it was started with another key; start it again: `l40s-deploy restart {gang.name}`",
        )
    if not answered.ok:
        raise NodeError(
            f"the engine did not answer {name}: {answered.words}",
            where=place,
            fix=f"check the log with `l40s-deploy logs --node {gang.leader.name}`",
        )


def asked_at_once(fleet: Fleet, gang: GangSpec, url: str, batch: Sequence[str]) -> tuple[BatchedAnswer, ...]:
    """A batch of prompts, by name, all at the same time. Raises NodeError where one is not answered."""
    leader = gang.leader
    texts = {**PROMPTS, **OTHERS}
    asks = tuple(_generate(url, texts[name]) for name in batch)
    request = AskRequest(**request_keys(leader, gang.name), asks=asks, at_once=True)
    ask = partial(ask_http, request=request, deadline_s=PROMPT_S + ANSWER_S)
    answers = fleet.on_every(ask, only=[leader.name]).all()[leader.name]
    made = []
    for number, (name, answered) in enumerate(zip(batch, answers, strict=True), start=1):
        answer = _answer(gang, f"{leader.name}, {url}{PATH}", name, answered)
        if answer is not None:
            made.append(BatchedAnswer(prompt=name, request=number, beside=len(batch) - 1, answer=answer))
    return tuple(made)


def _generate(url: str, prompt: str) -> HttpRequest:
    body = json.dumps(generation(prompt, MAX_TOKENS))
    return HttpRequest(method="POST", url=url + PATH, body=body, timeout_s=PROMPT_S)
