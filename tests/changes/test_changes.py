"""The table of changes: each change before each verb, of the gang that it is about or the other one. `make changes`
plays every row and writes tests/changes/changes.md."""

from __future__ import annotations

import pytest
from tests.changes.changes import CHANGED, ORDER, VERBS_PLAYED, Row, play_row, table
from tests.support.turns import sampled

from orchestrator.gang.steps.status import reports


def rows_played() -> list[Row]:
    """A third of the rows of each change, whatever their verbs."""
    by_change: dict[str, list[Row]] = {}
    for row in table():
        by_change.setdefault(row.change, []).append(row)
    return [row for change, rows in by_change.items() for row in sampled(change, rows, len(rows) // 3)]


def _name(row: Row) -> str:
    return row.id


@pytest.mark.parametrize("row", rows_played(), ids=_name)
def test_it_ends_as_the_table_says(row: Row) -> None:
    played = play_row(row)
    assert played.trouble == "", f"{row.expects}: {played.ended}"


def test_a_start_that_a_node_refuses_ends_nothing_that_it_has_not_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "_renamed", lambda *_: {})
    monkeypatch.setattr(reports, "_of_a_fellow", lambda *_: None)  # what runs there can't be seen
    played = play_row(Row("", "node names swapped", "up", "gang1", "refused runs already"))
    assert played.trouble == "", played.ended


def test_every_change_is_made_for_every_verb_and_every_row_has_a_name_of_its_own() -> None:
    rows = table()
    assert {row.change for row in rows} == set(CHANGED)
    assert set(ORDER) == set(VERBS_PLAYED)
    assert len({row.id for row in rows}) == len(rows) == len(CHANGED) * len(ORDER) * 2
