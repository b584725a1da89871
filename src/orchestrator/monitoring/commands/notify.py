"""`l40s-deploy notify`: who is notified about events of a gang; `--test` sends each recipient a message."""

from __future__ import annotations

import argparse

from orchestrator.cli.options import add_usual, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.model.inventory import Recipient
from orchestrator.monitoring.steps.notify import keep_outcome, send, shown, trial
from orchestrator.protocol.errors import Exit, InputError


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual(parser, "l40s-deploy notify", "l40s-deploy notify --test")
    parser.add_argument("--test", action="store_true", help="send a test message to every recipient of l40s_notify")


def _tried(recipient: Recipient, inventory: str) -> str:
    """Why a trial message was not accepted, '' where it was; kept for `status`."""
    error = send(recipient, trial())
    keep_outcome(inventory, recipient, error)
    return error


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0, or 4 where a recipient did not accept the test message."""
    inventory = open_inventory(args, screen)
    if not inventory.notify:
        raise InputError(
            "l40s_notify lists no recipient",
            where=inventory.path,
            fix="add a list below vars:, for example `l40s_notify: [{kind: slack, url_file: ~/.config/l40s/slack}]`",
        )
    results = []
    for recipient in inventory.notify:
        error = _tried(recipient, inventory.path) if args.test else ""
        events = sorted(event.value for event in recipient.events)
        results.append({"recipient": shown(recipient), "events": events, "error": error or None})
        if not args.json:
            outcome = error or "sent" if args.test else ", ".join(events)
            screen.show(f"{shown(recipient)}: {outcome}")
    if args.json:
        screen.json({"recipients": results, "tested": args.test})
    return Exit.UNREACHABLE if any(delivery["error"] for delivery in results) else 0
