"""`up --gate`: the first changed gang is asked and measured before the router sends it requests, and held against what
it was before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from orchestrator.bench.steps import bench
from orchestrator.bench.store import all_benches
from orchestrator.bench.text import NAME
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.up_operation import Gated
from orchestrator.gang.view import GangView
from orchestrator.golden.answers import Baseline
from orchestrator.golden.batches import AT_ACCEPTANCE
from orchestrator.golden.gate import (
    GATE_FAILED,
    GatePart,
    GateReport,
    OldSpeed,
    decided,
    kernels_part,
    old_speeds,
    questions_part,
    speed_part,
    start_part,
)
from orchestrator.golden.questions import Graded, Question
from orchestrator.golden.steps import golden
from orchestrator.golden.steps.gate_page import gate_html, page_of
from orchestrator.golden.steps.questions import graded
from orchestrator.jobs.run import serving_view
from orchestrator.model.inventory import GangSpec
from orchestrator.model.per_node import lost_first
from orchestrator.model.profile import Load
from orchestrator.protocol.errors import DeployError, VerificationDiffers
from orchestrator.records.gates import keep_gate, kept_gate
from orchestrator.tuning.kernels import KernelVerdict, wrong_words
from orchestrator.tuning.steps import kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What decides. within: share of the old speed that may be lost; timeout_s: for one run of the benchmark;
    questions: of `--gate-eval`"""

    within: float
    timeout_s: float
    questions: tuple[Question, ...] = ()

    def before(self, gated: Gated, watcher: Watcher) -> _Judge:
        """What the gang answers now, how fast it was, and whether the new plan's kernels are right: while it serves the
        old plan. Raises VerificationDiffers for a wrong kernel, and what a node's answer raises; nothing is stopped
        then."""
        name = gated.gang.name
        watcher.step(name, "gate: trying the new plan's kernels")
        tried = _kernels(gated)
        watcher.step(name, "gate: asking the old plan for its answers")
        fleet = gated.here.fleet
        (gang,) = gated.here.as_they_run([gated.gang])
        url = serving_view(fleet, gang, why="there is nothing to compare with").service_url
        kept = golden.kept(fleet, gang, _quiet)
        baseline = kept.baseline
        if baseline is None or baseline.batch_noise is None:
            now, _ = golden.measured(fleet, gang, kept, url, _quiet)
            baseline = now if baseline is None else replace(baseline, batch_noise=now.batch_noise)
        answers = graded(fleet, gang, url, kept.subject.model, self.questions, _quiet)
        return _Judge(
            gate=self,
            gated=gated,
            tried=tried,
            baseline=baseline,
            accepted=kept.baseline is not None,
            graded=answers,
            speeds=old_speeds(all_benches(), gated.old, name, NAME),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judge:
    """tried: the new plan's kernels; accepted: the old answers were accepted by an operator, else they are what the old
    plan has just answered; graded: its answers to the questions"""

    gate: Gate
    gated: Gated
    tried: GatePart
    baseline: Baseline
    accepted: bool
    graded: Graded
    speeds: tuple[OldSpeed, ...]

    def __call__(self, view: GangView, watcher: Watcher) -> None:
        """Of the gang with the new plan, which no router sends requests to yet. Raises VerificationDiffers where it is
        worse, and what a node's answer raises: what could not be measured has not passed."""
        name = self.gated.gang.name
        watcher.step(name, "gate: asking the new plan, alone and among other requests")
        fleet = self.gated.here.fleet
        (gang,) = self.gated.here.as_they_run([self.gated.gang])
        kept = golden.kept(fleet, gang, _quiet)
        parts = self._answers(gang, kept)
        if all(part.passed for part in parts) and self.graded.questions:
            parts += (self._questions(gang, kept.subject.model, watcher),)
        if all(part.passed for part in parts):
            parts += tuple(self._speed(old, watcher) for old in self.speeds)
        if not self.speeds:
            parts += (GatePart(name="speed", old="no bench of this plan", new="-", passed=None),)
        report = self._report(parts)
        lines = self._kept(view.run_id, report)
        if report.passed:
            for line in lines:
                watcher.step(name, line)
        else:
            raise VerificationDiffers(
                f"{GATE_FAILED}: {report.why}\n    " + "\n    ".join(lines),
                where=f"gang {name}",
                fix="compare the plans with `l40s-deploy plan --diff` and the same options; if the new answers"
                " are right, repeat the same `up` without --gate",
            )

    def refused(self, run_id: str, failure: DeployError) -> str:
        """It did not come up, could not be asked, or another check of its start refused it."""
        if kept_gate(run_id) is not None:
            return ""
        parts = (start_part(failure.where, failure.what),)
        report = replace(self._report(parts), cause=f"{failure.where}: {failure.what}", fix=failure.fix)
        return "\n    ".join(self._kept(run_id, report))

    def _report(self, parts: tuple[GatePart, ...]) -> GateReport:
        gated = self.gated
        return GateReport(
            gang=gated.gang.name,
            old=gated.old,
            new=gated.plan.plan_id,
            changes=gated.changes,
            parts=(self.tried, *parts),
        )

    def _kept(self, run_id: str, report: GateReport) -> list[str]:
        """The page as lines, and where it lies for a browser."""
        html = keep_gate(run_id, report.as_json(), gate_html(page_of(report, run_id)))
        return [*report.lines(), *([f"  page: {html}"] if html else [])]

    def _questions(self, gang: GangSpec, model: str, watcher: Watcher) -> GatePart:
        fleet = self.gated.here.fleet
        watcher.step(gang.name, f"gate: asking {len(self.graded.questions)} questions")
        url = serving_view(fleet, gang, why="it can't be asked").service_url
        return questions_part(self.graded, graded(fleet, gang, url, model, self.graded.questions, _quiet))

    def _answers(self, gang: GangSpec, kept: golden.Golden) -> tuple[GatePart, ...]:
        fleet = self.gated.here.fleet
        now = golden.checked(fleet, gang, replace(kept, baseline=self.baseline), _quiet)
        if not now.wrong:
            now = golden.checked_in_batches(fleet, gang, now, _quiet, requests=AT_ACCEPTANCE)
        old = "accepted" if self.accepted else "asked before"
        right = len(now.compared) - len(now.wrong)
        parts = [
            GatePart(
                name="answers",
                old=f"{len(now.compared)} {old}",
                new=f"{right} the same",
                passed=not now.wrong,
                why=now.wrong[0].words if now.wrong else "",
            )
        ]
        if now.in_batches is not None:
            differ = now.in_batches.differ
            parts.append(
                GatePart(
                    name="answers among others",
                    old=f"{now.in_batches.answers}",
                    new=f"{now.in_batches.answers - len(differ)} the same",
                    passed=not differ,
                    why=differ[0].words if differ else "",
                )
            )
        return tuple(parts)

    def _speed(self, old: OldSpeed, watcher: Watcher) -> GatePart:
        gang, within = self.gated.gang, self.gate.within
        watcher.step(gang.name, f"gate: measuring {old.name}")
        order = bench.BenchOptions(
            gangs=(gang.name,),
            load=Load(**old.load),
            timeout_s=self.gate.timeout_s,
            enough=lambda runs: decided(old, runs, within),
        )
        done = bench.measured(self.gated.here, gang, order, _quiet)
        runs: tuple[Mapping[str, float], ...] = tuple(done.record["runs"])
        return speed_part(old, runs, within)


def _kernels(gated: Gated) -> GatePart:
    """Tried on GPUs that nobody uses. Raises VerificationDiffers for a wrong one."""
    here, gang, requests = gated.here, gated.gang, gated.plan.requests
    idle = kernels.on_idle_gpus(requests, here.topologies)
    unknown = partial(GatePart, name="kernels", old="-", new="not tried", passed=None)
    if not idle:
        why = f"every GPU of {', '.join(requests)} is in use; --check-kernels tries them once it has stopped"
        return unknown(why=why)
    model = here.request.plan.model or gated.plan.model
    try:
        done = kernels.check(here.fleet, gang, idle, here.topologies, model, _quiet, spared=True)
        if done.lost:
            raise lost_first(done.lost)
    except DeployError as failure:
        return unknown(why=f"{failure.where}: {failure.what}")
    what, fix = wrong_words(done.nodes)
    if what:
        raise VerificationDiffers(f"{GATE_FAILED}: nothing was stopped: {what}", where=f"gang {gang.name}", fix=fix)
    results = [result for of_node in done.nodes.values() for result in of_node]
    return kernels_part([result.verdict is KernelVerdict.RIGHT for result in results], tuple(done.nodes))


def _quiet(what: str, done: int, of: int) -> None:
    """Steps are said; single prompts are not."""
