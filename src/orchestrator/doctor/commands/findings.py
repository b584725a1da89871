"""Findings on the screen: what several nodes have in common is shown once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.cli.screen import Screen, printable
from orchestrator.doctor.rules.support.grouping import grouped, who
from orchestrator.model.finding import Finding, Severity
from orchestrator.topology.speed import PRICED_ON

_BASIS = re.compile(rf" \([^()]*{re.escape(PRICED_ON)}\)$")
STYLES = {Severity.STOP: "bold red", Severity.SLOW: "yellow", Severity.NOTE: "cyan", Severity.UNKNOWN: "magenta"}


def show_findings(findings: Sequence[Finding], screen: Screen, *, nodes: int) -> None:
    """Each finding as a short paragraph; notes in one line each. nodes: how many there are in all."""
    from rich.text import Text

    bases: set[str] = set()
    for group in grouped(findings):
        finding = group.finding
        head = Text(f"{finding.severity.value:7}", style=STYLES[finding.severity])
        head.append(f" {printable(who(group.nodes, nodes))}: ", style="bold")
        head.append(printable(finding.title), style="")
        head.append(f"  [{finding.id}]", style="dim")
        screen.out.print(head)
        if finding.severity is Severity.NOTE:
            continue
        prefix = f"{finding.node}: " if len(group.nodes) > 1 else ""
        for evidence in finding.evidence:
            screen.out.print(Text(f"          {printable(prefix + evidence)}", style="dim"))
        for label, words in (("costs", _once(finding.effect, bases)), ("fix", finding.fix)):
            if words:
                screen.out.print(Text(f"        {label + ':':6} {printable(words)}"))


def _once(effect: str, bases: set[str]) -> str:
    """What a price rests on, in brackets at its end, is said with the first."""
    basis = _BASIS.search(effect)
    if basis is None or basis[0] not in bases:
        bases.update([basis[0]] if basis else [])
        return effect
    return effect.removesuffix(basis[0])


def summary(findings: Sequence[Finding]) -> str:
    """'2 stop, 3 slow, 4 notes', or 'nothing wrong'."""
    counts = {severity: sum(finding.severity is severity for finding in findings) for severity in Severity}
    return ", ".join(_counted(count, severity) for severity, count in counts.items() if count) or "nothing wrong"


def _counted(count: int, severity: Severity) -> str:
    return f"{count} {severity.value}{'s' if severity is Severity.NOTE and count > 1 else ''}"
