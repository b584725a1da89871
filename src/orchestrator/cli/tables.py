"""Tables without lines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

from rich.cells import cell_len
from rich.table import Column, Table
from rich.text import Text

from orchestrator.cli.screen import printable
from orchestrator.model.per_node import collected

_GAP = 2
"""Blanks between two columns of a plain table."""


def plain_table(*titles: str, left: Collection[str] = ()) -> Table:
    """A column for each title: figures, on the right, but for the first, those without a title and those in `left`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, title in enumerate(titles):
        table.add_column(title, justify="left" if place == 0 or not title or title in left else "right")
    return table


def cell(value: object, style: str = "") -> Text:
    """Whatever is in it, as it is."""
    return Text(printable(str(value)), style)


def _with_columns(columns: Sequence[Column]) -> Table:
    """A plain table of these columns alone."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.header, justify=column.justify)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*row)
    return table


def fitted(table: Table, width: int, *, names: Collection[str]) -> tuple[Table, list[Text]]:
    """A plain table's columns that a terminal of so many columns has room for, and a line for each of the others, which
    names the rows by the columns in `names`: 'rail errors: 4 on node0, node1; mlx5_0 down on node2'."""
    ends = accumulate((_width(column) + _GAP for column in table.columns), initial=0)
    room = sum(end - _GAP <= width for end in list(ends)[1:])
    if room in (0, len(table.columns)):
        return table, []
    left_over = table.columns[room:]
    first, *others = [column for column in table.columns if column.header in names]
    naming = [first.cells, *([f"{column.header} {value}" for value in column.cells] for column in others)]
    rows = [" ".join(map(str, words)) for words in zip(*naming, strict=True)]
    return _with_columns(table.columns[:room]), [
        line for column in left_over if (line := _folded(column, rows)) is not None
    ]


def _folded(column: Column, rows: list[str]) -> Text | None:
    """A column as one line; None where nothing is in it, and nothing was counted."""
    cells = [_text(value) for value in column.cells]
    nothing = ("", "0")
    where = collected(
        (value.plain, row) for value, row in zip(cells, rows, strict=True) if value.plain.strip() not in nothing
    )
    if not where:
        return None
    styles = {value.plain: value.style for value in cells}
    line = Text(f"{column.header}: ")
    for place, (words, named) in enumerate(where.items()):
        line.append("; " if place else "").append(words, styles[words])
        line.append(" on all" if len(named) == len(rows) > 1 else f" on {', '.join(named)}")
    return line


def _width(column: Column) -> int:
    return max(cell_len(_text(value).plain) for value in (column.header, *column.cells))


def _text(value: object) -> Text:
    return value if isinstance(value, Text) else Text(str(value))
