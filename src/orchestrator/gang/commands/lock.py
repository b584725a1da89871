"""`l40s-deploy lock`: shows which command holds a gang, and releases a dead command's lock."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from orchestrator.cli.options import add_examples, add_gangs, add_inventory, add_json, open_cluster
from orchestrator.cli.screen import Screen, printable
from orchestrator.gang.steps.lock_keeping import NodeLock, locks, locks_json, release
from orchestrator.model.errors import Exit


def configure(parser: argparse.ArgumentParser) -> None:
    """The words after `lock`."""
    add_examples(parser, "l40s-deploy lock show", "l40s-deploy lock release gang0 --force")
    verbs = parser.add_subparsers(dest="lock_verb", required=True, metavar="show | release")
    for name, summary, example in (
        ("show", "show holder, host, command and last heartbeat for each node", "l40s-deploy lock show"),
        ("release", "release locks whose holder is gone", "l40s-deploy lock release gang0 --force"),
    ):
        verb = verbs.add_parser(name, help=summary, description=summary)
        add_examples(verb, example)
        add_inventory(verb)
        add_gangs(verb)
        add_json(verb)
        if name == "release":
            verb.add_argument("--force", action="store_true", help="release even if the holder seems to be alive")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every node answered, 4 otherwise, 6 where a lock to be given back has a living holder."""
    inventory = open_cluster(args, screen)
    if args.lock_verb == "show":
        found = locks(inventory, tuple(args.gang))
    else:
        found = release(inventory, tuple(args.gang), force=args.force)
    if args.json:
        screen.json(locks_json(found))
    else:
        _show(found, screen, given_back=args.lock_verb == "release")
    return Exit.UNREACHABLE if any(lock.error for lock in found) else 0


def _show(found: Sequence[NodeLock], screen: Screen, *, given_back: bool) -> None:
    for lock in found:
        if lock.error is not None:
            screen.say(f"{lock.node}: {lock.error.what}")
    held = [lock for lock in found if lock.token]
    if not held:
        screen.out.print("no locks are held")
    for lock in held:
        state = "released" if given_back else "stale" if lock.stale else f"last heartbeat {lock.age_s:.0f} s ago"
        screen.out.print(printable(f"{lock.gang} on {lock.node}: {lock.holder} with `{lock.command}`, {state}"))
