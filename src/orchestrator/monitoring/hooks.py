"""What this room adds to verbs of the core: who is told, metrics beside a guard, and doctor's watch."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from orchestrator.cli.options import add_install, open_inventory, seconds
from orchestrator.cli.screen import Screen
from orchestrator.cli.transfers import port
from orchestrator.cli.typed import command_line, install_unit
from orchestrator.cli.units import DOCTOR
from orchestrator.model.inventory import Inventory
from orchestrator.protocol.errors import InputError

if TYPE_CHECKING:
    from orchestrator.monitoring.steps.doctor_watch import FindingsChange
    from orchestrator.monitoring.steps.notify import Notifier

LEAST_S = 10.0
"""Between two checks of `doctor --watch`: each takes seconds of a node's processor time."""


def options(verb: str, parser: argparse.ArgumentParser) -> None:
    """Of `guard` and `doctor`."""
    if verb == "guard":
        parser.add_argument(
            "--metrics",
            type=port,
            metavar="PORT",
            help="also answer Prometheus on this port of 127.0.0.1, as `exporter` does",
        )
    if verb == "doctor":
        parser.add_argument(
            "--watch",
            type=_interval,
            metavar="TIME",
            help="check repeatedly, at this interval; show only what is new or resolved, and error counters that grow; "
            "new findings go to the audit log, to the metrics of `exporter` and to l40s_notify",
        )
        add_install(parser, "with --watch: write a systemd unit for it")


def _interval(text: str) -> float:
    if (interval := seconds(text)) < LEAST_S:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted {LEAST_S:g}s or more")
    return interval


def instead(verb: str, args: argparse.Namespace, screen: Screen) -> int | None:
    """`doctor --watch`, until Ctrl-C; None without it. With --json, one JSON document per line for each check that
    finds something."""
    if verb != "doctor":
        return None
    if args.watch is None:
        if args.install:
            fix = "l40s-deploy doctor --watch 10m --install"
            raise InputError("--install needs --watch", where="--install", fix=fix)
        return None
    for flag, given in (("--from", args.saved), ("--report", args.report), ("--dump-xml", args.dump_xml)):
        if given:
            raise InputError(f"--watch checks the nodes repeatedly, and {flag} can't", where=flag, fix="drop it")
    inventory = open_inventory(args, screen)
    if args.install:
        return install_unit(DOCTOR, args, inventory, screen)
    from orchestrator.monitoring.steps.doctor_watch import DoctorWatch

    with notifier(inventory, lambda words: screen.say(f"notify: {words}")) as receivers:
        watching = DoctorWatch(inventory, receivers, command_line(), args.accept, args.node)
        while True:
            began = time.monotonic()
            _show(watching.look(), screen)
            time.sleep(max(0.0, args.watch - (time.monotonic() - began)))


def _show(change: FindingsChange, screen: Screen) -> None:
    at = time.strftime("%H:%M:%S")
    if not screen.as_json:
        screen.show(*(f"{at} {line}" for line in change.lines))
    elif change.lines:
        screen.verbatim(json.dumps({"at": time.time(), **change.as_json()}))
    if change.silent and not screen.as_json:
        screen.say(f"{at} did not answer: {', '.join(change.silent)}")


def notifier(inventory: Inventory, say: Callable[[str], None]) -> Notifier:
    """Of those whom the inventory names."""
    from orchestrator.monitoring.steps.notify import Notifier

    return Notifier(inventory.notify, inventory.path, say)


def metrics(args: argparse.Namespace, newest: Callable[[], Inventory]) -> AbstractContextManager[object] | None:
    """With --metrics. newest: the inventory of now."""
    from orchestrator.monitoring.steps.exporter import serving

    return serving(newest, tuple(args.gang), "127.0.0.1", args.metrics) if args.metrics is not None else None
