"""`golden`: accepted answers, asked for again: when it is called, after a start, and by the guard every day. A
difference means wrong weights, kernels or memory."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.engines.settings import ASK_FOR_DRAFTS
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.staging import staged_plan
from orchestrator.gang.view import GangView
from orchestrator.golden.answers import (
    FORMAT,
    PROMPTS,
    Answer,
    AnswerComparison,
    Baseline,
    GoldenVerdict,
    Subject,
    accept,
    compare,
    overall,
)
from orchestrator.golden.batches import (
    AT_ACCEPTANCE,
    BY_GUARD,
    BatchCheck,
    BatchedAnswer,
    batches,
    difference,
    differing,
    noise_in,
)
from orchestrator.golden.steps.asking import Progress, asked, asked_at_once
from orchestrator.jobs.run import refuse_busy, serving_view
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import GangSpec
from orchestrator.protocol.errors import DeployError, InputError, NodeError
from orchestrator.protocol.severity import Severity
from orchestrator.records.documents import state_folder, write_document
from orchestrator.remote.fleet import Fleet

REPEATS = 3
"""How often an engine is asked before its answer is a baseline, and before a difference is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """One gang. baseline: None where nothing was accepted for it; drafts: its engine drafts; compared: empty where
    nothing was asked."""

    gang: str
    leader: str
    subject: Subject
    baseline: Baseline | None
    drafts: bool = False
    verdict: GoldenVerdict = GoldenVerdict.NONE
    compared: tuple[AnswerComparison, ...] = ()
    in_batches: BatchCheck | None = None
    """None where nothing was asked in batches."""

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
            return self._in_batches()
        gang = shlex.quote(self.gang)
        return Finding(
            id="GOLDEN-DIFFERS",
            severity=Severity.STOP,
            node=self.leader,
            title=f"{len(self.wrong)} of {len(self.compared)} answers of {self.gang} are not the accepted ones",
            evidence=tuple(comparison.words for comparison in self.wrong),
            effect="the gang serves, but its text may be wrong: weights, a kernel config, peer-to-peer traffic or"
            " memory",
            fix=f"ask again with `l40s-deploy golden check {gang}`; verify the checkpoint with `checkpoint verify`,"
            f" and the nodes with `l40s-deploy doctor`. If the new answers are right:"
            f" `l40s-deploy golden accept {gang}`",
        )

    def _in_batches(self) -> Finding | None:
        """Where answers are right alone, and not among others."""
        if self.in_batches is None or not self.in_batches.differ:
            return None
        differ = self.in_batches.differ
        return Finding(
            id="TEXT-DIFFERS-IN-BATCH",
            severity=Severity.STOP,
            node=self.leader,
            title=f"{len(differ)} of {self.in_batches.answers} answers of {self.gang} are other ones when several are"
            " made at once",
            evidence=tuple(each.words for each in differ),
            effect="the gang serves, but its text may be wrong under load: a kernel or its config for larger batches",
            fix="l40s-deploy golden check --requests 16; what was changed since it was right: l40s-deploy history",
        )


def of_gangs(
    work: Callable[[Fleet, GangSpec, Progress], Golden], operation: Operation, gangs: Sequence[str], progress: Progress
) -> tuple[Golden, ...]:
    """`accept_gang`, `check_gang` or `kept` of each of these gangs. Raises what that raises."""
    chosen = chosen_gangs(operation.inventory, gangs)
    return tuple(work(operation.fleet, gang, progress) for gang in operation.as_they_run(chosen))


def kept(fleet: Fleet, gang: GangSpec, _: Progress) -> Golden:
    """The baseline for what the gang's leader was started with. Asks the engine nothing."""
    request = staged_plan(fleet, replace(gang, nodes=(gang.leader,)), whole=False).requests[gang.leader.name]
    subject = Subject(model=request.model, stack=request.stack, layout=request.layout.key if request.layout else "")
    return Golden(
        gang=gang.name,
        leader=gang.leader.name,
        subject=subject,
        baseline=read_baseline(baseline_file(subject)),
        drafts=any(flag in ASK_FOR_DRAFTS for flag, *_ in request.flags),
    )


