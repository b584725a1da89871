"""`l40s-deploy why`: the last failure's one cause, repeated."""

from __future__ import annotations

import argparse

from orchestrator.cli.options import add_examples, add_gangs, add_inventory, add_json, open_cluster
from orchestrator.cli.screen import Screen, printable
from orchestrator.model.exit_codes import Exit
from orchestrator.workflows.status.why import Account, why, why_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(parser, "l40s-deploy why", "l40s-deploy why --all --gang gang0", "l40s-deploy logs --around-failure")
    add_inventory(parser)
    add_gangs(parser)
    parser.add_argument(
        "--all", action="store_true", help="also show later errors and the events of all nodes in order"
    )
    add_json(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every node answered, whether or not anything ever failed; 4 otherwise."""
    accounts = why(open_cluster(args, screen), tuple(args.gang), events=args.all)
    if args.json:
        screen.json(why_json(accounts))
    else:
        for account in accounts:
            _show(account, screen, everything=args.all)
    return Exit.UNREACHABLE if any(account.failures for account in accounts) else 0


def _show(account: Account, screen: Screen, *, everything: bool) -> None:
    from orchestrator.cli.gangs import cause_lines

    for name, failure in account.failures.items():
        screen.say(f"{name}: {failure.what}")
    verdict = account.verdict
    if verdict is None:
        screen.out.print(printable(f"{account.gang}: no recorded run has failed"))
        return
    when = f", {ago(verdict.ago_s)} ago" if verdict.ago_s is not None else ""
    since = "" if verdict.newest else "; it was started again since"
    screen.out.print(printable(f"{account.gang}: {verdict.model} by {verdict.stack} failed{when}{since}"))
    for line in cause_lines(verdict.cause, folded=0 if everything else len(verdict.secondary)):
        screen.out.print(line)
    if not everything:
        return
    for cause in verdict.secondary:
        screen.out.print(printable(f"  then {cause.node}: {cause.text}"))
    for event in account.events:
        after = event.at - account.events[0].at
        screen.out.print(printable(f"  {after:9.3f} s  {event.node}: {event.what} {event.words}".rstrip()))


def ago(seconds: float) -> str:
    """'42 s', '7 min', '3 h', '2 days'."""
    for unit, words in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {words}"
    return f"{seconds:.0f} s"
