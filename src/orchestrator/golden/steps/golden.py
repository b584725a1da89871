"""`golden`: accepted answers, asked for again. A difference means wrong weights, kernels or memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from orchestrator.gang.steps.replay import staged_plan
from orchestrator.gang.steps.status.reports import as_they_run, where
from orchestrator.golden import document, greedy
from orchestrator.golden.compare import Answer, AnswerComparison, GoldenVerdict, accept, compare, overall
from orchestrator.golden.document import MAX_TOKENS, PROMPTS, Baseline, Prompt, Subject
from orchestrator.golden.store import baseline_file, read_baseline
from orchestrator.jobs.quiet import refuse_busy, serving_view
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import ANSWER_S, PROMPT_S
from orchestrator.model.errors import InputError, NodeError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.protocol.verbs import AskRequest, HttpAnswer, HttpRequest
from orchestrator.records.documents import write_document
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask_http

AT_ONCE = 4
REPEATS = 3
"""How often an engine is asked before its answer is a baseline, and before a difference is one."""
Progress = Callable[[str, int, int], None]
"""(gang, prompts asked so far, of)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """One gang. compared: empty where nothing was accepted for it; accepted_at: epoch seconds, 0 for never."""

    gang: str
    subject: Subject
    file: str
    verdict: GoldenVerdict
    compared: tuple[AnswerComparison, ...] = ()
    accepted_at: float = 0.0
    varies: tuple[str, ...] = ()
    """Prompts whose answer the accepted engine varied by itself."""
    left_out: tuple[str, ...] = ()
    """Prompts that were longer than its context."""


def accept_now(inventory: Inventory, gangs: tuple[str, ...], progress: Progress) -> tuple[Golden, ...]:
    """Ask each gang every prompt three times, alone, and keep that as its baseline.

    Raises InputError where a gang does not serve or is busy, and what a node's answer raises.
    """
    chosen = chosen_gangs(inventory, gangs)
    with Fleet([node for gang in chosen for node in gang.nodes]) as fleet:
        return tuple(_accept(fleet, gang, progress) for gang in as_they_run(fleet, chosen))


def check_now(inventory: Inventory, gangs: tuple[str, ...], progress: Progress) -> tuple[Golden, ...]:
    """Ask each gang every prompt of its baseline, and compare. Raises what `accept_now` raises."""
    chosen = chosen_gangs(inventory, gangs)
    with Fleet([node for gang in chosen for node in gang.nodes]) as fleet:
        return tuple(check_gang(fleet, gang, progress) for gang in as_they_run(fleet, chosen))


def show(inventory: Inventory, gangs: tuple[str, ...]) -> tuple[tuple[Golden, Baseline | None], ...]:
    """The baselines of what each gang runs, or ran last. Asks the engines nothing."""
    chosen = chosen_gangs(inventory, gangs)
    with Fleet([node for gang in chosen for node in gang.nodes]) as fleet:
        return tuple(_shown(fleet, gang) for gang in as_they_run(fleet, chosen))


def check_gang(fleet: Fleet, gang: GangSpec, progress: Progress) -> Golden:
    """One gang compared with its baseline; the verdict is `none` if it has none."""
    subject = _subject(fleet, gang)
    baseline = _baseline(subject)
    if baseline is None:
        return Golden(gang=gang.name, subject=subject, file=str(_file(subject)), verdict=GoldenVerdict.NONE)
    url = serving_view(fleet, gang, why="there is no text to check").service_url
    prompts = [prompt for prompt in PROMPTS if prompt.id in baseline.prompts]
    compared = _compared(fleet, gang, url, prompts, baseline, progress)
    return Golden(
        gang=gang.name,
        subject=subject,
        file=str(_file(subject)),
        verdict=overall(compared),
        compared=compared,
        accepted_at=baseline.made_at,
        varies=_varies(baseline),
        left_out=_left_out(baseline),
    )


def _compared(
    fleet: Fleet, gang: GangSpec, url: str, prompts: Sequence[Prompt], baseline: Baseline, progress: Progress
) -> tuple[AnswerComparison, ...]:
    """A difference counts when it is there each time: requests of others change the batch, and that the last digit."""
    found: dict[str, AnswerComparison] = {}
    for _ in range(REPEATS):
        open_ = [prompt for prompt in prompts if prompt.id not in found or not found[prompt.id].same]
        for prompt, answer in zip(open_, _asked(fleet, gang, url, open_, progress), strict=True):
            if answer is None:
                raise _too_long(gang, prompt)
            found[prompt.id] = compare(prompt.id, baseline.prompts[prompt.id], answer)
    return tuple(found[prompt.id] for prompt in prompts)


def _asked(
    fleet: Fleet, gang: GangSpec, url: str, prompts: Sequence[Prompt], progress: Progress
) -> Iterator[Answer | None]:
    """Some prompts with one call: a call takes longer than an answer of a fast engine."""
    for first in range(0, len(prompts), AT_ONCE):
        progress(gang.name, first, len(prompts))
        yield from _ask(fleet, gang, url, prompts[first : first + AT_ONCE])
    progress(gang.name, len(prompts), len(prompts))


