"""`l40s-deploy down`: stop gangs, each in the order that its engine needs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from orchestrator.cli.options import add_timeout, add_usual_of_stopped, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.cli.typed import command_line
from orchestrator.gang.commands.outcome import add_dry_run, show_rehearsal
from orchestrator.gang.serving import Names, Serving, name_words
from orchestrator.gang.steps.changes import would_stop
from orchestrator.gang.steps.down import DownRequest, StopResult, down
from orchestrator.gang.steps.operation import Operation, connected
from orchestrator.gang.steps.router.routing import withdraw
from orchestrator.model.chosen import called, chosen_gangs, refuse_unnamed, the_one_gang
from orchestrator.model.deadlines import STOP_S
from orchestrator.model.inventory import Inventory
from orchestrator.model.per_node import same
from orchestrator.protocol.errors import DeployError, Exit

_NOTHING = ("absent", "stopped", "failed", "staged", "unreachable")


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual_of_stopped(
        parser,
        "l40s-deploy down gang0        # waits for running requests",
        "l40s-deploy down gang0 --now  # immediately",
        "l40s-deploy down --all        # every gang",
        "l40s-deploy down prod --as gang0  # what its nodes run under its former name",
    )
    parser.add_argument("--now", action="store_true", help="stop immediately, without draining requests")
    parser.add_argument(
        "--as",
        dest="former_name",
        metavar="NAME",
        help="stop what the gang's nodes run under this name, which it had when that was started",
    )
    parser.add_argument("--force", action="store_true", help="stop even if another command holds the gang's lock")
    add_timeout(parser, "wait this long for a gang to stop; it continues to stop afterwards", STOP_S)
    add_dry_run(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when nothing is left, 4 where a node could not be asked, 5 where something would not end."""
    inventory, gangs = _meant(args, screen)
    with connected(inventory) as nodes:
        return _down(args, nodes.as_standing(), gangs, screen)


def _down(args: argparse.Namespace, operation: Operation, gangs: tuple[str, ...], screen: Screen) -> int:
    request = DownRequest(gangs=gangs, now=args.now, force=args.force, timeout_s=args.timeout)
    if not args.all:
        refuse_unnamed(operation.inventory, gangs, command_line())
    if args.dry_run:
        chosen = chosen_gangs(operation.inventory, request.gangs)
        return show_rehearsal(would_stop(operation.fleet, chosen, now=args.now), screen)
    last: dict[str, Names] = {}
    stopped = down(operation, request, before_stop=lambda: last.update(_take_out(operation, request.gangs, screen)))
    if args.json:
        screen.json({"nodes": [_json(node) for node in stopped], "last_behind_router": list(last)})
    else:
        _show(stopped, screen)
    if any(node.error is not None for node in stopped):
        return Exit.UNREACHABLE
    return 0 if all(node.clean for node in stopped) else Exit.GANG_FAILED


def _meant(args: argparse.Namespace, screen: Screen) -> tuple[Inventory, tuple[str, ...]]:
    """The inventory, and the names of the gangs in it; with the former name of the gang that has another one now."""
    written = open_inventory(args, screen)
    if args.former_name is None:
        return written, tuple(args.gang)
    gang = the_one_gang(written, args.gang, command="down --as")
    return called(written, gang.name, args.former_name), (args.former_name,)


def _take_out(operation: Operation, gangs: tuple[str, ...], screen: Screen) -> Serving:
    """Remove the gangs from the router first; a router that does not answer does not delay the stop.

    Those that were the last ones behind it to serve their model, which is said before they go.
    """
    try:
        withdrawn = withdraw(operation, gangs, lambda last: _say_last(last, screen))
    except DeployError as failure:
        screen.say(f"{failure.where}: {failure.what}")
        return {}
    for name, holder in withdrawn.changing.items():
        screen.say(
            f"{holder.name} changes the others behind the router that serve what {name} does, with"
            f" `{holder.command}`: requests fail while those are out"
        )
    return withdrawn.last


def _say_last(last: Serving, screen: Screen) -> None:
    for lost in dict.fromkeys(last.values()):
        gangs = ", ".join(gang for gang, its in last.items() if its == lost)
        screen.say(
            f"no gang is left behind the router that serves {name_words(lost)}: {gangs} served it alone, and requests"
            " for it fail from now on"
        )


def _say_errors(nodes: Sequence[StopResult], screen: Screen) -> None:
    for names, error in same({node.node: node.error for node in nodes if node.error is not None}):
        where = f"all {len(nodes)} nodes" if len(names) == len(nodes) > 1 else ", ".join(names)
        screen.say(f"{where}: {error.what}")
        screen.say(f"  fix: {error.fix}; its own ranks stop when its lease expires, if it lost the leader")


def _show(stopped: tuple[StopResult, ...], screen: Screen) -> None:
    for gang in dict.fromkeys(node.gang for node in stopped):
        nodes = [node for node in stopped if node.gang == gang]
        if ran := _stopped(nodes):
            screen.show(f"{gang}: stopped on {', '.join(ran)}")
        elif all(node.error is None for node in nodes):
            screen.show(f"{gang}: nothing was running")
        _say_errors(nodes, screen)
        for words in filter(None, map(_trouble, nodes)):
            screen.say(words)


def _stopped(nodes: Sequence[StopResult]) -> list[str]:
    """Names of those on which something ran, and that could be told."""
    return [node.node for node in nodes if node.was not in _NOTHING and node.error is None]


def _trouble(node: StopResult) -> str:
    """What is left of a node that answered; '' for nothing."""
    answer = node.told
    if answer.left_behind:
        pids = ", ".join(map(str, answer.left_behind))
        return f"{node.node}: process {pids} does not exit (a stuck driver?). Check it with `ps` and `dmesg`"
    if answer.held:
        return f"{node.node}: all our processes have ended, but GPU memory is still in use: {'; '.join(answer.held)}"
    if answer.alive:
        return f"{node.node}: the agent is still stopping. Check again with `l40s-deploy status`, or use --now"
    return ""


def _json(node: StopResult) -> dict[str, Any]:
    return {
        "gang": node.gang,
        "name": node.node,
        "state": node.told.state,
        "was": node.was,
        "left_behind": list(node.told.left_behind),
        "held": list(node.told.held),
        "error": node.error and node.error.as_json(),
    }
