"""`l40s-deploy router`: the one address before several gangs."""

from __future__ import annotations

import argparse
from typing import Any

from orchestrator.cli.options import add_examples, add_inventory, add_json, add_timeout, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.cli.typed import command_line
from orchestrator.gang.claims import Way
from orchestrator.gang.commands.gangs import cause_lines, limit_words
from orchestrator.gang.commands.outcome import RisingProgress, add_all_at_once, add_dry_run, show_rehearsal
from orchestrator.gang.steps.operation import Operation, connected
from orchestrator.gang.steps.router.claim import RouterTurn
from orchestrator.gang.steps.router.client import RouterState
from orchestrator.gang.steps.router.entry import add_gang, remove_gang
from orchestrator.gang.steps.router.routing import (
    router_state,
    start_router,
    stop_router,
    would_start_router,
    would_stop_router,
)
from orchestrator.model.deadlines import ROUTER_START_S, STOP_S
from orchestrator.model.gang_state import GangState
from orchestrator.protocol.errors import Exit

_VERBS = {
    "up": "start it and add every gang that serves",
    "add": "have requests go to a gang that serves, by its aliases too",
    "remove": "have no request go to a gang, which serves on; those that it has are answered first",
    "status": "show whether it serves, and to which gangs",
    "down": "stop it; running requests get up to a minute",
}


_OF_A_GANG = ("add", "remove")


def configure(parser: argparse.ArgumentParser) -> None:
    """The words after `router`."""
    add_examples(parser, "l40s-deploy router up", "l40s-deploy router status", "l40s-deploy router remove gang1")
    verbs = parser.add_subparsers(dest="router_verb", required=True, metavar="up | add | remove | status | down")
    for name, summary in _VERBS.items():
        verb = verbs.add_parser(name, help=summary)
        add_examples(verb, f"l40s-deploy router {name}{' gang1' if name in _OF_A_GANG else ''}")
        add_inventory(verb)
        if name in _OF_A_GANG:
            verb.add_argument("gang", metavar="GANG", help="its name in the inventory")
        if name == "remove":
            add_timeout(verb, "wait this long while another command changes a gang behind the router", STOP_S)
            add_all_at_once(verb)
        if name == "up":
            add_timeout(verb, "give up if the router takes longer than this to start", ROUTER_START_S)
        if name == "down":
            add_timeout(verb, "wait this long for the router to stop; it continues to stop afterwards", STOP_S)
        if name in ("up", "down"):
            add_dry_run(verb)
        add_json(verb)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when it is as it was asked for; `status`: 5 when it failed, 4 when its host does not answer, 3 when it sends
    requests to no gang."""
    with connected(open_inventory(args, screen)) as nodes:
        return _run(args, nodes.as_standing(), screen)


def _run(args: argparse.Namespace, operation: Operation, screen: Screen) -> int:
    if args.router_verb in _OF_A_GANG:
        return _change(args, operation, screen)
    if args.router_verb != "status" and args.dry_run:
        would = would_start_router if args.router_verb == "up" else would_stop_router
        return show_rehearsal(would(operation), screen)
    if args.router_verb == "down":
        stopped = stop_router(operation, command=command_line(), timeout_s=args.timeout)
        if args.json:
            screen.json({"stopped": all(node.clean for node in stopped)})
        return 0 if all(node.clean for node in stopped) else Exit.GANG_FAILED
    if args.router_verb == "up":
        with RisingProgress(screen) as shown:
            state = start_router(operation, shown, command=command_line(), timeout_s=args.timeout)
    else:
        state = router_state(operation)
    screen.json(_json(state)) if args.json else _show(state, screen)
    return state.exit_code


def _change(args: argparse.Namespace, operation: Operation, screen: Screen) -> int:
    """One gang's entry."""
    with RisingProgress(screen) as shown:
        if args.router_verb == "add":
            state = add_gang(operation, args.gang)
        else:
            turn = RouterTurn(
                operation=operation,
                gangs=(args.gang,),
                command=command_line(),
                watcher=shown,
                patience_s=args.timeout,
                way=Way.AT_ONCE if args.all_at_once else Way.WAITS,
            )
            state = remove_gang(operation, args.gang, turn, shown)
    screen.json(_json(state)) if args.json else _show(state, screen)
    return Exit.DONE


def _show(state: RouterState, screen: Screen) -> None:
    cause, limit = state.view.cause, limit_words(state.view.request_limit)
    screen.show(f"router {state.view.state.value}  {state.url}{limit}", *(cause_lines(cause) if cause else ()))
    if state.view.state is GangState.FAILED:
        screen.show("  start it again: l40s-deploy router up")
    screen.show(*(f"  {node.name}: {node.error}" for node in state.view.unreachable))
    for worker in state.workers:
        health = "healthy" if worker.healthy else "not healthy"
        models = "".join(f", {model.words}" for model in worker.models)
        whose = "; no gang of this inventory serves there" if worker.url in state.nobodys else ""
        screen.show(f"  {worker.url}  {health}, {worker.load} requests{models}{whose}")


def _json(state: RouterState) -> dict[str, Any]:
    return {
        "state": state.view.state.value,
        "url": state.url,
        "max_requests": state.view.request_limit,
        "workers": [
            {
                "url": worker.url,
                "healthy": worker.healthy,
                "load": worker.load,
                "models": [model.name for model in worker.models],
                "aliases": [alias for model in worker.models for alias in model.aliases],
                "known": worker.url not in state.nobodys,
            }
            for worker in state.workers
        ],
    }
