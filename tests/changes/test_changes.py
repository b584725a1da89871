"""The table of changes: each change before each verb, of the gang that it is about or the other one. `make changes`
plays every row and writes tests/changes/changes.md."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.changes.changes import CHANGED, ORDER, VERBS_PLAYED, Row, Scene, play_row, table
from tests.support.turns import sampled

from orchestrator.cli.main import VERBS, every_parser, verbs_of
from orchestrator.gang import guarding
from orchestrator.gang.steps.status import reports

SHARE = 20
"""A run of the tests plays one row in so many; `make changes` all."""


def rows_played() -> list[Row]:
    """A twentieth of the rows of each change, whatever their verbs, and one at least; the commit chooses."""
    by_change: dict[str, list[Row]] = {}
    for row in table():
        by_change.setdefault(row.change, []).append(row)
    return [row for change, rows in by_change.items() for row in sampled(change, rows, max(1, len(rows) // SHARE))]


def _name(row: Row) -> str:
    return row.id


@pytest.mark.parametrize("row", rows_played(), ids=_name)
def test_it_ends_as_the_table_says(row: Row) -> None:
    played = play_row(row)
    assert played.trouble == "", f"{row.expects}: {played.ended}"


@pytest.mark.parametrize("verb", ["up other", "up --replace", "up --gate", "sweep"])
def test_what_is_no_row_and_takes_a_gang_out_stops_nothing_while_the_routers_host_is_away(verb: str) -> None:
    hears = "changed inventory, failed router"
    row = Row("", "router away", verb, "gang1", "refused nothing was stopped", lossy=True, hears=hears)
    played = play_row(row)
    assert played.trouble == "", played.ended


OF_ANOTHER_NAME = {
    ("up", "gang1"): "refused gang1",
    ("restart", "gang1"): "refused gang1",
    ("rollback", "gang1"): "refused gang1",
    ("down", "gang1"): "refused gang1",
    ("router up", "gang1"): "told gang1",
    ("up", "gang0"): "changes it",
    ("restart", "gang0"): "refused refuses it",
    ("down", "gang0"): "ends",
}


@pytest.mark.parametrize(("verb", "gang"), OF_ANOTHER_NAME)
def test_a_new_key_while_a_gang_runs_under_another_name_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, verb: str, gang: str
) -> None:
    """Two changes at once: the renamed gang serves on behind the router, by the key that it has."""

    def both(scene: Scene) -> None:
        rename, key = CHANGED["renamed"], CHANGED["key"]
        rename(scene)
        key(scene)

    monkeypatch.setitem(CHANGED, "renamed, new key", both)
    hears = "changed inventory, failed prod-b"
    played = play_row(Row("", "renamed, new key", verb, gang, OF_ANOTHER_NAME[verb, gang], hears=hears))
    assert played.trouble == "", played.ended


def test_a_start_that_a_node_refuses_ends_nothing_that_it_has_not_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "_renamed", lambda *_: {})
    monkeypatch.setattr(reports, "_of_a_fellow", lambda *_: None)  # what runs there can't be seen
    played = play_row(Row("", "node names swapped", "up", "gang1", "refused runs already", hears="changed inventory"))
    assert played.trouble == "", played.ended


def test_what_a_guard_says_beside_the_table_is_found() -> None:
    row = next(row for row in table() if row.id == "nothing-router-remove-it")
    assert row.hears == "finding gang1"
    assert play_row(replace(row, hears="nothing")).trouble == "heard finding gang1"


def test_a_guard_that_would_undo_a_down_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "_reason", lambda *_: "it is down")
    row = next(row for row in table() if row.id == "nothing-down-it")
    assert play_row(row).trouble.startswith("a guard beside it would restart gang")


ELSEWHERE = {
    "guard": "tests/chaos has what it does; it restarts by restart's own steps",
    "lock": "releases what a dead command left; tests/simulation",
    "sweep": "stops and starts by up's and down's own steps; tests/unit/sweep",
    "certify": "kills a rank and restarts by restart's own steps; tests/unit/support",
    "router down": "ends the router, and no gang: every request is refused then",
}
"""Verbs that change what serves, and are no rows."""
LOOKS_ONLY = {
    "init", "doctor", "prepare", "why", "web", "logs", "history", "plan", "models", "discover", "version", "nettest",
    "bench", "golden", "exporter", "export", "notify", "stack", "checkpoint", "tuning", "completion", "support-bundle",
    "router status",
}  # fmt: skip
"""Verbs that neither start, stop nor withdraw a gang."""
WAYS_ELSEWHERE = {"--all-at-once": "restart without the wait for others; tests/unit/gang/test_claims.py"}


def test_no_verb_that_changes_what_serves_is_missing() -> None:
    """By the parser: a verb that is new is a row, or is named above."""
    known = verbs_of(every_parser())
    typed = {f"router {verb}" for verb in verbs_of(known["router"])} | {verb for verb in VERBS if verb != "router"}
    assert typed == {*ORDER, *ELSEWHERE, *LOOKS_ONLY} - {"rolling", "maintenance"}
    (ways,) = known["restart"]._mutually_exclusive_groups
    options = {action.option_strings[0] for action in ways._group_actions}
    assert options == {f"--{verb}" for verb in ("rolling", "maintenance")} | set(WAYS_ELSEWHERE)


def test_every_change_is_made_for_every_verb_and_every_row_has_a_name_of_its_own() -> None:
    rows = table()
    assert {row.change for row in rows} == set(CHANGED)
    assert set(ORDER) == set(VERBS_PLAYED)
    assert len({row.id for row in rows}) == len(rows) == len(CHANGED) * len(ORDER) * 2
