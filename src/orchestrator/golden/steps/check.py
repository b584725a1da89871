"""Checks accepted answers without `golden` being called: after a start, and by the guard every day."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.gang.steps.status.reports import as_they_run
from orchestrator.gang.view import GangView
from orchestrator.golden.compare import GoldenVerdict
from orchestrator.golden.steps.golden import Golden, Progress, check_gang
from orchestrator.golden.store import any_baseline
from orchestrator.model.errors import DeployError
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.remote.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCheck:
    """What became of it on one gang. finding: None where the answers are the accepted ones, or none were accepted"""

    gang: str
    golden: Golden | None = None
    finding: Finding | None = None
    error: DeployError | None = None
    """Why it could not be asked."""


def after_start(inventory: Inventory, views: Iterable[GangView], progress: Progress) -> tuple[GoldenCheck, ...]:
    """Every gang of these that serves and that answers were accepted for; raises no DeployError."""
    serving = {view.name for view in views if view.serves}
    if not any_baseline():  # spares the operator who waits for the start four logins and two rounds
        return ()
    gangs = [gang for gang in inventory.gangs if gang.name in serving]
    with Fleet([node for gang in gangs for node in gang.nodes]) as fleet:
        asked = tuple(ask_again(fleet, gang, progress) for gang in as_they_run(fleet, gangs))
    return tuple(one for one in asked if one.error is not None or one.golden is not None)


def ask_again(fleet: Fleet, gang: GangSpec, progress: Progress = lambda *_: None) -> GoldenCheck:
    """One gang. Nothing is asked where nothing was accepted; raises nothing."""
    try:
        golden = check_gang(fleet, gang, progress)
    except DeployError as error:
        return GoldenCheck(gang=gang.name, error=error)
    if golden.verdict is GoldenVerdict.NONE:
        return GoldenCheck(gang=gang.name)
    return GoldenCheck(gang=gang.name, golden=golden, finding=_finding(gang, golden))


def finding(fleet: Fleet, gang: GangSpec) -> Finding | None:
    """As the guard asks: what is wrong with a gang's answers."""
    return ask_again(fleet, gang).finding


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
