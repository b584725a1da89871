"""`l40s-deploy status`: nodes, ranks, GPUs and service at a glance."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.cli.options import add_usual_of_gangs, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.gang.commands.cluster import connected_cluster
from orchestrator.gang.overview import Overview, overview_json
from orchestrator.gang.steps.operation import connected
from orchestrator.gang.steps.status.overview import overview
from orchestrator.model.gang_state import GangState

if TYPE_CHECKING:
    from orchestrator.gang.steps.status.live import NodeLoad

_EXIT_STATUS = """
exit status, first match: 5 a gang has failed, 3 a gang is degraded (gangs[].degraded_reason in --json: silent, slow, \
hung, nodes, rails, router, interrupted), 4 a node did not answer or a gang is unknown, else 0 (ready, starting or \
stopped)
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual_of_gangs(
        parser,
        "l40s-deploy status",
        "l40s-deploy status gang0 || echo 'gang0 needs attention'",
        "l40s-deploy status --json | jq '.gangs[] | .state, .degraded_reason'",
        "l40s-deploy status --json | jq '.router.workers'",
        "l40s-deploy status --watch   # live: phases, tokens/s, queue, GPUs, rails, last events",
        "l40s-deploy status --wide    # a row for every GPU: temperature, power, clock, memory, ECC",
    )
    parser.epilog = f"{parser.epilog}\n{_EXIT_STATUS}"
    parser.add_argument(
        "-w",
        "--watch",
        action="store_true",
        help="watch until Ctrl-C; without a terminal: a line for every change; with --json: a document a line",
    )
    parser.add_argument("--wide", action="store_true", help="show each GPU, with its temperature, power and clock")
    parser.add_argument("--remarks", action="store_true", help="show the remarks on gangs that are well too")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """5 where a gang failed, 3 where one is degraded, 4 where a node did not answer or a gang is unknown, else 0."""
    gangs = tuple(args.gang)
    if args.watch:
        return _watch(args, gangs, screen)
    loads = None
    with connected(open_inventory(args, screen), asks_lost=False) as operation:
        seen = overview(operation, gangs)
        if args.wide:
            from orchestrator.gang.steps.status.live import node_loads

            loads = node_loads(operation.fleet, seen.views)
    if args.json:
        screen.json(_document(seen, loads))
    else:
        from orchestrator.gang.commands.watching import status_blocks

        screen.show(*status_blocks(seen, loads, wide=args.wide, remarks=args.remarks), *_starts_one(seen))
    return seen.exit_code


def _watch(args: argparse.Namespace, gangs: tuple[str, ...], screen: Screen) -> int:
    from orchestrator.gang.commands.watching import watch
    from orchestrator.gang.steps.status.live import Watching

    with connected_cluster(args, screen) as operation, Watching(operation, gangs) as source:
        return watch(source, screen, wide=args.wide).seen.exit_code


def _document(seen: Overview, loads: Mapping[str, NodeLoad] | None) -> dict[str, Any]:
    if loads is None:
        return overview_json(seen)
    from orchestrator.gang.steps.status.live import loaded_json

    return loaded_json(seen, loads)


def _starts_one(seen: Overview) -> list[str]:
    """What starts a gang, where none runs and nothing was interrupted."""
    if seen.interrupted or any(view.state is not GangState.ABSENT for view in seen.views):
        return []
    before = " ".join(view.name for view in seen.views if view.plan_id)
    again = f"with the same plan: `l40s-deploy restart {before}`; " if before else ""
    return [f"to start one: {again}`up` and a model (`l40s-deploy models` lists them)"]
