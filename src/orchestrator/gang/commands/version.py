"""`l40s-deploy version`: of this program, of the agents that run on the nodes, and of the stacks that they serve."""

from __future__ import annotations

import argparse
import platform

from orchestrator import __version__
from orchestrator.cli.options import add_usual_of_gangs
from orchestrator.cli.screen import Screen
from orchestrator.cli.tables import cell, plain_table
from orchestrator.gang.steps.operation import connected
from orchestrator.gang.steps.status.history import NodeVersion, versions
from orchestrator.loading.inventory import load_inventory
from orchestrator.loading.which import choose_inventory
from orchestrator.protocol.errors import Exit, InputError


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual_of_gangs(
        parser,
        "l40s-deploy version",
        "l40s-deploy version --json | jq '.nodes[] | select(.agent != $v)' --arg v 0.2.0",
    )


def run(args: argparse.Namespace, screen: Screen) -> int:
    """4 where a node did not answer, else 0."""
    nodes = _asked(args, screen)
    if args.json:
        own = {"version": __version__, "python": platform.python_version()}
        screen.json({**own, "nodes": [node.as_json() for node in nodes]})
    else:
        screen.show(f"l40s-deploy {__version__} (Python {platform.python_version()})")
        if nodes:
            _table(nodes, screen)
    return Exit.UNREACHABLE if any(node.error for node in nodes) else Exit.DONE


def _asked(args: argparse.Namespace, screen: Screen) -> tuple[NodeVersion, ...]:
    """Nothing if no cluster is configured: the program's own version is an answer too."""
    try:
        choice = choose_inventory(args.inventory)
    except InputError as none:
        screen.say(f"no node was asked: {none.what}")
        return ()
    screen.say(f"cluster: {choice.path} ({choice.reason})")
    with connected(load_inventory(choice.path), asks_lost=False) as operation:
        return versions(operation, tuple(args.gang))


def _table(nodes: tuple[NodeVersion, ...], screen: Screen) -> None:
    titles = ("node", "gang", "agent", "stack", "model", "state")
    table = plain_table(*titles, left=titles)
    for node in nodes:
        versions = (node.agent or "none", node.stack, node.model, node.state)
        row = [node.node, node.gang, *(versions if node.error is None else ("?", "", "", node.error.what))]
        style = "bold yellow" if node.error or (node.agent and node.agent != __version__) else ""
        table.add_row(*(cell(text, style) for text in row))
    screen.show(table)
