"""Rows of the chaos table: one of each kind, by turns: a process dies, one stands still, a machine fails or changes,
and two faults at once. `make chaos` plays all in labs side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.chaos.hearing import Heard, right_before, wanted_of
from tests.chaos.rows import HARMLESS, KINDS, NotHere, Row, read, table, two_faults
from tests.support.turns import by_turns, of_commit

if TYPE_CHECKING:
    from tests.chaos.play import Stage

PAIRS = 1
"""Pairs of faults, which the commit chooses; `make long` plays 300 others each time, and prints their seed."""


def _name(row: Row) -> str:
    return row.id


OF_A_GANG = ("rank", "parent", "agent", "controller")


def _kind(row: Row) -> str:
    """What dies is one kind, whichever process of a gang's it is (each is killed in every run, without a lab, by
    tests/unit/node/agent/test_agent_life.py); what stands still another; what befalls a machine, its files and releases
    a third."""
    if row.kind == "stopped":
        return "chaos: a process stands still"
    return "chaos: a process dies" if row.kind in OF_A_GANG else "chaos: a machine, its files or a release changes"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    from tests.chaos.chaos import chaos_lab
    from tests.chaos.play import Stage
    from tests.support.small_lab import small_lab

    with small_lab("chaos-ci", of=chaos_lab("chaos-ci")) as made:
        raised = Stage.raised(made)
        yield raised
        raised.close()


@pytest.mark.lab
@pytest.mark.skipif(os.geteuid() != 0, reason="gangs of emulated nodes with their own GPUs need root")
@pytest.mark.parametrize("row", [*by_turns(table(), of=_kind), *two_faults(of_commit("two faults"), PAIRS)], ids=_name)
def test_it_ends_as_the_table_says(stage: Stage, row: Row) -> None:
    from tests.chaos.chaos import NOT_PLAYED, play_row

    trouble = play_row(stage, row).trouble
    if trouble == NOT_PLAYED:
        pytest.skip("this machine has no loop device or no router, or this copy of the repository no older commit")
    assert trouble == ""


@pytest.mark.lab
@pytest.mark.skipif(os.geteuid() != 0, reason="gangs of emulated nodes with their own GPUs need root")
@pytest.mark.parametrize("row", by_turns(right_before(table()), of=_kind), ids=_name)
def test_a_guards_receivers_hear_of_it_as_the_table_says(stage: Stage, row: Row) -> None:
    """Of those that `make chaos` has heard so; a row beside a guard is one more variation of its kind."""
    from tests.chaos.hearing import hear
    from tests.chaos.play import Missed

    for _ in range(3):
        try:
            assert hear(stage, row).trouble == ""
        except Missed:
            continue
        except NotHere as none:
            pytest.skip(str(none))
        return
    pytest.skip("its moment was missed three times")


def test_every_row_says_what_a_guards_receivers_hear() -> None:
    assert [row.id for row in table() if not row.hears] == []
    for row in table():
        messages = wanted_of(row)
        assert (messages == ()) is (row.hears == "nothing")
        assert [one.event for one in messages].count("restored") <= 1


def test_what_was_heard_is_in_the_pages_own_columns() -> None:
    from tests.chaos.chaos import Result, document, with_heard

    rows = table()[:3]
    page = document([Result(row, "", 7.0) for row in rows[:2]], 3, 60.0)
    heard = {rows[0].id: Heard((("failed", 3.2), ("restored", 40.0))), rows[1].id: Heard((), "heard | nothing")}
    lines = [line for line in with_heard(page, rows, heard).splitlines() if line.startswith("| rank")]
    assert lines[0].endswith("| as expected | 7 | failed soon, restored | failed 3 s, restored 40 s |")
    assert lines[1].endswith("| failed soon, restored | **heard / nothing** |")
    assert "| not played yet |" in lines[2]
    assert with_heard(with_heard(page, rows, heard), rows, heard) == with_heard(page, rows, heard)


def test_rows_that_were_played_since_are_in_the_page_of_the_complete_run() -> None:
    from tests.chaos.chaos import NOT_PLAYED, Result, document, with_heard

    rows = table()[:4]
    page = document([Result(row, "", 7.0) for row in rows[:2]], 3, 60.0)
    since = [Result(rows[1], "left", 8.0), Result(rows[2], "", 9.0), Result(rows[3], NOT_PLAYED, 0.0)]
    lines = [line for line in with_heard(page, rows, {}, since).splitlines() if line.startswith("| rank")]
    ends = ["| as expected | 7 |", "| **left** | 8 |", "| as expected | 9 |", "| not played yet |  |"]
    assert [end in line for line, end in zip(lines, ends, strict=True)] == [True] * 4


def test_a_group_stands_for_every_combination_of_what_it_lists() -> None:
    group = {"hit": "rank", "where": ["leader", "worker"], "at": "ready", "how": ["KILL", "TERM"], "end": {}}
    rows = list(read({"rows": [group]}))
    names = [f"{where}-rank-{how}-at-ready" for where in ("leader", "worker") for how in ("KILL", "TERM")]
    assert [row.id for row in rows] == names


def test_every_row_has_a_name_of_its_own_and_every_signal_is_played_at_every_moment() -> None:
    rows = table()
    assert len({row.id for row in rows}) == len(rows)
    assert {row.kind for row in rows} >= {"stopped", "rank", "parent", "agent", "controller", "fault", "upset"}
    played = {(row.hit, row.at, row.how) for row in rows}
    signals = ("KILL", "SEGV", "ABRT", "TERM", "STOP")
    rising = ("rendezvous", "weights", "graphs", "warm-up", "ready")
    for hit, moments in (
        ("rank", (*rising, "draining")),
        ("parent", (*rising, "draining")),
        ("agent", ("staged", "armed", *rising, "draining", "stopping")),
        ("controller", ("staged", "armed", *rising, "draining", "stopping")),
    ):
        missing = [(hit, at, how) for at in moments for how in signals if (hit, at, how) not in played]
        assert missing == []


def test_two_faults_are_on_two_nodes_and_sampled_alike_from_one_seed() -> None:
    rows = two_faults(1, 300)
    assert rows == two_faults(1, 300) != two_faults(2, 300)
    kinds = set()
    for row in rows:
        assert row.second is not None and row.second.node != row.node and row.second.id in row.id
        kinds |= {(row.hit, row.how), (row.second.hit, row.second.how)}
        harmless = {(row.hit, row.how), (row.second.hit, row.second.how)} <= set(HARMLESS)
        assert ("meanwhile" not in row.end) is harmless
    assert kinds == set(KINDS)


def test_the_page_shows_what_went_wrong() -> None:
    from tests.chaos.chaos import Result, document

    rows = table()
    text = document([Result(rows[0], "", 1.0), Result(rows[1], "left | behind", 2.0, 1)], 3, 70.0)
    assert "1 of 2" in text and "**left / behind**" in text and "1 times" in text


def test_a_run_goes_on_from_its_journal(tmp_path: Path) -> None:
    from tests.chaos.chaos import NOT_PLAYED, Result, _read, _write, document

    rows = table()
    played = [Result(rows[3], "", 1.5), Result(rows[1], "left behind", 2.5, 1)]
    for result in played:
        _write(tmp_path / "journal", result)
    assert _read(tmp_path / "journal", rows) == {3: played[0], 1: played[1]}
    assert _read(tmp_path / "none", rows) == {}
    assert "1 of 2 rows ended as the table says (1 more" in document([*played, Result(rows[0], NOT_PLAYED, 0.0)], 3, 60)
