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

from orchestrator.gang.steps.staging import staged_plan
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
    leader: str
    subject: Subject
    baseline: Baseline | None
    verdict: GoldenVerdict = GoldenVerdict.NONE
    compared: tuple[AnswerComparison, ...] = ()

    @property
    def file(self) -> str:
        """Of the baseline, whether or not it exists."""
        return str(baseline_file(self.subject))

    @property
    def wrong(self) -> tuple[AnswerComparison, ...]:
        """Answers that are not the accepted ones."""
        return tuple(comparison for comparison in self.compared if not comparison.same)

    @property
    def finding(self) -> Finding | None:
        """None where the answers are the accepted ones, or none were accepted."""
        if not self.wrong:
            return None
        return Finding(
            id="GOLDEN-DIFFERS",
            severity=Severity.STOP,
            node=self.leader,
            title=f"{len(self.wrong)} of {len(self.compared)} answers of {self.gang} are not the accepted ones",
            evidence=tuple(
                f"{comparison.id}: from token {(comparison.position or 0) + 1} on"
                f" {comparison.expected!r} is now {comparison.found!r}"
                for comparison in self.wrong
            ),
            effect="the gang serves, but its text may be wrong: weights, a kernel config, peer-to-peer traffic or"
            " memory",
            fix="l40s-deploy golden check; then checkpoint verify NAME and doctor. If the new answers are right: golden"
            " accept",
        )


def of_gangs(
    work: Callable[[Fleet, GangSpec, Progress], Golden], inventory: Inventory, gangs: Sequence[str], progress: Progress
) -> tuple[Golden, ...]:
    """`accept_gang`, `check_gang` or `kept` of each of these gangs. Raises what that raises."""
    chosen = chosen_gangs(inventory, gangs)
    with Fleet([node for gang in chosen for node in gang.nodes]) as fleet:
        return tuple(work(fleet, gang, progress) for gang in as_they_run(fleet, chosen))


def kept(fleet: Fleet, gang: GangSpec, _: Progress) -> Golden:
    """The baseline for what the gang's leader was started with. Asks the engine nothing."""
    request = staged_plan(fleet, replace(gang, nodes=(gang.leader,)), whole=False).requests[gang.leader.name]
    subject = Subject(model=request.model, stack=request.stack, layout=request.layout.key if request.layout else "")
    return Golden(
        gang=gang.name, leader=gang.leader.name, subject=subject, baseline=read_baseline(baseline_file(subject))
    )


def check_gang(fleet: Fleet, gang: GangSpec, progress: Progress) -> Golden:
    """One gang asked every prompt of its baseline; the verdict is `none` if it has none. A difference counts when it is
    there each time: requests of others change the batch, and that the last digit.

    Raises InputError where the gang does not serve, and what a node's answer raises.
    """
    golden = kept(fleet, gang, progress)
    if golden.baseline is None:
        return golden
    url = serving_view(fleet, gang, why="there is no text to check").service_url
    accepted = {name: golden.baseline.prompts[name] for name in PROMPTS if name in golden.baseline.prompts}
    comparisons: dict[str, AnswerComparison] = {}
    for _ in range(REPEATS):
        open_ = [name for name in accepted if name not in comparisons or not comparisons[name].same]
        for name, answer in _asked(fleet, gang, url, open_, progress):
            if answer is None:
                raise NodeError(
                    f"prompt {name} is longer than the engine's context; it was not when its answer was accepted",
                    where=f"gang {gang.name}",
                    fix="compare the engine's flags with `l40s-deploy plan --diff`, or accept again: l40s-deploy "
                    "golden accept",
                )
            comparisons[name] = compare(name, accepted[name], answer)
    compared = tuple(comparisons[name] for name in accepted)
    return replace(golden, verdict=overall(compared), compared=compared)


def accept_gang(fleet: Fleet, gang: GangSpec, progress: Progress) -> Golden:
    """Ask one gang every prompt three times, alone, and keep that as its baseline.

    Raises InputError where the gang does not serve or is busy, and what a node's answer raises.
    """
    golden = kept(fleet, gang, progress)
    url = serving_view(fleet, gang, why="there is no text to check").service_url
    refuse_busy(fleet, gang, url, why="other requests change the batch, and with it the last digits of the answers")
    answers: dict[str, list[Answer]] = {name: [] for name in PROMPTS}
    for _ in range(REPEATS):
        for name, answer in _asked(fleet, gang, url, list(answers), progress):
            if answer is None:
                del answers[name]  # a model with a short context is checked by the others
            elif answer.numbers < len(answer.tokens):
                raise NodeError(
                    f"prompt {name}: the engine computes NaN from token {answer.numbers + 1} on",
                    where=f"gang {gang.name}",
                    fix="verify checkpoint and kernels: l40s-deploy checkpoint verify MODEL; l40s-deploy doctor",
                )
            else:
                answers[name].append(answer)
    prompts = {name: accept(each) for name, each in answers.items()}
    baseline = Baseline(**golden.subject.as_json(), made_at=time.time(), prompts=prompts)
    write_document(baseline_file(golden.subject), baseline.as_json())
    return replace(golden, baseline=baseline, verdict=GoldenVerdict.SAME)


