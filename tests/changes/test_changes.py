"""The table of changes, every row. `make changes` plays it too and writes tests/changes/changes.md."""

from __future__ import annotations

import pytest
from tests.changes.changes import CHANGED, ORDER, VERBS_PLAYED, Row, play_row, table


def _name(row: Row) -> str:
    return row.id


@pytest.mark.parametrize("row", table(), ids=_name)
def test_it_ends_as_the_table_says(row: Row) -> None:
    played = play_row(row)
    assert played.trouble == "", f"{row.expects}: {played.ended}"


def test_every_change_is_made_for_every_verb_and_every_row_has_a_name_of_its_own() -> None:
    rows = table()
    assert {row.change for row in rows} == set(CHANGED)
    assert set(ORDER) == set(VERBS_PLAYED)
    assert len({row.id for row in rows}) == len(rows) == len(CHANGED) * len(ORDER) * 2
