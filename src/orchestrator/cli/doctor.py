"""`l40s-deploy doctor`: what is wrong with the wiring, what it costs, how to mend it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.cli.options import add_examples, add_inventory, add_json, open_inventory
from orchestrator.cli.screen import Screen, printable
from orchestrator.model.errors import InputError
from orchestrator.model.finding import Finding, Severity

STYLES = {Severity.STOP: "bold red", Severity.SLOW: "yellow", Severity.NOTE: "cyan", Severity.UNKNOWN: "magenta"}


def configure(parser: argparse.ArgumentParser) -> None:
    add_inventory(parser)
    add_json(parser)
    parser.add_argument("--accept", action="append", default=[], metavar="ID[@NODE]", help="silence a finding")
    parser.add_argument("--from", dest="saved", metavar="PATH", help="saved snapshots, a tarball or a sysfs directory")
    parser.add_argument("--list-rules", action="store_true", help="every rule, one line each")
    parser.add_argument("--explain", metavar="ID", help="what a rule reads, why, and where it comes from")
    add_examples(
        parser,
        "l40s-deploy doctor                          # look at all nodes of the inventory",
        "l40s-deploy doctor --from snapshots/        # what `discover --save snapshots/` wrote",
        "l40s-deploy doctor --explain ACS-REDIRECT   # what a rule reads and why",
    )


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 nothing of severity stop or slow, 3 otherwise, 4 where a node did not answer."""
    if args.list_rules or args.explain:
        return _rules(args, screen)
    examination = _examine_saved(args.saved) if args.saved else _examine(args, screen)
    if args.json:
        screen.json(document(examination))
    else:
        _show(examination, screen)
    if examination.failures:
        return 4
    return 3 if examination.worst else 0


def _examine(args: argparse.Namespace, screen: Screen) -> Any:
    from orchestrator.workflows.doctor import examine_inventory

    return examine_inventory(open_inventory(args, screen), accept=args.accept)


def _examine_saved(path: str) -> Any:
    from orchestrator.workflows.discover import load_saved
    from orchestrator.workflows.doctor import examine_saved

    return examine_saved(load_saved(Path(path)))


def document(examination: Any) -> dict[str, Any]:
    """The JSON of `doctor`: findings and a count of what each node has."""
    return {
        "findings": [finding_json(finding) for finding in examination.findings],
        "nodes": [
            {
                "name": name,
                "gpus": len(topology.gpus),
                "nics": len({port.address.rpartition(".")[0] for port in topology.rdma}),
                "switches": len(topology.switches),
            }
            for name, topology in examination.cluster.topologies.items()
        ],
        "unreachable": [
            {"name": name, "what": failure.what, "fix": failure.fix} for name, failure in examination.failures.items()
        ],
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """One finding in the product's JSON."""
    return {
        "id": finding.id,
        "severity": finding.severity.value,
        "node": finding.node,
        "devices": list(finding.devices),
        "title": finding.title,
        "evidence": list(finding.evidence),
        "effect": finding.effect,
        "fix": finding.fix,
    }


def _show(examination: Any, screen: Screen) -> None:
    for name, failure in examination.failures.items():
        screen.out.print(f"{printable(name)}: not examined: {printable(failure.what)}", style="bold red")
        screen.out.print(f"  fix: {printable(failure.fix)}")
    show_findings(examination.findings, screen)
    count = len(examination.cluster.topologies)
    gpus = sum(len(topology.gpus) for topology in examination.cluster.topologies.values())
    screen.out.print(f"{count} nodes, {gpus} GPUs examined: {summary(examination.findings)}")


def show_findings(findings: Sequence[Finding], screen: Screen) -> None:
    """Each finding as a short paragraph; notes last, in one line each."""
    from rich.text import Text

    for finding in findings:
        head = Text(f"{finding.severity.value:7}", style=STYLES[finding.severity])
        head.append(f" {printable(finding.node or 'cluster')}: ", style="bold")
        head.append(printable(finding.title), style="")
        head.append(f"  [{finding.id}]", style="dim")
        screen.out.print(head)
        if finding.severity is Severity.NOTE:
            continue
        for evidence in finding.evidence:
            screen.out.print(Text(f"          {printable(evidence)}", style="dim"))
        for label, words in (("costs", finding.effect), ("fix", finding.fix)):
            if words:
                screen.out.print(Text(f"        {label}: {printable(words)}"))


def summary(findings: Sequence[Finding]) -> str:
    """'2 stop, 3 slow, 1 note', or 'nothing wrong'."""
    counts = {severity: sum(finding.severity is severity for finding in findings) for severity in Severity}
    return ", ".join(f"{count} {severity.value}" for severity, count in counts.items() if count) or "nothing wrong"


def _rules(args: argparse.Namespace, screen: Screen) -> int:
    from orchestrator.rules.registry import all_rules

    loaded = {each.rule.id: each.rule for each in all_rules()}
    if args.explain:
        rule = loaded.get(args.explain)
        if rule is None:
            raise InputError(
                f"no rule {args.explain!r}; known: {', '.join(loaded)}",
                where="--explain",
                fix="l40s-deploy doctor --list-rules",
            )
        chosen = [rule]
    else:
        chosen = list(loaded.values())
    if args.json:
        screen.json(
            {"rules": [{"id": r.id, "title": r.title, "explain": r.explain, "reads": list(r.reads)} for r in chosen]}
        )
        return 0
    for rule in chosen:
        screen.out.print(f"{rule.id:24} {rule.title}")
        if args.explain:
            screen.out.print(f"  why:    {rule.explain}")
            for path in rule.reads:
                screen.out.print(f"  reads:  {path}")
            screen.out.print(f"  source: {rule.source}")
    return 0
