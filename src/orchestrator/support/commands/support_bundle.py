"""`l40s-deploy support-bundle`: one file for a bug report, without secrets, names and addresses."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from orchestrator.cli.options import add_usual_of_gangs, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.protocol.errors import Exit
from orchestrator.support.steps.bundle import bundle


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual_of_gangs(
        parser,
        "l40s-deploy support-bundle",
        "l40s-deploy support-bundle gang0 --out report.tar.gz",
        "tar -xzOf report.tar.gz l40s-deploy-support/READ-FIRST.txt   # what was replaced, and what can't be told",
    )
    parser.add_argument("--without-logs", action="store_true", help="leave out the nodes' log lines")
    parser.add_argument(
        "--out", metavar="FILE", help="the archive (default: l40s-deploy-support-DATE-TIME.tar.gz in this directory)"
    )


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 with everything in it, 4 where something could not be read."""
    out = Path(args.out or time.strftime("l40s-deploy-support-%Y%m%d-%H%M%S.tar.gz"))
    inventory, gangs = open_inventory(args, screen), tuple(args.gang)
    made = bundle(inventory, gangs, out, lambda name: screen.say(f"reading {name}"), with_logs=not args.without_logs)
    if args.json:
        screen.json({"file": str(made.path), "bytes": made.bytes, "files": list(made.files), "missing": made.missing})
    else:
        screen.show(f"{made.path}: {len(made.files)} files, {made.bytes / 1024:.0f} KiB")
        screen.show(*(f"  missing: {name}: {why}" for name, why in made.missing.items()))
        screen.say("secrets, names and addresses were replaced; read it before you send it")
    return Exit.UNREACHABLE if made.missing else Exit.DONE