def _accept(fleet: Fleet, gang: GangSpec, progress: Progress) -> Golden:
    subject = _subject(fleet, gang)
    url = serving_view(fleet, gang, why="there is no text to check").service_url
    refuse_busy(fleet, gang, url, why="other requests change the batch, and with it the last digits of the answers")
    answers: dict[str, list[Answer]] = {prompt.id: [] for prompt in PROMPTS}
    for _ in range(REPEATS):
        open_ = [prompt for prompt in PROMPTS if prompt.id in answers]
        for prompt, answer in zip(open_, _asked(fleet, gang, url, open_, progress), strict=True):
            if answer is None:
                del answers[prompt.id]  # a model with a short context is checked by the others
            else:
                answers[prompt.id].append(answer)
    prompts = {name: accept(each) for name, each in answers.items()}
    baseline = Baseline(subject=subject, made_at=time.time(), prompts=prompts)
    write_document(_file(subject), document.to_json(baseline))
    return Golden(
        gang=gang.name,
        subject=subject,
        file=str(_file(subject)),
        verdict=GoldenVerdict.SAME,
        accepted_at=baseline.made_at,
        varies=_varies(baseline),
        left_out=_left_out(baseline),
    )


def _shown(fleet: Fleet, gang: GangSpec) -> tuple[Golden, Baseline | None]:
    subject = _subject(fleet, gang)
    baseline = _baseline(subject)
    golden = Golden(
        gang=gang.name,
        subject=subject,
        file=str(_file(subject)),
        verdict=GoldenVerdict.NONE,
        accepted_at=baseline.made_at if baseline else 0.0,
        varies=_varies(baseline) if baseline else (),
        left_out=_left_out(baseline) if baseline else (),
    )
    return golden, baseline


def _varies(baseline: Baseline) -> tuple[str, ...]:
    return tuple(prompt for prompt, accepted in baseline.prompts.items() if accepted.varies_from is not None)


def _left_out(baseline: Baseline) -> tuple[str, ...]:
    return tuple(prompt.id for prompt in PROMPTS if prompt.id not in baseline.prompts)


def _subject(fleet: Fleet, gang: GangSpec) -> Subject:
    """What the gang's leader was started with."""
    leader = replace(gang, nodes=(gang.leader,))
    request = staged_plan(fleet, leader, whole=False).requests[gang.leader.name]
    return Subject(model=request.model, stack=request.stack, layout=request.layout.key if request.layout else "")


def _file(subject: Subject) -> Any:
    return baseline_file(subject.name)


def _baseline(subject: Subject) -> Baseline | None:
    stored = read_baseline(_file(subject))
    if stored is None:
        return None
    try:
        return document.from_json(stored)
    except ValueError as wrong:
        raise InputError(
            str(wrong), where=str(_file(subject)), fix="accept new answers with `l40s-deploy golden accept`"
        ) from None


def _too_long(gang: GangSpec, prompt: Prompt) -> NodeError:
    return NodeError(
        f"prompt {prompt.id} is longer than the engine's context; it was not when its answer was accepted",
        where=f"gang {gang.name}",
        fix="compare the engine's flags with `l40s-deploy plan --diff`, or accept again: l40s-deploy golden accept",
    )


def _ask(fleet: Fleet, gang: GangSpec, url: str, prompts: Sequence[Prompt]) -> Iterator[Answer | None]:
    """Prompts asked one after the other on the leader itself, with the gang's own key; None for one that is longer than
    the model's context."""
    leader = gang.leader
    body = [json.dumps(greedy.request(prompt.text, MAX_TOKENS)) for prompt in prompts]
    asks = tuple(HttpRequest(method="POST", url=url + greedy.PATH, body=one, timeout_s=PROMPT_S) for one in body)
    request = AskRequest(**where(leader, gang.name), asks=asks)
    answers = fleet.on_every(
        lambda session: ask_http(session, request, deadline_s=PROMPT_S * len(asks) + ANSWER_S), only=[leader.name]
    )
    for prompt, answered in zip(prompts, answers.all()[leader.name], strict=True):
        yield _answer(gang.name, leader.name, url, prompt, answered)


def _answer(gang: str, leader: str, url: str, prompt: Prompt, answered: HttpAnswer) -> Answer | None:
    place = f"{leader}, {url}{greedy.PATH}"
    if answered.status == 400 and greedy.TOO_LONG in answered.body:
        return None
    if answered.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise NodeError(
            "the engine does not accept the gang's API key",
            where=place,
            fix=f"it was started with another key; start it again: `l40s-deploy restart {gang}`",
        )
    if not answered.ok:
        raise NodeError(
            f"the engine did not answer prompt {prompt.id}: {answered.words}",
            where=place,
            fix=f"check the log with `l40s-deploy logs --node {leader}`",
        )
    try:
        return greedy.answer_of(json.loads(answered.body))
    except (ValueError, RecursionError) as wrong:
        raise NodeError(f"prompt {prompt.id}: {wrong}", where=place, fix="l40s-deploy logs") from None


def golden_json(found: Sequence[Golden]) -> dict[str, Any]:
    """The document of `golden accept|check --json`."""
    verdicts = [one.verdict for one in found]
    verdict = next((v for v in (GoldenVerdict.DIFFERS, GoldenVerdict.NONE) if v in verdicts), GoldenVerdict.SAME)
    return {
        "verdict": verdict.value,
        "prompts": [prompt for one in found for prompt in _prompts(one)],
        "gangs": [
            {
                "name": one.gang,
                "verdict": one.verdict.value,
                "model": one.subject.model,
                "stack": one.subject.stack,
                "layout": one.subject.layout,
                "file": one.file,
                "accepted_at": one.accepted_at or None,
                "varies": list(one.varies),
                "left_out": list(one.left_out),
                "prompts": _prompts(one),
            }
            for one in found
        ],
    }


def _prompts(one: Golden) -> list[Mapping[str, Any]]:
    return [
        {
            "id": each.id,
            "same": each.same,
            "position": each.position,
            "expected": each.expected,
            "found": each.found,
            "tolerated": each.tolerated,
        }
        for each in one.compared
    ]
