"""`l40s-deploy rollback`: the plan that a gang had before the one that it has."""

from __future__ import annotations

import argparse

from orchestrator.cli.options import add_accept, add_timeout, add_usual_of_stopped, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.cli.typed import command_line
from orchestrator.gang.commands.outcome import add_all_at_once, add_dry_run
from orchestrator.gang.commands.restart import carry_out, show_restarted
from orchestrator.gang.steps.operation import connected
from orchestrator.gang.steps.restart_sequence import RestartRequest
from orchestrator.gang.steps.rollback import ROLLBACK
from orchestrator.model.chosen import refuse_unnamed


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual_of_stopped(parser, "l40s-deploy rollback gang0", "l40s-deploy history   # plans that you can return to")
    add_timeout(parser)
    add_accept(parser)
    add_all_at_once(parser)
    add_dry_run(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every gang serves its previous plan; 130 when interrupted."""
    request = RestartRequest(
        verb=ROLLBACK,
        gangs=tuple(args.gang),
        command=command_line(),
        timeout_s=args.timeout,
        accept=tuple(args.accept),
        all_at_once=args.all_at_once,
    )
    with connected(open_inventory(args, screen)) as nodes:
        operation = nodes.as_standing()
        if not args.all:
            refuse_unnamed(operation.inventory, args.gang, command_line())
        return carry_out(operation, request, args, screen, lambda done: show_restarted(done, screen))
