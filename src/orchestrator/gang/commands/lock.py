"""`l40s-deploy lock`: shows which command holds a gang, and releases a dead command's lock."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from orchestrator.cli.options import add_usual_of_gangs
from orchestrator.cli.screen import Screen
from orchestrator.gang.commands.cluster import connected_cluster
from orchestrator.gang.steps.locks import NodeLock, locks, release
from orchestrator.model.chosen import chosen_gangs
from orchestrator.protocol.errors import Exit, InputError
from orchestrator.protocol.verbs import LockHolder


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual_of_gangs(parser, "l40s-deploy lock", "l40s-deploy lock --release --force gang0")
    parser.add_argument("--release", action="store_true", help="release locks whose holder is gone")
    parser.add_argument("--force", action="store_true", help="with --release: even if the holder seems to be alive")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every node answered, 4 otherwise, 6 where a lock to be given back has a living holder."""
    if args.force and not args.release:
        raise InputError("--force releases nothing by itself", where="command line", fix="add --release")
    with connected_cluster(args, screen) as operation:
        fleet, gangs = operation.fleet, chosen_gangs(operation.inventory, tuple(args.gang))
        held = release(fleet, gangs, force=args.force) if args.release else locks(fleet, gangs)
    if args.json:
        screen.json({"locks": [_json(lock) for lock in held]})
    else:
        _show(held, screen, given_back=args.release)
    return Exit.UNREACHABLE if any(lock.error for lock in held) else 0


def _show(found: Sequence[NodeLock], screen: Screen, *, given_back: bool) -> None:
    for lock in found:
        if lock.error is not None:
            screen.say(f"{lock.node}: {lock.error.what}")
    if not any(lock.held.token for lock in found):
        screen.show("no locks are held")
    for lock in found:
        held = lock.held
        if held.token:
            state = "released" if given_back else _state(held)
            screen.show(f"{lock.gang} on {lock.node}: {held.name} with `{held.command}`, {state}")


def _state(held: LockHolder) -> str:
    return "stale" if held.stale else f"last heartbeat {held.age_s:.0f} s ago"


def _json(lock: NodeLock) -> dict[str, Any]:
    return {
        "gang": lock.gang,
        "node": lock.node,
        "held": bool(lock.held.token),
        **{name: getattr(lock.held, name) for name in ("who", "host", "pid", "command")},
        "age_s": round(lock.held.age_s, 1),
        "stale": lock.held.stale,
        "error": lock.error.what if lock.error else None,
    }
