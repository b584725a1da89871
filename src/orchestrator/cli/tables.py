"""Tables without lines."""

from __future__ import annotations

from collections.abc import Collection

from rich.table import Table
from rich.text import Text

from orchestrator.cli.screen import printable


def plain_table(*titles: str, left: Collection[str] = ()) -> Table:
    """A column for each title: figures, on the right, but for the first, those without a title and those in `left`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, title in enumerate(titles):
        table.add_column(title, justify="left" if place == 0 or not title or title in left else "right")
    return table


def cell(value: object, style: str = "") -> Text:
    """Whatever is in it, as it is."""
    return Text(printable(str(value)), style)
