"""`l40s-deploy restart`: restarts a gang, all of its ranks, with its current plan."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from orchestrator.cli.options import (
    add_accept,
    add_hung_after,
    add_timeout,
    add_usual_of_stopped,
    open_inventory,
)
from orchestrator.cli.screen import Screen
from orchestrator.cli.typed import command_line
from orchestrator.gang.commands.gangs import gang_block
from orchestrator.gang.commands.outcome import RisingProgress, add_dry_run, interrupted, say_checks, show_rehearsal
from orchestrator.gang.overview import status_json
from orchestrator.gang.steps.maintenance import MAINTENANCE
from orchestrator.gang.steps.operation import Operation, connected
from orchestrator.gang.steps.restart import RestartResult, can_roll, rehearse_restart, restart
from orchestrator.gang.steps.restart_sequence import RESTART, ROLLING, RestartRequest, RestartVerb
from orchestrator.model.chosen import refuse_unnamed
from orchestrator.protocol.errors import InputError
from orchestrator.rooms import answers


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual_of_stopped(
        parser,
        "l40s-deploy restart gang0",
        "l40s-deploy restart                              # several gangs behind the router: one at a time",
        "l40s-deploy restart --all-at-once                # all stop together",
        "l40s-deploy restart gang0 --maintenance          # stop, wait until every node has rebooted, start",
        "l40s-deploy restart --maintenance --run 'sh -c \"l40s-deploy prepare --node $L40S_NODE\"'",
    )
    parser.add_argument("--now", action="store_true", help="do not wait for running requests")
    add_timeout(parser, "give up if a gang takes longer than this to start, or its nodes to come back")
    add_hung_after(parser)
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--rolling",
        action="store_true",
        help="restart one gang at a time while the others serve; the default where a router serves several gangs",
    )
    ways.add_argument("--all-at-once", action="store_true", help="stop all of them together, behind a router too")
    ways.add_argument(
        "--maintenance",
        action="store_true",
        help="one gang at a time: stop, wait until each node has rebooted or --run has finished, run doctor, start",
    )
    parser.add_argument(
        "--run",
        default="",
        metavar="COMMAND",
        help="with --maintenance: run COMMAND on this machine once per node, with L40S_NODE, L40S_HOST, L40S_GANG",
    )
    parser.add_argument(
        "--reboots", action="store_true", help="with --run: COMMAND reboots the node; wait until it is back"
    )
    parser.add_argument("--without-router", action="store_true", help="with --rolling: you redirect requests yourself")
    add_accept(parser)
    answers("options", "restart", parser)
    add_dry_run(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every gang serves again; 7 when accepted answers of `golden` have changed."""
    _refuse_strays(args)
    with connected(open_inventory(args, screen)) as nodes:
        return _restart(args, nodes.as_standing(), screen)


def _restart(args: argparse.Namespace, operation: Operation, screen: Screen) -> int:
    request = RestartRequest(
        verb=_verb(args, operation),
        gangs=tuple(args.gang),
        command=command_line(),
        now=args.now,
        timeout_s=args.timeout,
        hung_after_s=args.hung_after,
        accept=tuple(args.accept),
        without_router=args.without_router,
        all_at_once=args.all_at_once,
        run=args.run,
        reboots=args.reboots,
        wait_s=args.timeout,
    )

    def finish(done: RestartResult) -> int:
        checks = answers("after_ready", operation, done.views, args, screen)
        (_show_rolled if done.rolled else show_restarted)(done, screen)
        return say_checks(checks, screen)

    return carry_out(operation, request, args, screen, finish)


def carry_out(
    operation: Operation,
    request: RestartRequest,
    args: argparse.Namespace,
    screen: Screen,
    finish: Callable[[RestartResult], int],
) -> int:
    """Restart, or with --dry-run say what would be done. finish: shows what was done, and has the exit code."""
    try:
        with RisingProgress(screen) as shown:
            would = rehearse_restart(operation, request, shown) if args.dry_run else None
            done = restart(operation, request, shown) if would is None else None
    except KeyboardInterrupt:
        if args.dry_run:
            raise
        return interrupted(screen)
    return finish(done) if done is not None else show_rehearsal(would or (), screen)


def _refuse_strays(args: argparse.Namespace) -> None:
    if not args.maintenance and (args.run or args.reboots):
        raise InputError(
            "--run and --reboots are only valid with --maintenance",
            where="command line",
            fix="add --maintenance",
        )
    if args.rolling and args.now:
        raise InputError(
            "--now does not wait for requests",
            where="command line",
            fix="--rolling waits for them; use only one of the two",
        )


def _verb(args: argparse.Namespace, operation: Operation) -> RestartVerb:
    """Where a router serves other gangs meanwhile they restart one after the other, of whom none need be named."""
    if args.rolling or args.all_at_once:
        return ROLLING if args.rolling else RESTART
    one_by_one = not args.now and can_roll(operation, args.gang)
    if not one_by_one and not args.all:
        refuse_unnamed(operation.inventory, args.gang, command_line())
    if args.maintenance:
        return MAINTENANCE
    return ROLLING if one_by_one else RESTART


def _show_rolled(done: RestartResult, screen: Screen) -> None:
    if screen.as_json:
        screen.json({"seconds": round(done.seconds, 3), "down_seconds": 0.0, **status_json(done.views)})
    else:
        names = ", ".join(view.name for view in done.views)
        screen.show(f"restarted one after the other in {done.seconds:.1f} s: {names}")


def show_restarted(done: RestartResult, screen: Screen) -> int:
    """The gangs as they are now, and how long they did not serve."""
    if screen.as_json:
        screen.json({"down_seconds": round(done.seconds, 3), **status_json(done.views)})
        return 0
    for view in done.views:
        screen.show(*gang_block(view))
        if view.canary_text is not None:
            screen.show(f"serves again after {done.seconds:.1f} s; canary: {view.canary_text.strip()[:100]!r}")
    return 0
