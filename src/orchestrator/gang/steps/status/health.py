"""What the doctor would refuse a restart of a serving gang for: asked once a minute for all who want to know it on this
machine (`status`, `why`, the page, a guard)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from orchestrator.gang.remarks import renewed, unaccepted, with_findings
from orchestrator.gang.steps.status.reports import as_it_runs
from orchestrator.gang.view import GangView
from orchestrator.model.deadlines import HEALTH_ASK_S
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import GangSpec
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.message import Message
from orchestrator.protocol.severity import Severity
from orchestrator.records.documents import health_file, keep_look, last_look
from orchestrator.remote.deadline import ahead
from orchestrator.remote.fleet import Fleet

FRESH_S = 60.0


@dataclass(frozen=True, slots=True)
class KeptFinding(Message):
    """A stop finding as it is kept between two looks."""

    id: str
    severity: str
    node: str
    title: str
    fix: str
    devices: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    effect: str = ""

    @property
    def finding(self) -> Finding:
        """As the rules give it."""
        return Finding(
            id=self.id,
            severity=Severity.STOP,
            node=self.node,
            devices=self.devices,
            title=self.title,
            evidence=self.evidence,
            effect=self.effect,
            fix=self.fix,
        )


def kept(finding: Finding) -> KeptFinding:
    """A stop finding in the form in which it is kept."""
    return KeptFinding(
        id=finding.id,
        severity=finding.severity.value,
        node=finding.node,
        title=finding.title,
        fix=finding.fix,
        devices=finding.devices,
        evidence=finding.evidence,
        effect=finding.effect,
    )


def health(inventory: str, gang: GangSpec) -> tuple[Finding, ...]:
    """What stands against a restart of this gang now, or did within the last FRESH_S, without what its inventory has
    accepted since. Raises what asking raises."""
    file, now = health_file(inventory, gang.name), time.time()
    at, documents = last_look(file) or (0.0, [])
    known = tuple(
        kept_before.finding for kept_before in map(KeptFinding.read, documents) if isinstance(kept_before, KeptFinding)
    )
    if 0 <= now - at < FRESH_S:
        return unaccepted(known, gang)
    with Fleet(gang.nodes) as fleet:
        from orchestrator.gang.steps import checks  # the doctor's rules, which most looks do not need

        findings, unread = checks.standing_stops(fleet, gang)
    after = renewed(known, findings, unread)
    with suppress(DeployError):  # a machine that keeps nothing asks each time
        keep_look(file, now, [kept(finding).as_json() for finding in after])
    return unaccepted(after, gang)


def with_health(inventory: str, gangs: Sequence[GangSpec], views: Sequence[GangView]) -> tuple[GangView, ...]:
    """The views, those of gangs that serve with what stands against a restart. What is not told in time is unknown, and
    left out."""
    specs = {gang.name: gang for gang in gangs}
    serving = [view for view in views if view.serves and view.name in specs]
    asked = {view.name: ahead(partial(health, inventory, as_it_runs(specs[view.name], view))) for view in serving}
    ends = time.monotonic() + HEALTH_ASK_S
    by_gang: dict[str, tuple[Finding, ...]] = {}
    for name, promised in asked.items():
        with suppress(Exception):  # a gang is shown whatever becomes of this question
            by_gang[name] = promised.result(max(0.0, ends - time.monotonic()))
    return tuple(with_findings(view, by_gang.get(view.name, ())) for view in views)
