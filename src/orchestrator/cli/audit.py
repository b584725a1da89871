"""`l40s-deploy audit`: who changed a gang, when, with which command."""

from __future__ import annotations

import argparse

from orchestrator.cli.history import lost, moment
from orchestrator.cli.options import add_examples, add_gangs, add_inventory, add_json, open_cluster
from orchestrator.cli.screen import Screen, printable
from orchestrator.workflows.status.history import history


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(parser, "l40s-deploy audit --gang gang0", "l40s-deploy audit --json | jq '.gangs[].lines[-1]'")
    add_inventory(parser)
    add_gangs(parser)
    add_json(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every node answered, 4 otherwise."""
    found = history(open_cluster(args, screen), tuple(args.gang))
    if args.json:
        screen.json({"gangs": [{"name": kept.gang, "lines": [dict(line) for line in kept.audit]} for kept in found]})
        return lost(found, screen)
    for kept in found:
        for line in kept.audit:
            at = line.get("at")
            when = moment(float(at)) if isinstance(at, (int, float)) else ""
            who = f"{line.get('who')}@{line.get('host')} (pid {line.get('pid')})"
            why = f" ({line['why']})" if line.get("why") else ""
            screen.out.print(printable(f"{when}  {kept.gang}  {who}  {line.get('action')}  {line.get('command')}{why}"))
        if not kept.audit:
            screen.out.print(printable(f"{kept.gang}: no commands recorded"))
    return lost(found, screen)
