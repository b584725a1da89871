"""What is wrong about a gang although it serves, as findings: each is a remark in `status` and `why`, and one message
at its beginning and one at its end. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from orchestrator.gang.view import GangView
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import GangSpec
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.severity import Severity

ROUTER_ENTRY = "ROUTER-ENTRY-MISSING"
POWERLESS = "GUARD-POWERLESS"
CERTIFICATE = "CERT-EXPIRES"
TLS_FILES = "ROUTER-TLS-FILES"
SOON = timedelta(days=14)
"""A certificate that expires earlier is told of: an authority takes days, and some renew theirs that early."""


def with_findings(view: GangView, findings: Iterable[Finding]) -> GangView:
    """The view with these findings, each of them a remark too."""
    new = tuple(finding for finding in findings if finding not in view.findings)
    remarks = (*view.remarks, *(words for words in map(sentence, new) if words not in view.remarks))
    return replace(view, findings=(*view.findings, *new), remarks=remarks)


def unaccepted(findings: Iterable[Finding], gang: GangSpec) -> tuple[Finding, ...]:
    """Without those that the inventory accepts (`l40s_accept`): a node's by its own, the gang's where all its nodes do.
    They are no remarks, and nowhere counted or told of."""
    own = {node.name: {*node.accept} for node in gang.machines}
    everywhere = {*accepted_everywhere(gang)}
    return tuple(
        finding
        for finding in findings
        if not {finding.id, f"{finding.id}@{finding.node}"} & own.get(finding.node, everywhere)
    )


def accepted_everywhere(gang: GangSpec) -> tuple[str, ...]:
    """Ids of findings that all its nodes accept: with them, what concerns no node in particular."""
    own = [{*node.accept} for node in gang.machines]
    return tuple(sorted(set.intersection(*own))) if own else ()


def sentence(finding: Finding) -> str:
    """A finding as one line."""
    where = f"{finding.node}: " if finding.node else ""
    fix = f" (fix: {finding.fix})" if finding.fix else ""
    return f"{where}{finding.title} [{finding.id}]{fix}"


def renewed(before: Iterable[Finding], now: Iterable[Finding], unread: Collection[str]) -> tuple[Finding, ...]:
    """What is known after a look. unread: names of nodes that did not answer it, which keep what was found before."""
    return (*now, *(finding for finding in before if finding.node in unread))


def of_router_entry(view: GangView, place: str | None) -> tuple[Finding, ...]:
    """What is wrong with the router's entry of a gang that serves. place: in, unhealthy or out; None where that is
    unknown, which is no fault."""
    if not view.serves or place not in ("out", "unhealthy"):
        return ()
    title = f"{view.name} serves, and the router has no entry of it: it gets no requests"
    if place == "unhealthy":
        title = f"{view.name} serves, and the router takes it for unhealthy: it gets no requests"
    return (Finding(id=ROUTER_ENTRY, severity=Severity.STOP, node="", title=title, fix="l40s-deploy router up"),)


def of_certificate(until: datetime | None, now: datetime, newer: datetime | None, where: str) -> tuple[Finding, ...]:
    """What is wrong about the certificate that the router's clients are shown.

    until: when it expires, None where that is unknown; newer: when the one expires that this machine has for it, None
    for none; where: the inventory's variable that names its file
    """
    if until is None or until - now > SOON:
        return ()
    when = "expires" if until > now else "expired"
    title = f"the certificate that the router's clients are shown {when} on {until:%Y-%m-%d}"
    if newer is not None and newer > until:
        title += f"; the file of {where} has one until {newer:%Y-%m-%d}, which it has not read"
        fix = "l40s-deploy router down, then l40s-deploy router up"
    else:
        fix = f"put a new one and its key where {where} says, then `l40s-deploy router down`, `l40s-deploy router up`"
    severity = Severity.NOTE if until > now else Severity.STOP
    return (Finding(id=CERTIFICATE, severity=severity, node="", title=title, fix=fix),)


def of_tls_files(error: InputError | None) -> tuple[Finding, ...]:
    """What is wrong about the files that the running router would be started with again. error: why they would not do;
    None for nothing"""
    if error is None:
        return ()
    title = f"the router serves, and the next start of it will be refused: {error.what}"
    return (Finding(id=TLS_FILES, severity=Severity.NOTE, node="", title=title, fix=error.fix),)


def powerless(view: GangView, why: str, fix: str) -> Finding:
    """A guard has to restart this gang, and can't."""
    title = f"{view.name} has to be restarted, and the guard can't: {why}"
    return Finding(id=POWERLESS, severity=Severity.STOP, node="", devices=(view.run_id,), title=title, fix=fix)
