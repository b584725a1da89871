"""What was typed: for locks and the audit log, and for `--install` as a systemd unit that repeats it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.cli.screen import Screen
from orchestrator.cli.units import Unit, install, start_words
from orchestrator.model.inventory import Inventory
from orchestrator.model.secret_text import typed
from orchestrator.protocol.errors import Exit


def command_line() -> str:
    """What was typed, for locks and the audit log: without hooks' and other secrets."""
    return typed(["l40s-deploy", *sys.argv[1:]])[:300]


def install_unit(unit: Unit, args: argparse.Namespace, inventory: Inventory, screen: Screen) -> int:
    """Write the unit that runs what was typed."""
    path = install(unit, Path(inventory.path), _kept(args.typed[1:]))
    for line in start_words(path):
        screen.say(line)
    if args.json:
        screen.json({"unit": str(path)})
    return Exit.DONE


def _kept(words: Sequence[str]) -> list[str]:
    """Without --install, --json and the inventory, which the unit names itself; argparse takes beginnings of these."""
    kept: list[str] = []
    left = iter(words)
    for word in left:
        if word.startswith(("-i", "--inv")):
            _ = next(left) if word == "-i" or (word.startswith("--") and "=" not in word) else ""
        elif not word.startswith(("--ins", "--j")):
            kept.append(word)
    return kept