def check_gang(fleet: Fleet, gang: GangSpec, progress: Progress) -> Golden:
    """One gang asked every prompt of its baseline; the verdict is `none` if it has none. A difference counts when it is
    there each time: requests of others change the batch, and that the last digit.

    Raises InputError where the gang does not serve, and what a node's answer raises.
    """
    golden = kept(fleet, gang, progress)
    return golden if golden.baseline is None else checked(fleet, gang, golden, progress)


def checked(fleet: Fleet, gang: GangSpec, golden: Golden, progress: Progress) -> Golden:
    """The same with this baseline, wherever it comes from."""
    assert golden.baseline is not None
    url = serving_view(fleet, gang, why="there is no text to check").service_url
    accepted, noise = golden.baseline.known, golden.baseline.noise_of(drafts=golden.drafts)
    comparisons: dict[str, AnswerComparison] = {}
    for _ in range(REPEATS):
        open_ = [name for name in accepted if name not in comparisons or not comparisons[name].same]
        for name, answer in asked(fleet, gang, url, open_, progress):
            if answer is None:
                raise NodeError(
                    f"prompt {name} is longer than the engine's context; it was not when its answer was accepted",
                    where=f"gang {gang.name}",
                    fix="compare the engine's flags with `l40s-deploy plan --diff`, or accept again: l40s-deploy "
                    "golden accept",
                )
            comparisons[name] = compare(name, accepted[name], answer, noise=noise)
    compared = tuple(comparisons[name] for name in accepted)
    return replace(golden, verdict=overall(compared), compared=compared)


def check_in_batches(fleet: Fleet, gang: GangSpec, progress: Progress, *, requests: int) -> Golden:
    """`check_gang`, and then up to so many requests at once, accepted prompts among others. Raises what that raises."""
    golden = check_gang(fleet, gang, progress)
    if golden.baseline is None or golden.wrong:
        return golden
    return checked_in_batches(fleet, gang, golden, progress, requests=requests)


def checked_in_batches(fleet: Fleet, gang: GangSpec, golden: Golden, progress: Progress, *, requests: int) -> Golden:
    """With what batches of up to so many requests answer, held against its baseline."""
    assert golden.baseline is not None
    url = serving_view(fleet, gang, why="there is no text to check").service_url
    return _judged_in_batches(
        fleet, gang, url, golden, _in_batches(fleet, gang, url, golden.baseline, requests, progress)
    )


def _in_batches(
    fleet: Fleet, gang: GangSpec, url: str, baseline: Baseline, requests: int, progress: Progress
) -> tuple[BatchedAnswer, ...]:
    asked_for = batches(requests, tuple(baseline.known))
    answers: list[BatchedAnswer] = []
    for number, batch in enumerate(asked_for):
        progress(f"{gang.name}, batches", number, len(asked_for))
        answers += asked_at_once(fleet, gang, url, batch)
    progress(f"{gang.name}, batches", len(asked_for), len(asked_for))
    return tuple(answers)


def _judged_in_batches(
    fleet: Fleet, gang: GangSpec, url: str, golden: Golden, answers: Sequence[BatchedAnswer]
) -> Golden:
    """What no tie explains is asked once more, alone."""
    assert golden.baseline is not None
    accepted = golden.baseline.prompts
    wrong = differing(accepted, answers, golden.baseline.batch_noise or 0.0)
    names = tuple(dict.fromkeys(each.prompt for each, _ in wrong))
    noise = golden.baseline.noise_of(drafts=golden.drafts)
    alone = {
        name: answer is not None and compare(name, accepted[name], answer, noise=noise).same
        for name, answer in asked(fleet, gang, url, names, lambda *_: None)
    }
    check = BatchCheck(
        sizes=tuple(sorted({each.beside + 1 for each in answers})),
        answers=sum(each.prompt in accepted for each in answers),
        differ=tuple(difference(each, compared, alone=alone[each.prompt]) for each, compared in wrong),
    )
    verdict = GoldenVerdict.DIFFERS if wrong else golden.verdict
    return replace(golden, in_batches=check, verdict=verdict)


