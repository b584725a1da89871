"""Variations by turns: what is chosen, what the page says, and that every kind is played each time."""

from __future__ import annotations

import pytest
from tests.support.turns import PAGE, ROOT, Kind, chosen, listed, of_commit, read, without_turn, written

ROWS = [f"tests/a.py::test_it[{number}]" for number in range(5)]


def test_of_each_kind_what_was_never_played_comes_first_then_what_was_played_longest_ago() -> None:
    kinds = [Kind(ROWS), Kind(["tests/b.py::test_one"])]
    played = dict.fromkeys(ROWS, "2026-11-02 10:00")
    oldest = {**played, ROWS[3]: "2026-11-01 10:00"}
    assert chosen(kinds, oldest, "c1") == {ROWS[3], "tests/b.py::test_one"}
    never = {row: when for row, when in oldest.items() if row != ROWS[1]}
    assert chosen(kinds, never, "c1") == {ROWS[1], "tests/b.py::test_one"}
    assert chosen([Kind(ROWS, play=2)], never, "c1") == {ROWS[1], ROWS[3]}
    assert chosen([Kind(ROWS[:1], play=9)], {}, "") == {ROWS[0]}


def test_among_equals_the_commit_decides_and_each_has_its_turn() -> None:
    kinds = [Kind(ROWS)]
    assert chosen(kinds, {}, "c1") == chosen(kinds, {}, "c1")
    assert {row for commit in map(str, range(100)) for row in chosen(kinds, {}, commit)} == {*ROWS}
    played: dict[str, str] = {}
    for turn in range(len(ROWS)):
        (row,) = chosen(kinds, played, "the same commit")
        played[row] = f"2026-11-{turn + 1:02}"
    assert {*played} == {*ROWS}


def test_a_file_is_one_variation_and_without_its_turn_none_of_its_kinds_has_any() -> None:
    files = pytest.mark.turns(of="labs").mark
    signal, node = pytest.mark.turns(of="signal").mark, pytest.mark.turns(of="node").mark
    a, b = "tests/a.py", "tests/b.py"
    marked = {
        f"{a}::test_always": [(a, files)],
        f"{a}::test_kill": [(f"{a}::test_kill", signal), (a, files)],
        f"{b}::test_stop": [(f"{b}::test_stop", signal), (b, files)],
        f"{b}::test_first": [(f"{b}::test_first", node), (b, files)],
        f"{b}::test_last": [(f"{b}::test_last", node), (b, files)],
    }
    of_b = {f"{b}::test_stop", f"{b}::test_first", f"{b}::test_last"}
    assert without_turn(marked, {b: "2026-11-01", f"{a}::test_kill": "2026-11-01"}, "c1") == of_b
    played = {a: "2026-11-01", f"{b}::test_first": "2026-11-01"}
    assert without_turn(marked, played, "c1") == {f"{a}::test_always", f"{a}::test_kill", f"{b}::test_first"}


def test_the_page_says_what_it_was_told_and_what_was_never_played() -> None:
    played = {ROWS[0]: ("2026-11-01 10:00", "0123456789ab"), ROWS[1]: ("2026-11-02 10:00", "0123456789ab (skipped)")}
    page = written(ROWS, played)
    assert read(page) == played and listed(page) == ROWS
    assert f"| `{ROWS[4]}` | never |  |" in page


def test_the_page_names_tests_that_exist() -> None:
    tests = {row.partition("[")[0] for row in read(PAGE.read_text())}
    assert [test for test in sorted(tests) if not _is_there(test)] == []


def _is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / file).exists() and (not name or f"def {name}(" in (ROOT / file).read_text())


def test_the_same_commit_draws_the_same() -> None:
    assert of_commit("a sample") == of_commit("a sample") != of_commit("another")
