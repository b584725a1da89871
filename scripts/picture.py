"""Draws the README's picture: `doctor` and `status` of a running cluster as rich would print them, saved as SVG.

usage: .venv/bin/python scripts/picture.py INVENTORY docs/status.svg
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from orchestrator.cli.main import equip
from orchestrator.gang.commands.gangs import gang_block
from orchestrator.gang.steps.status.overview import overview
from orchestrator.loading.inventory import load_inventory

WIDTH = 100


def main(inventory: str, target: str) -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), markup=False, highlight=False, force_terminal=True)
    console.print("$ l40s-deploy status", style="bold")
    equip()
    for view in overview(load_inventory(Path(inventory))).views:
        for block in gang_block(view):
            console.print(block)
    picture = console.export_svg(title="l40s-deploy")
    # rich asks a font server for its typeface; a picture in a repository needs no network
    Path(target).write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))


if __name__ == "__main__":
    main(*sys.argv[1:])