def accept_gang(fleet: Fleet, gang: GangSpec, progress: Progress) -> Golden:
    """Ask one gang every prompt three times, alone, and keep that as its baseline; then in batches, for what they
    change of the last digits. The verdict is `differs` where a batch changes more.

    Raises InputError where the gang does not serve or is busy, and what a node's answer raises.
    """
    golden = kept(fleet, gang, progress)
    url = serving_view(fleet, gang, why="there is no text to check").service_url
    refuse_busy(fleet, gang, url, why="other requests change the batch, and with it the last digits of the answers")
    baseline, in_batches = measured(fleet, gang, golden, url, progress)
    write_document(baseline_file(golden.subject), baseline.as_json())
    accepted = replace(golden, baseline=baseline, verdict=GoldenVerdict.SAME)
    return _judged_in_batches(fleet, gang, url, accepted, in_batches)


def measured(
    fleet: Fleet, gang: GangSpec, golden: Golden, url: str, progress: Progress
) -> tuple[Baseline, tuple[BatchedAnswer, ...]]:
    """What the engine answers now and varies by itself, and its answers in batches. Raises NodeError for NaN."""
    answers: dict[str, list[Answer]] = {name: [] for name in PROMPTS}
    for _ in range(REPEATS):
        for name, answer in asked(fleet, gang, url, list(answers), progress):
            if answer is None:
                del answers[name]  # a model with a short context is checked by the others
            elif answer.numbers < len(answer.tokens):
                verify = f"l40s-deploy checkpoint verify {shlex.quote(golden.subject.model)}"
                raise NodeError(
                    f"prompt {name}: the engine computes NaN from token {answer.numbers + 1} on",
                    where=f"gang {gang.name}",
                    fix=f"verify checkpoint and kernels: `{verify}`, `l40s-deploy doctor`",
                )
            else:
                answers[name].append(answer)
    prompts = {name: accept(each) for name, each in answers.items()}
    baseline = Baseline(**golden.subject.as_json(), made_at=time.time(), prompts=prompts, drafts=golden.drafts)
    in_batches = _in_batches(fleet, gang, url, baseline, AT_ACCEPTANCE, progress)
    return replace(baseline, batch_noise=noise_in(prompts, in_batches)), in_batches


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
            "in_batches": golden.in_batches.as_json() if golden.in_batches else None,
        }
        for golden in goldens
    ]
    return {
        "verdict": verdict.value,
        "prompts": [prompt for gang in gangs for prompt in gang["prompts"]],
        "gangs": gangs,
    }


def after_start(
    operation: Operation, views: Iterable[GangView], progress: Progress
) -> dict[str, Golden | DeployError | None]:
    """`ask_again` of every gang of these that serves, by name."""
    serving = {view.name for view in views if view.serves}
    if not any(state_folder("golden").glob("*.json")):  # spares who waits for the start four logins and two rounds
        return {}
    gangs = [gang for gang in operation.inventory.gangs if gang.name in serving]
    return {gang.name: ask_again(operation.fleet, gang, progress) for gang in operation.as_they_run(gangs)}


def ask_again(fleet: Fleet, gang: GangSpec, progress: Progress = lambda *_: None) -> Golden | DeployError | None:
    """One gang checked; None where nothing was accepted; an error that kept it from being asked is returned."""
    try:
        golden = check_gang(fleet, gang, progress)
    except DeployError as error:
        return error
    return golden if golden.verdict is not GoldenVerdict.NONE else None


def finding(fleet: Fleet, gang: GangSpec) -> Finding | None:
    """As the guard asks: what is wrong with a gang's answers, and, outside of peaks, with those of a few at once."""
    golden = ask_again(fleet, gang)
    if isinstance(golden, Golden) and golden.finding is None:
        golden = _while_idle(fleet, gang, golden)
    return golden.finding if isinstance(golden, Golden) else None


def _while_idle(fleet: Fleet, gang: GangSpec, golden: Golden) -> Golden:
    """Asked in one batch where nobody else asks; as it was where somebody does, or what is asked is not answered."""
    assert golden.baseline is not None
    try:
        url = serving_view(fleet, gang, why="there is no text to check").service_url
        refuse_busy(fleet, gang, url, why="others wait meanwhile")
        answers = [
            answer
            for batch in batches(BY_GUARD, tuple(golden.baseline.known))[:1]
            for answer in asked_at_once(fleet, gang, url, batch)
        ]
        return _judged_in_batches(fleet, gang, url, golden, answers)
    except DeployError:
        return golden
