"""`golden`: accepted answers, asked for again: when it is called, after a start, and by the guard every day. A
difference means wrong weights, kernels or memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from orchestrator.gang.steps.replay import staged_plan
from orchestrator.gang.steps.status.reports import as_they_run, where
from orchestrator.gang.view import GangView
from orchestrator.golden.answers import (
    FORMAT,
    MAX_TOKENS,
    PATH,
    PROMPTS,
    TOO_LONG,
    Answer,
    AnswerComparison,
    Baseline,
    GoldenVerdict,
    Prompt,
    Subject,
    accept,
    answer_of,
    compare,
    generation,
    overall,
)
from orchestrator.jobs.run import refuse_busy, serving_view
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import ANSWER_S, PROMPT_S
from orchestrator.model.errors import DeployError, InputError, NodeError
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.protocol.verbs import AskRequest, HttpAnswer, HttpRequest
from orchestrator.records.documents import state_folder, write_document
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask_http

AT_ONCE = 4
REPEATS = 3
"""How often an engine is asked before its answer is a baseline, and before a difference is one."""
Progress = Callable[[str, int, int], None]
"""(gang, prompts asked so far, of)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """One gang. baseline: None where nothing was accepted for it; compared: empty where nothing was asked."""

    gang: str
    subject: Subject
    baseline: Baseline | None
    verdict: GoldenVerdict = GoldenVerdict.NONE
    compared: tuple[AnswerComparison, ...] = ()

    @property
    def file(self) -> str:
        """Of the baseline, whether or not it exists."""
        return str(baseline_file(self.subject))


def accept_now(inventory: Inventory, gangs: tuple[str, ...], progress: Progress) -> tuple[Golden, ...]:
    """Ask each gang every prompt three times, alone, and keep that as its baseline.

    Raises InputError where a gang does not serve or is busy, and what a node's answer raises.
    """
    return _each(inventory, gangs, lambda fleet, gang: _accept(fleet, gang, progress))


def check_now(inventory: Inventory, gangs: tuple[str, ...], progress: Progress) -> tuple[Golden, ...]:
    """Ask each gang every prompt of its baseline, and compare. Raises what `accept_now` raises."""
    return _each(inventory, gangs, lambda fleet, gang: check_gang(fleet, gang, progress))


def show(inventory: Inventory, gangs: tuple[str, ...]) -> tuple[Golden, ...]:
    """The baselines of what each gang runs, or ran last. Asks the engines nothing."""
    return _each(inventory, gangs, _kept)


def _each(
    inventory: Inventory, gangs: tuple[str, ...], work: Callable[[Fleet, GangSpec], Golden]
) -> tuple[Golden, ...]:
    chosen = chosen_gangs(inventory, gangs)
    with Fleet([node for gang in chosen for node in gang.nodes]) as fleet:
        return tuple(work(fleet, gang) for gang in as_they_run(fleet, chosen))


def _kept(fleet: Fleet, gang: GangSpec) -> Golden:
    """The baseline for what the gang's leader was started with."""
    request = staged_plan(fleet, replace(gang, nodes=(gang.leader,)), whole=False).requests[gang.leader.name]
    subject = Subject(model=request.model, stack=request.stack, layout=request.layout.key if request.layout else "")
    return Golden(gang=gang.name, subject=subject, baseline=read_baseline(baseline_file(subject)))


def check_gang(fleet: Fleet, gang: GangSpec, progress: Progress) -> Golden:
    """One gang compared with its baseline; the verdict is `none` if it has none."""
    kept = _kept(fleet, gang)
    if kept.baseline is None:
        return kept
    url = serving_view(fleet, gang, why="there is no text to check").service_url
    prompts = [prompt for prompt in PROMPTS if prompt.id in kept.baseline.prompts]
    compared = _compared(fleet, gang, url, prompts, kept.baseline, progress)
    return replace(kept, verdict=overall(compared), compared=compared)


def _compared(
    fleet: Fleet, gang: GangSpec, url: str, prompts: Sequence[Prompt], baseline: Baseline, progress: Progress
) -> tuple[AnswerComparison, ...]:
    """A difference counts when it is there each time: requests of others change the batch, and that the last digit."""
    found: dict[str, AnswerComparison] = {}
    for _ in range(REPEATS):
        open_ = [prompt for prompt in prompts if prompt.id not in found or not found[prompt.id].same]
        for prompt, answer in zip(open_, _asked(fleet, gang, url, open_, progress), strict=True):
            if answer is None:
                raise NodeError(
                    f"prompt {prompt.id} is longer than the engine's context; it was not when its answer was accepted",
                    where=f"gang {gang.name}",
                    fix="compare the engine's flags with `l40s-deploy plan --diff`, or accept again: l40s-deploy "
                    "golden accept",
                )
            found[prompt.id] = compare(prompt.id, baseline.prompts[prompt.id], answer)
    return tuple(found[prompt.id] for prompt in prompts)


def _accept(fleet: Fleet, gang: GangSpec, progress: Progress) -> Golden:
    kept = _kept(fleet, gang)
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
    baseline = Baseline(**kept.subject.as_json(), made_at=time.time(), prompts=prompts)
    write_document(baseline_file(kept.subject), baseline.as_json())
    return replace(kept, baseline=baseline, verdict=GoldenVerdict.SAME)


