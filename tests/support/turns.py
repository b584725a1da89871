"""Variations by turns: every run of the tests plays every kind, and of a kind's variations one, chosen by the commit.

A test marked `turns` is one kind, and its parameters are its variations; `turns(of="...")` makes one kind of several
tests, or several kinds of one test's parameters; `turns(play=3)` plays three. In a file's `pytestmark` the file is one
variation, with its lab: the kind is of several files, and of a file that is played its own kinds have their turns. Of a
kind those are played that never were, then those that were played longest ago, by the page as it is in the commit;
among equals the commit's hash decides. So the same commit always plays the same, and pages that are committed bring
every variation to its turn.

TURN=commit, as in `make test`, writes the page; TURN=all, as in `make long`, plays all and writes the page. A test that
is named with `::` is played with all its variations.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "tests/turns.md"
MARK = "turns"
T = TypeVar("T")
ALL = "all"
NEVER = "never"
HEAD = """# Variations, and when each was played last

`make test` plays one variation of each kind by turns ([how](support/turns.py)), `make long` all. Both write this page,
with the variations that passed.

| variation | played last (UTC) | at |
|---|---|---|
"""
_LINE = re.compile(r"^\| `(?P<row>.+)` \| (?P<when>[^|]+) \| (?P<at>[^|]*) \|$")


def of_commit(name: str) -> int:
    """A seed of the commit's. name: of what is sampled"""
    return _number(head_commit(), name)


def drawn(name: str) -> int:
    """A seed for a sample: the commit's, so that the same commit plays the same; with TURN=all another one each time.
    name: of the sample"""
    return secrets.randbelow(1 << 32) if os.environ.get("TURN") == ALL else of_commit(name)


def sampled(name: str, rows: Sequence[T], play: int) -> list[T]:
    """So many rows of a kind whose variations are too many and too quick for a page of them: the commit chooses; all of
    them with TURN=all. name: of what they are"""
    if os.environ.get("TURN") == ALL:
        return list(rows)
    places = sorted(range(len(rows)), key=lambda place: _number(head_commit(), f"{name} {place}"))[:play]
    return [rows[place] for place in sorted(places)]


@dataclass
class Kind:
    """Its variations by their tests' ids, and how many of them are played."""

    rows: list[str] = field(default_factory=list)
    play: int = 1


def chosen(kinds: Iterable[Kind], played: Mapping[str, str], commit: str) -> set[str]:
    """The variations whose turn it is. played: when each was, last, in a form that sorts by time"""
    return {
        row
        for kind in kinds
        for row in sorted(kind.rows, key=lambda row: (played.get(row, ""), _number(commit, row)))[: kind.play]
    }


def by_turns(rows: Sequence[Any], *, of: Callable[[Any], str] | None = None, play: int = 1) -> list[Any]:
    """Parameters of a test as variations of one kind, or of the kinds that `of` says."""
    more = [{"of": of(row)} if of else {} for row in rows]
    return [pytest.param(row, marks=pytest.mark.turns(play=play, **kind)) for row, kind in zip(rows, more, strict=True)]


def listed(page: str) -> list[str]:
    """Every variation of the page, those that were never played too."""
    return [line["row"] for line in map(_LINE.match, page.splitlines()) if line]


def read(page: str) -> dict[str, tuple[str, str]]:
    """When each variation was played last, in a form that sorts by time, and at which commit; none never played."""
    lines = (_LINE.match(line) for line in page.splitlines())
    return {line["row"]: (line["when"], line["at"]) for line in lines if line and line["when"] != NEVER}


def written(rows: Iterable[str], played: Mapping[str, tuple[str, str]]) -> str:
    """The page."""
    lines = []
    for row in sorted(rows):
        when, at = played.get(row, (NEVER, ""))
        lines.append(f"| `{row}` | {when} | {at} |\n")
    return HEAD + "".join(lines)


class Turns:
    """The plugin: deselects what has no turn, and writes the page."""

    def __init__(self, turn: str) -> None:
        self.turn = turn
        self.rows: set[str] = set()
        self.played: dict[str, str] = {}
        """What was played in this run, with what the page says of it beside the time."""

    def pytest_report_header(self) -> str:
        return f"variations: {self.turn or 'by turns'}, commit {head_commit()[:12]}"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        marked = {item.nodeid: found for item in items if (found := _variations(item))}
        self.rows = {row for variations in marked.values() for row, _ in variations}
        if self.turn == ALL or any("::" in word for word in config.args):
            return
        played = {row: when for row, (when, _) in read(_committed_page()).items()}
        out = without_turn(marked, played, head_commit())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
        items[:] = [item for item in items if item.nodeid not in out]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if MARK in report.keywords and (report.skipped or (report.when == "call" and report.passed)):
            at = f"{head_commit()[:12]} {'(skipped)' if report.skipped else ''}".strip()
            for row in (report.nodeid, _file(report.nodeid)):
                self.played[row] = self.played.get(row, at) if report.skipped else at

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """xdist's controller collects nothing itself: its workers say what there is."""
        self.rows |= set(getattr(node, "workeroutput", {}).get(MARK, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[MARK] = sorted(self.rows)
        elif self.turn and self.played:
            now = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M}"
            page = PAGE.read_text()
            before = read(page)
            collected = {_test(row) for row in self.rows}
            rows = self.rows | {row for row in listed(page) if _test(row) not in collected and _is_there(row)}
            PAGE.write_text(written(rows, before | {row: (now, at) for row, at in self.played.items()}))


Variations = list[tuple[str, pytest.Mark]]
"""Rows that a test is, or is a part of: itself, its file; with the marks that say so."""


def _variations(item: pytest.Item) -> Variations:
    return [(node.nodeid, mark) for node, mark in item.iter_markers_with_node(MARK)]


def without_turn(marked: Mapping[str, Variations], played: Mapping[str, str], commit: str) -> set[str]:
    """Tests that are not played. Files have their turns first: in one that is not played, no kind has any."""
    out: set[str] = set()
    for whole in (True, False):
        kinds = _kinds((rows for test, rows in marked.items() if test not in out), whole)
        rest = {row for kind in kinds.values() for row in kind.rows} - chosen(kinds.values(), played, commit)
        out |= {test for test, rows in marked.items() if any(row in rest for row, _ in rows)}
    return out


def _kinds(variations: Iterable[Variations], whole: bool) -> dict[str, Kind]:
    """By the kind's name. whole: kinds of files, otherwise those of tests"""
    kinds: dict[str, Kind] = {}
    marks = {row: mark for rows in variations for row, mark in rows if (row == _file(row)) is whole}
    for row, mark in marks.items():
        kind = kinds.setdefault(mark.kwargs.get("of") or _test(row), Kind(play=mark.kwargs.get("play", 1)))
        kind.rows.append(row)
    return kinds


def _test(row: str) -> str:
    return row.partition("[")[0]


def _file(row: str) -> str:
    return row.partition("::")[0]


def _is_there(row: str) -> bool:
    return (ROOT / _file(row)).exists()


def _number(commit: str, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{commit} {name}".encode()).digest()[:4], "big")


@cache
def head_commit() -> str:
    """The checkout's; empty outside one."""
    return _git("rev-parse", "HEAD").strip()


@cache
def _committed_page() -> str:
    return _git("show", "HEAD:tests/turns.md") or PAGE.read_text()


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""