def _asked(
    fleet: Fleet, gang: GangSpec, url: str, prompts: Sequence[str], progress: Progress
) -> Iterator[tuple[str, Answer | None]]:
    """Some prompts with one call: a call takes longer than an answer of a fast engine. They are asked one after the
    other on the leader itself, with the gang's own key; None for one that is longer than the model's context."""
    leader = gang.leader
    for first in range(0, len(prompts), AT_ONCE):
        progress(gang.name, first, len(prompts))
        some = prompts[first : first + AT_ONCE]
        bodies = [json.dumps(generation(PROMPTS[name], MAX_TOKENS)) for name in some]
        asks = tuple(HttpRequest(method="POST", url=url + PATH, body=body, timeout_s=PROMPT_S) for body in bodies)
        request = AskRequest(**where(leader, gang.name), asks=asks)
        ask = partial(ask_http, request=request, deadline_s=PROMPT_S * len(asks) + ANSWER_S)
        answers = fleet.on_every(ask, only=[leader.name]).all()[leader.name]
        for name, answered in zip(some, answers, strict=True):
            yield name, _answer(gang, f"{leader.name}, {url}{PATH}", name, answered)
    progress(gang.name, len(prompts), len(prompts))


def _answer(gang: GangSpec, place: str, prompt: str, answered: HttpAnswer) -> Answer | None:
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
            f"the engine did not answer prompt {prompt}: {answered.words}",
            where=place,
            fix=f"check the log with `l40s-deploy logs --node {gang.leader.name}`",
        )
    try:
        return answer_of(json.loads(answered.body))
    except (ValueError, RecursionError) as wrong:
        raise NodeError(f"prompt {prompt}: {wrong}", where=place, fix="l40s-deploy logs") from None


def baseline_file(subject: Subject) -> Path:
    """$XDG_STATE_HOME/l40s-deploy/golden/NAME.json, whether or not it exists."""
    return state_folder("golden") / f"{subject.name}.json"


def read_baseline(file: Path) -> Baseline | None:
    """None where there is none. Raises InputError where it can't be read."""
    try:
        baseline: object = Baseline.read(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as failure:
        baseline = failure
    if isinstance(baseline, Baseline):
        if baseline.format == FORMAT:
            return baseline
        baseline = f"its format is {baseline.format}, but this version reads {FORMAT}"
    raise InputError(
        f"this baseline can't be read: {baseline}",
        where=str(file),
        fix="accept new answers with `l40s-deploy golden accept`",
    )


def golden_json(goldens: Sequence[Golden]) -> dict[str, Any]:
    """The document of `golden accept|check --json`."""
    verdicts = [golden.verdict for golden in goldens]
    verdict = next((v for v in (GoldenVerdict.DIFFERS, GoldenVerdict.NONE) if v in verdicts), GoldenVerdict.SAME)
    gangs = [
        {
            "name": golden.gang,
            "verdict": golden.verdict.value,
            **golden.subject.as_json(),
            "file": golden.file,
            "accepted_at": golden.baseline.made_at if golden.baseline else None,
            "varies": list(golden.baseline.varies if golden.baseline else ()),
            "left_out": list(golden.baseline.left_out if golden.baseline else ()),
            "prompts": [each.as_json() for each in golden.compared],
        }
        for golden in goldens
    ]
    return {
        "verdict": verdict.value,
        "prompts": [prompt for gang in gangs for prompt in gang["prompts"]],
        "gangs": gangs,
    }


def after_start(
    inventory: Inventory, views: Iterable[GangView], progress: Progress
) -> dict[str, Golden | DeployError | None]:
    """`ask_again` of every gang of these that serves, by name."""
    serving = {view.name for view in views if view.serves}
    if not any(state_folder("golden").glob("*.json")):  # spares who waits for the start four logins and two rounds
        return {}
    gangs = [gang for gang in inventory.gangs if gang.name in serving]
    with Fleet([node for gang in gangs for node in gang.nodes]) as fleet:
        return {gang.name: ask_again(fleet, gang, progress) for gang in as_they_run(fleet, gangs)}


def ask_again(fleet: Fleet, gang: GangSpec, progress: Progress = lambda *_: None) -> Golden | DeployError | None:
    """One gang checked; None where nothing was accepted; an error that kept it from being asked is returned."""
    try:
        golden = check_gang(fleet, gang, progress)
    except DeployError as error:
        return error
    return golden if golden.verdict is not GoldenVerdict.NONE else None


def finding(fleet: Fleet, gang: GangSpec) -> Finding | None:
    """As the guard asks: what is wrong with a gang's answers."""
    asked = ask_again(fleet, gang)
    return asked.finding if isinstance(asked, Golden) else None