def _asked(
    fleet: Fleet, gang: GangSpec, url: str, prompts: Sequence[Prompt], progress: Progress
) -> Iterator[Answer | None]:
    """Some prompts with one call: a call takes longer than an answer of a fast engine. They are asked one after the
    other on the leader itself, with the gang's own key; None for one that is longer than the model's context."""
    leader = gang.leader
    for first in range(0, len(prompts), AT_ONCE):
        progress(gang.name, first, len(prompts))
        some = prompts[first : first + AT_ONCE]
        bodies = [json.dumps(generation(prompt.text, MAX_TOKENS)) for prompt in some]
        asks = tuple(HttpRequest(method="POST", url=url + PATH, body=body, timeout_s=PROMPT_S) for body in bodies)
        request = AskRequest(**where(leader, gang.name), asks=asks)
        ask = partial(ask_http, request=request, deadline_s=PROMPT_S * len(asks) + ANSWER_S)
        answers = fleet.on_every(ask, only=[leader.name]).all()[leader.name]
        for prompt, answered in zip(some, answers, strict=True):
            yield _answer(gang, f"{leader.name}, {url}{PATH}", prompt, answered)
    progress(gang.name, len(prompts), len(prompts))


def _answer(gang: GangSpec, place: str, prompt: Prompt, answered: HttpAnswer) -> Answer | None:
    if answered.status == 400 and TOO_LONG in answered.body:
        return None
    if answered.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise NodeError(
            "the engine does not accept the gang's API key",
            where=place,
            fix=f"it was started with another key; start it again: `l40s-deploy restart {gang.name}`",
        )
    if not answered.ok:
        raise NodeError(
            f"the engine did not answer prompt {prompt.id}: {answered.words}",
            where=place,
            fix=f"check the log with `l40s-deploy logs --node {gang.leader.name}`",
        )
    try:
        return answer_of(json.loads(answered.body))
    except (ValueError, RecursionError) as wrong:
        raise NodeError(f"prompt {prompt.id}: {wrong}", where=place, fix="l40s-deploy logs") from None


def baseline_file(subject: Subject) -> Path:
    """$XDG_STATE_HOME/l40s-deploy/golden/NAME.json, whether or not it exists."""
    return state_folder("golden") / f"{subject.name}.json"


def read_baseline(file: Path) -> Baseline | None:
    """None where there is none. Raises InputError where it can't be read."""
    try:
        found: object = Baseline.read(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as failure:
        found = failure
    if isinstance(found, Baseline):
        if found.format == FORMAT:
            return found
        found = f"its format is {found.format}, but this version reads {FORMAT}"
    fix = "accept new answers with `l40s-deploy golden accept`"
    raise InputError(f"this baseline can't be read: {found}", where=str(file), fix=fix)


def golden_json(found: Sequence[Golden]) -> dict[str, Any]:
    """The document of `golden accept|check --json`."""
    verdicts = [one.verdict for one in found]
    verdict = next((v for v in (GoldenVerdict.DIFFERS, GoldenVerdict.NONE) if v in verdicts), GoldenVerdict.SAME)
    gangs = [
        {
            "name": one.gang,
            "verdict": one.verdict.value,
            **one.subject.as_json(),
            "file": one.file,
            "accepted_at": one.baseline.made_at if one.baseline else None,
            "varies": list(one.baseline.varies if one.baseline else ()),
            "left_out": list(one.baseline.left_out if one.baseline else ()),
            "prompts": [each.as_json() for each in one.compared],
        }
        for one in found
    ]
    return {
        "verdict": verdict.value,
        "prompts": [prompt for gang in gangs for prompt in gang["prompts"]],
        "gangs": gangs,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCheck:
    """What became of it on one gang. finding: None where the answers are the accepted ones; error: why it could not be
    asked"""

    gang: str
    golden: Golden | None = None
    finding: Finding | None = None
    error: DeployError | None = None


def after_start(inventory: Inventory, views: Iterable[GangView], progress: Progress) -> tuple[GoldenCheck, ...]:
    """Every gang of these that serves and that answers were accepted for; raises no DeployError."""
    serving = {view.name for view in views if view.serves}
    if not any(state_folder("golden").glob("*.json")):  # spares who waits for the start four logins and two rounds
        return ()
    gangs = [gang for gang in inventory.gangs if gang.name in serving]
    with Fleet([node for gang in gangs for node in gang.nodes]) as fleet:
        asked = [ask_again(fleet, gang, progress) for gang in as_they_run(fleet, gangs)]
    return tuple(one for one in asked if one is not None)


def ask_again(fleet: Fleet, gang: GangSpec, progress: Progress = lambda *_: None) -> GoldenCheck | None:
    """One gang; None where nothing was accepted. Raises nothing."""
    try:
        golden = check_gang(fleet, gang, progress)
    except DeployError as error:
        return GoldenCheck(gang=gang.name, error=error)
    if golden.verdict is GoldenVerdict.NONE:
        return None
    return GoldenCheck(gang=gang.name, golden=golden, finding=_finding(gang, golden))


def finding(fleet: Fleet, gang: GangSpec) -> Finding | None:
    """As the guard asks: what is wrong with a gang's answers."""
    asked = ask_again(fleet, gang)
    return asked.finding if asked is not None else None


def _finding(gang: GangSpec, golden: Golden) -> Finding | None:
    wrong = [one for one in golden.compared if not one.same]
    if not wrong:
        return None
    return Finding(
        id="GOLDEN-DIFFERS",
        severity=Severity.STOP,
        node=gang.leader.name,
        title=f"{len(wrong)} of {len(golden.compared)} answers of {gang.name} are not the accepted ones",
        evidence=tuple(
            f"{one.id}: from token {(one.position or 0) + 1} on {one.expected!r} is now {one.found!r}" for one in wrong
        ),
        effect="the gang serves, but its text may be wrong: weights, a kernel config, peer-to-peer traffic or memory",
        fix="l40s-deploy golden check; then checkpoint verify and doctor. If the new answers are right: golden accept",
    )
