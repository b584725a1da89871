"""`up --gate`: the first changed gang is asked and measured before the router sends it requests, and held against what
it was before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.bench.steps import bench
from orchestrator.bench.store import all_benches
from orchestrator.bench.text import NAME
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.status.reports import as_they_run
from orchestrator.gang.steps.up_operation import Gated
from orchestrator.gang.view import GangView
from orchestrator.golden.answers import Baseline
from orchestrator.golden.batches import AT_ACCEPTANCE
from orchestrator.golden.gate import GATE_FAILED, GatePart, GateReport, OldSpeed, decided, old_speeds, speed_part
from orchestrator.golden.steps import golden
from orchestrator.jobs.run import serving_view
from orchestrator.model.errors import VerificationDiffers
from orchestrator.model.profile import Load
from orchestrator.records.gates import keep_gate
from orchestrator.remote.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What decides. within: share of the old speed that may be lost; timeout_s: for one run of the benchmark"""

    within: float
    timeout_s: float

    def before(self, gated: Gated, watcher: Watcher) -> _Judge:
        """What the gang answers now, and how fast it was: asked while it serves the old plan. Raises what a node's
        answer raises; nothing is stopped then."""
        name = gated.gang.name
        watcher.step(name, "gate: asking the old plan for its answers")
        with Fleet(gated.gang.machines) as fleet:
            (gang,) = as_they_run(fleet, [gated.gang])
            url = serving_view(fleet, gang, why="there is nothing to compare with").service_url
            kept = golden.kept(fleet, gang, _quiet)
            baseline = kept.baseline
            if baseline is None or baseline.batch_noise is None:
                baseline, _ = golden.measured(fleet, gang, kept.subject, url, _quiet)
        speeds = old_speeds(all_benches(), gated.old, name, NAME)
        return _Judge(gate=self, gated=gated, baseline=baseline, accepted=kept.baseline is not None, speeds=speeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judge:
    """accepted: the old answers were accepted by an operator; else they are what the old plan has just answered"""

    gate: Gate
    gated: Gated
    baseline: Baseline
    accepted: bool
    speeds: tuple[OldSpeed, ...]

    def __call__(self, view: GangView, watcher: Watcher) -> None:
        """Of the gang with the new plan, which no router sends requests to yet. Raises VerificationDiffers where it is
        worse, and what a node's answer raises: what could not be measured has not passed."""
        name = self.gated.gang.name
        watcher.step(name, "gate: asking the new plan, alone and among other requests")
        parts = self._answers()
        if all(part.passed for part in parts):
            parts += tuple(self._speed(old, watcher) for old in self.speeds)
        if not self.speeds:
            parts += (GatePart(name="speed", old="no bench of this plan", new="-", passed=None),)
        report = GateReport(
            gang=name, old=self.gated.old, new=view.plan_id, changes=self.gated.changes, parts=tuple(parts)
        )
        keep_gate(view.run_id, report.as_json())
        if report.passed:
            for line in report.lines():
                watcher.step(name, line)
        else:
            raise VerificationDiffers(
                f"{GATE_FAILED}: {report.why}\n    " + "\n    ".join(report.lines()),
                where=f"gang {name}",
                fix="compare the plans with `l40s-deploy plan --diff` and the same options; if the new answers"
                " are right, repeat the same `up` without --gate",
            )

    def _answers(self) -> tuple[GatePart, ...]:
        with Fleet(self.gated.gang.machines) as fleet:
            (gang,) = as_they_run(fleet, [self.gated.gang])
            now = replace(golden.kept(fleet, gang, _quiet), baseline=self.baseline)
            now = golden.checked(fleet, gang, now, _quiet)
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
        alone = replace(self.gated.inventory, gangs=(gang,), router=None)
        done = bench.run_now(alone, order, _quiet)
        runs: tuple[Mapping[str, float], ...] = tuple(done.record["runs"])
        return speed_part(old, runs, within)


def _quiet(what: str, done: int, of: int) -> None:
    """Steps are said; single prompts are not."""
