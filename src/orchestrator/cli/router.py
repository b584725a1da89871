"""`l40s-deploy router`: the one address before several gangs."""

from __future__ import annotations

import argparse
from typing import Any

from orchestrator.cli.options import add_examples, add_inventory, add_json, command_line, open_cluster
from orchestrator.cli.rising import RisingProgress
from orchestrator.cli.screen import Screen, printable
from orchestrator.model.exit_codes import Exit
from orchestrator.workflows.router.routing import RouterState, router_state, start_router, stop_router

_VERBS = {
    "up": "start it and add every gang that serves",
    "status": "show whether it serves, and to which gangs",
    "down": "stop it; running requests get up to a minute",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """The words after `router`."""
    add_examples(parser, "l40s-deploy router up", "l40s-deploy router status")
    verbs = parser.add_subparsers(dest="router_verb", required=True, metavar="up | status | down")
    for name, summary in _VERBS.items():
        verb = verbs.add_parser(name, help=summary, description=summary)
        add_examples(verb, f"l40s-deploy router {name}")
        add_inventory(verb)
        add_json(verb)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when it is as it was asked for."""
    inventory = open_cluster(args, screen)
    if args.router_verb == "down":
        stopped = stop_router(inventory, command=command_line())
        if args.json:
            screen.json({"stopped": all(node.clean for node in stopped)})
        return 0 if all(node.clean for node in stopped) else Exit.GANG_FAILED
    if args.router_verb == "up":
        with RisingProgress(screen) as shown:
            state = start_router(inventory, shown, command=command_line())
    else:
        state = router_state(inventory)
    screen.json(_json(state)) if args.json else _show(state, screen)
    return 0


def _show(state: RouterState, screen: Screen) -> None:
    from orchestrator.cli.gangs import cause_lines

    screen.out.print(printable(f"router {state.view.state.value}  {state.url}"))
    if state.view.cause is not None:
        for line in cause_lines(state.view.cause):
            screen.out.print(line)
    for worker in state.workers:
        health = "healthy" if worker.healthy else "not healthy"
        screen.out.print(printable(f"  {worker.url}  {health}, {worker.load} requests"))


def _json(state: RouterState) -> dict[str, Any]:
    return {
        "state": state.view.state.value,
        "url": state.url,
        "workers": [{"url": one.url, "healthy": one.healthy, "load": one.load} for one in state.workers],
    }
