"""The order in which `make test` runs its files, and that the recorded durations are of files that exist."""

from __future__ import annotations

from tests.support.schedule import (
    EACH_ALONE,
    RECORD,
    TESTS,
    WAITING,
    durations,
    kept,
    next_of,
    of_a_run,
    ordered,
    scope_of,
    written,
)


def test_durations_name_what_exists() -> None:
    assert [scope for scope in durations() if not _there(scope.partition("::")[0])] == []
    assert [place for place in (*EACH_ALONE, *WAITING) if not _there(place)] == []


def _there(place: str) -> bool:
    """Whether a file, or some file that begins so, stands below tests/, or below the repository (lab/tests)."""
    return any(True for root in (TESTS, TESTS.parent) for _ in root.glob(f"{place}*"))


def test_a_file_stays_together_but_where_its_tests_share_nothing() -> None:
    assert scope_of("tests/lab/test_faults.py::test_a[b::c]") == "lab/test_faults.py"
    assert scope_of(f"tests/{EACH_ALONE[0]}::test_a[b]") == f"{EACH_ALONE[0]}::test_a[b]"


def test_the_longest_come_first_then_what_waits() -> None:
    scopes = ["unit/a.py", "lab/test_b.py", "unit/c.py", "lab/test_d.py"]
    known = {"unit/c.py": 9.0, "lab/test_d.py": 30.0}
    assert ordered(scopes, known) == ["lab/test_d.py", "unit/c.py", "lab/test_b.py", "unit/a.py"]


def test_one_worker_takes_what_computes_and_then_helps() -> None:
    assert next_of(["lab/test_a.py", "unit/b.py"], quick=True) == "unit/b.py"
    assert next_of(["lab/test_a.py", "unit/b.py"], quick=False) == "lab/test_a.py"
    assert next_of(["lab/test_a.py"], quick=True) == "lab/test_a.py"


def test_what_is_written_down_is_long_and_sorted() -> None:
    assert written({"a": 5.2, "b": 1.0, "c": 80.6}) == '{\n  "c": 81,\n  "a": 5\n}\n'


def test_what_had_no_turn_keeps_its_duration_while_its_file_is_there() -> None:
    file = "architecture/test_schedule.py"
    assert kept({file: 9.0, "unit/gone.py": 8.0, "unit": 7.0}, {"unit": 1.0}) == {file: 9.0, "unit": 1.0}


def test_a_pytest_inside_a_test_records_nothing() -> None:
    asked = {RECORD: "1", "TURN": "commit"}
    assert of_a_run(asked) == asked
    assert of_a_run({**asked, "PYTEST_CURRENT_TEST": "tests/packaging/test_wheel.py::test_a (call)"}) == {}
