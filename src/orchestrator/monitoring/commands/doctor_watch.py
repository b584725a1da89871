"""`l40s-deploy doctor --watch`: check repeatedly; report what is new or resolved."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from orchestrator.cli.options import add_install, open_inventory, seconds
from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.typed import command_line
from orchestrator.cli.units import install_unit
from orchestrator.gang.steps.guard.unit import DOCTOR
from orchestrator.model.errors import InputError

if TYPE_CHECKING:
    from orchestrator.monitoring.steps.doctor_watch import FindingsChange

LEAST_S = 10.0
"""Each check takes seconds of a node's processor time."""


def add_watch(parser: argparse.ArgumentParser) -> None:
    """--watch, and the unit for it."""
    parser.add_argument(
        "--watch",
        type=_interval,
        metavar="TIME",
        help="check repeatedly, at this interval; show only what is new or resolved, and error counters that grow; "
        "new findings go to the audit log, to the metrics of `exporter` and to l40s_notify",
    )
    add_install(parser, "with --watch: write a systemd unit for it")


def watch(args: argparse.Namespace, screen: Screen) -> int | None:
    """Until Ctrl-C; None without --watch. With --json, one JSON document per line for each check that finds
    something."""
    if args.watch is None:
        if args.install:
            raise InputError(
                "--install needs --watch", where="--install", fix="l40s-deploy doctor --watch 10m --install"
            )
        return None
    for flag, given in (("--from", args.saved), ("--report", args.report), ("--dump-xml", args.dump_xml)):
        if given:
            raise InputError(f"--watch checks the nodes repeatedly, and {flag} can't", where=flag, fix="drop it")
    inventory = open_inventory(args, screen)
    if args.install:
        return install_unit(DOCTOR, args, inventory, screen)
    from orchestrator.monitoring.steps.doctor_watch import DoctorWatch
    from orchestrator.monitoring.steps.notify import Notifier

    with Notifier(inventory.notify, inventory.path, lambda words: screen.say(f"notify: {words}")) as notifier:
        watching = DoctorWatch(inventory, notifier, command_line(), args.accept, args.node)
        while True:
            began = time.monotonic()
            show(watching.look(), screen, as_json=args.json)
            time.sleep(max(0.0, args.watch - (time.monotonic() - began)))


def show(found: FindingsChange, screen: Screen, *, as_json: bool) -> None:
    """Nothing where nothing has changed."""
    if as_json:
        if found.lines:
            screen.verbatim(json.dumps({"at": time.time(), **found.as_json()}))
        return
    at = time.strftime("%H:%M:%S")
    for line in found.lines:
        screen.out.print(printable(f"{at} {line}"))
    if found.silent:
        screen.say(f"{at} did not answer: {', '.join(found.silent)}")


def _interval(text: str) -> float:
    found = seconds(text)
    if found < LEAST_S:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted {LEAST_S:g}s or more")
    return found
