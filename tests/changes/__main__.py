"""`make changes`: every row of the table of changes; writes tests/changes/changes.md."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.changes.changes import CONCERNED, WORDS, Played, play_row, table

PAGE = Path(__file__).with_name("changes.md")

WHAT = """
What an inventory, a node, a controller or a release is changed to between a start and the next verb, and what that verb
does then; the table explains the words. In every row: no verb ends a gang that it does not name, no request is lost by
a verb that did not announce it, and the router has the gangs that serve and nobody else. A guard watches every row:
the last column is what its receivers heard (each message's event and subject), and it never had anything to do."""


def main() -> int:
    """0 where every row ended as the table says."""
    with ProcessPoolExecutor(2) as pool:
        played = list(pool.map(play_row, table(), chunksize=8))
    PAGE.write_text(page(played), "utf-8")
    return 1 if any(one.trouble for one in played) else 0


def page(played: list[Played]) -> str:
    """tests/changes/changes.md."""
    right = sum(not one.trouble for one in played)
    lines = [
        f"# Changes\n\n`make changes` plays tests/changes/table.yml: {right} of {len(played)} rows ended as it says.",
        WHAT,
        "",
        "| changed | verb | on | must end | ended | a guard's receivers hear |",
        "|---|---|---|---|---|---|",
    ]
    for one in played:
        row = one.row
        where = "it" if row.gang == CONCERNED else "the other gang"
        ended = f"**{one.trouble}**" if one.trouble else "as expected"
        cells = (row.what, WORDS.get(row.verb, row.verb), where, row.expects, ended, one.heard)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
