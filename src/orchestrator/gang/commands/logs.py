"""`l40s-deploy logs`: the engines' log lines, node by node."""

from __future__ import annotations

import argparse
import re
import sys

from orchestrator.cli.options import add_duration, add_examples, add_gangs, add_inventory, count
from orchestrator.cli.screen import Screen, printable, uncoloured
from orchestrator.gang.commands.cluster import connected_cluster
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.status.history import around_failure
from orchestrator.gang.steps.status.logs import LogFilter, logs
from orchestrator.protocol.errors import DeployError

LINES = 50
MOST_LINES = 1_000_000
AFTER = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(
        parser,
        "l40s-deploy logs -f --node l40s-2",
        "l40s-deploy logs --rank 19 --since 10m --grep 'NCCL|error'",
        "l40s-deploy logs --run 20261122-150405-3f2a    # of `l40s-deploy history`",
    )
    add_inventory(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="follow new lines until Ctrl-C")
    parser.add_argument("--node", action="append", default=[], metavar="NODE", help="only this node (repeatable)")
    parser.add_argument(
        "-n",
        "--lines",
        type=lambda text: count(text, least=0),
        metavar="N",
        help=f"last N lines ({LINES}; with a filter: all)",
    )
    parser.add_argument("--rank", type=int, metavar="N", help="only lines of TP rank N")
    add_duration(parser, "--since", "only the last TIME, as 10m", 0.0)
    parser.add_argument("--grep", type=_pattern, metavar="PATTERN", help="only lines with this regular expression")
    parser.add_argument(
        "--around-failure",
        action="store_true",
        help="show the log around the last failure, on the node that failed first: N lines before it, some after",
    )
    parser.add_argument("--run", default="", metavar="ID", help="the log of this run, which `history` names")
    add_gangs(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Every line with its node's name before it; the first node that can't be read decides the exit code."""
    with connected_cluster(args, screen, asks_lost=not args.around_failure) as operation:
        return _around_failure(operation, args, screen) if args.around_failure else _lines(operation, args, screen)


def _lines(operation: Operation, args: argparse.Namespace, screen: Screen) -> int:
    code = 0
    width = max(len(node.name) for node in operation.inventory.nodes)
    wanted = LogFilter(rank=args.rank, since_s=args.since, pattern=args.grep)
    usual = LINES if wanted == LogFilter() else MOST_LINES
    lines = usual if args.lines is None else args.lines
    gangs, nodes = tuple(args.gang), tuple(args.node)
    how = {"lines": lines, "follow": args.follow, "wanted": wanted, "run": args.run}
    for line in logs(operation, gangs=gangs, nodes=nodes, **how):
        if line.failure is not None:
            code = code or _say(line.failure, screen)
            continue
        sys.stdout.write(f"{line.node:<{width}} | {printable(uncoloured(line.text))}\n")
        if args.follow:
            sys.stdout.flush()
    return code


def _around_failure(operation: Operation, args: argparse.Namespace, screen: Screen) -> int:
    """The line that shows the failure has a mark."""
    before = LINES if args.lines is None else args.lines
    for excerpt in around_failure(operation, tuple(args.gang), before=before, after=AFTER, run=args.run):
        cause = excerpt.verdict.cause
        screen.say(f"{excerpt.verdict.gang}: {cause.node}: {cause.text}")
        for place, line in enumerate(excerpt.lines):
            sys.stdout.write(f"{cause.node} {'>' if place == excerpt.marked else '|'} {printable(uncoloured(line))}\n")
    return 0


def _say(failure: DeployError, screen: Screen) -> int:
    screen.say(f"{failure.where}: {failure.what}")
    screen.say(f"  fix: {failure.fix}")
    return failure.exit_code


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as wrong:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {wrong}") from None
