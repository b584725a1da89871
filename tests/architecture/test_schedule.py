"""The order in which `make test` runs its files, and that the recorded durations are of files that exist."""

from __future__ import annotations

from tests.support.schedule import EACH_ALONE, TESTS, WAITING, durations, next_of, ordered, scope_of, written


def test_durations_name_what_exists() -> None:
    assert [scope for scope in durations() if not (TESTS / scope.partition("::")[0]).is_file()] == []
    assert [place for place in (*EACH_ALONE, *WAITING) if not (TESTS / place).exists()] == []


def test_a_file_stays_together_but_where_its_tests_share_nothing() -> None:
    assert scope_of("tests/lab/test_faults.py::test_a[b::c]") == "lab/test_faults.py"
    assert scope_of(f"tests/{EACH_ALONE[0]}::test_a[b]") == f"{EACH_ALONE[0]}::test_a[b]"


def test_the_longest_come_first_then_what_waits() -> None:
    scopes = ["unit/a.py", "lab/b.py", "unit/c.py", "lab/d.py"]
    assert ordered(scopes, {"unit/c.py": 9.0, "lab/d.py": 30.0}) == ["lab/d.py", "unit/c.py", "lab/b.py", "unit/a.py"]


def test_one_worker_takes_what_computes_and_then_helps() -> None:
    assert next_of(["lab/a.py", "unit/b.py"], quick=True) == "unit/b.py"
    assert next_of(["lab/a.py", "unit/b.py"], quick=False) == "lab/a.py"
    assert next_of(["lab/a.py"], quick=True) == "lab/a.py"


def test_what_is_written_down_is_long_and_sorted() -> None:
    assert written({"a": 5.2, "b": 1.0, "c": 80.6}) == '{\n  "c": 81,\n  "a": 5\n}\n'
