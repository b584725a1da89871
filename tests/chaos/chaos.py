"""`python -m tests.chaos.chaos [--labs N] [--times N] [WORD...]`: plays the chaos table, in several labs in parallel.

Without words: all rows, and writes chaos.md; with words: rows whose id contains one of them, which it puts there.
`--two-faults N` plays rows of two simultaneous faults instead, sampled by a seed that is printed; `--seed SEED` repeats
them.
`--hears` plays the rows beside a guard, keeps what its receivers hear in heard.json, and shows it in chaos.md; a
complete run does that after the rows themselves.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from tests.chaos.hearing import Heard, cells, hear, keep_heard, read_heard
from tests.chaos.play import NODES, PATIENCE_S, SPEED, Missed, Stage, play
from tests.chaos.rows import NotHere, Row, table, two_faults
from tests.support import proven
from tests.support.small_lab import SmallLab, described, small_lab

REPORT = Path(__file__).with_name("chaos.md")
LABS = 3
NOT_PLAYED = "not played"
TRIES = 10
"""A missed moment says nothing about the product: the row is played again."""


@dataclass(frozen=True)
class Result:
    """A row's result. trouble: '' if it ended as the table says; missed: how often its moment was missed."""

    row: Row
    trouble: str
    seconds: float
    missed: int = 0
    heard: Heard | None = None

    def line(self) -> str:
        """A line of progress."""
        again = f", moment missed {self.missed} times" if self.missed else ""
        return f"{self.row.id}: {self.trouble[-400:] or 'as expected'} ({self.seconds:.1f} s{again})"


def chaos_lab(name: str) -> SmallLab:
    """Four systemd nodes of two ranks (if this machine can't run them, the lab says why and takes level 1)."""
    env = {"STANDIN_SPEED": SPEED, "SGLANG_HEALTH_CHECK_TIMEOUT": PATIENCE_S}
    return described(name, nodes=NODES, level=2, env=env)


def play_row(stage: Stage, row: Row, *, hears: bool = False) -> Result:
    """Play one row; repeat it if its moment was missed. hears: beside a guard."""
    missed, heard = 0, None
    while True:
        began = time.monotonic()
        try:
            heard = hear(stage, row) if hears else None
            trouble = heard.trouble if heard is not None else play(stage, row)
        except Missed as words:
            missed += 1
            if missed < TRIES:
                continue
            trouble = f"the moment did not come: {words}"
        except NotHere as none:
            sys.stdout.write(f"{row.id}: {none}\n")
            trouble = NOT_PLAYED
        return Result(row, " ".join(trouble.split()), time.monotonic() - began, missed, heard)


def play_all(
    rows: Sequence[Row],
    labs: int,
    known: Mapping[int, Result] | None = None,
    journal: Path | None = None,
    *,
    hears: bool = False,
) -> list[Result]:
    """Play all rows in so many labs; each takes the next row when it is free. Results in the order of the rows."""
    found = dict(known or {})
    labs = min(labs, len(rows) - len(found))
    queue: SimpleQueue[int] = multiprocessing.SimpleQueue()
    results: SimpleQueue[tuple[int, Result | str]] = multiprocessing.SimpleQueue()
    for place in (*_in_turn(rows, found), *([-1] * labs)):
        queue.put(place)
    workers = [
        multiprocessing.Process(target=_work, args=(f"chaos{os.getpid()}-{number}", rows, queue, results, hears))
        for number in range(labs)
    ]
    for worker in workers:
        worker.start()
    signal.signal(signal.SIGTERM, lambda *_: _end(workers))
    working = labs
    while working:
        place, result = results.get()
        if isinstance(result, str):
            working -= 1
            sys.stdout.write(f"{result}\n" if result else "")
        else:
            found[place] = result
            _write(journal, result)
            if result.heard is not None:
                keep_heard({result.row.id: result.heard})
            sys.stdout.write(f"{len(found)}/{len(rows)} {result.line()}\n")
        sys.stdout.flush()
    for worker in workers:
        worker.join()
    return [found.get(place) or Result(row, NOT_PLAYED, 0.0) for place, row in enumerate(rows)]


def _in_turn(rows: Sequence[Row], known: Collection[int]) -> list[int]:
    """Indexes of the rows to play: one that mostly waits after every two that work, while there are any.

    Rows that begin with a ready gang come first, since the row before may leave one. Rows whose ranks die in the same
    way are grouped.
    """
    left = [place for place in range(len(rows)) if place not in known]
    quick = sorted(
        (place for place in left if not rows[place].slow),
        key=lambda place: (rows[place].deaths, rows[place].at != "ready"),
    )
    slow = deque(place for place in left if rows[place].slow)
    turns: list[int] = []
    for number, place in enumerate(quick):
        turns.append(place)
        if number % 2 and slow:
            turns.append(slow.popleft())
    return [*turns, *slow]


def _read(journal: Path, rows: Sequence[Row]) -> dict[int, Result]:
    """Results of an interrupted run, by the row's index."""
    places = {row.id: place for place, row in enumerate(rows)}
    told = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    return {
        places[one["id"]]: Result(rows[places[one["id"]]], one["trouble"], one["seconds"], one["missed"])
        for one in told
        if one["id"] in places
    }


def _write(journal: Path | None, result: Result) -> None:
    if journal is not None:
        line = {"id": result.row.id, "trouble": result.trouble, "seconds": result.seconds, "missed": result.missed}
        with journal.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _end(workers: Sequence[BaseProcess]) -> None:
    """The workers take their labs down."""
    for worker in workers:
        worker.terminate()


def _work(
    name: str,
    rows: Sequence[Row],
    queue: SimpleQueue[int],
    results: SimpleQueue[tuple[int, Result | str]],
    hears: bool,
) -> None:
    """In a process of its own: a lab that plays rows until none is left."""
    words = ""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with small_lab(name, of=chaos_lab(name)) as lab:
            stage = Stage.raised(lab)
            try:
                while (place := queue.get()) >= 0:
                    results.put((place, play_row(stage, rows[place], hears=hears)))
            finally:
                stage.close()
    except BaseException as defect:
        words = f"a lab broke: {type(defect).__name__} {defect}"
        raise
    finally:
        results.put((-1, words))


def document(results: Sequence[Result], labs: int, seconds: float, before: Sequence[str] = ()) -> str:
    """tests/chaos/chaos.md. before: results of the previous runs."""
    good = sum(not result.trouble for result in results)
    played = sum(result.trouble != NOT_PLAYED for result in results)
    apart = f" ({len(results) - played} more were not played)" if played < len(results) else ""
    missed = sum(result.missed for result in results)
    lines = [
        "# Chaos",
        "",
        (
            f"`make chaos` plays tests/chaos/table.yml: {good} of {played} rows ended as the table says{apart}, in "
            f"{seconds / 60:.0f} minutes with {labs} labs side by side. Each lab has four systemd nodes with two ranks "
            "each; unless a row says otherwise, its stand-in engine's ranks do not notice each other's death. After "
            "every row in which the gang does not run, processes, GPU memory, units and listening ports are checked "
            "on every node. Requests are counted by clients that never retry. The last columns are of a second play of "
            "each row, beside a guard that restarts what it can: the messages of its receivers (a webhook), and how "
            "long after the hit they came; empty where that was not played yet."
        ),
        "",
        *((f"The runs just before it: {'; '.join(before)}.", "") if before else ()),
        "The table explains the words, and which rows are left out and why."
        + (f" {missed} times the fault came too late, and the row was played again." if missed else ""),
        "",
        *HEAD,
    ]
    heard = read_heard()
    lines += [_line(result.row, _ended(result), heard) for result in results]
    return "\n".join([*lines, _NOTES]) + "\n"


HEAD = (
    "| hit | where | when | how | must end | ended | s | a guard's receivers hear | heard |",
    "|---|---|---|---|---|---|---|---|---|",
)


def _ended(result: Result) -> list[str]:
    """Of the page: how it ended, and how long it took."""
    words = f"**{result.trouble[:300]}**".replace("|", "/") if result.trouble else "as expected"
    return [words, f"{result.seconds:.0f}"]


def _line(row: Row, ended: Sequence[str], heard: Mapping[str, Heard]) -> str:
    return f"| {' | '.join((*_named(row), *ended, *cells(row, heard)))} |"


def _named(row: Row) -> tuple[str, ...]:
    """The row's first columns."""
    how = f"{row.how}, with {row.first}" if row.first else row.how
    how += f", dying as with {row.deaths.upper()}" if row.deaths != "plain" else ""
    how += f", under `{row.under}`" if row.under else ""
    return row.hit, row.where, row.at, how, _wanted(row)


def with_heard(page: str, rows: Sequence[Row], heard: Mapping[str, Heard], since: Sequence[Result] = ()) -> str:
    """The page of a complete run, with what was heard, and which rows were played, since. A row that it does not have
    has not been played."""
    lines = page.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| hit |"))
    last = next(number for number in range(first, len(lines)) if not lines[number].startswith("|"))
    told = {tuple(_cells(line)[:5]): _cells(line)[5:7] for line in lines[first + 2 : last]}
    told |= {_named(result.row): _ended(result) for result in since if result.trouble != NOT_PLAYED}
    new = [_line(row, told.get(_named(row), ["not played yet", ""]), heard) for row in rows]
    return "\n".join([*lines[:first], *HEAD, *new, *lines[last:]]) + "\n"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


_NOTES = """
- **fsfreeze** is real: the node's state directory is an ext4 on a loop device, frozen by the kernel (FIFREEZE) for one
  and a half leases.
- **clock-step** is a stand-in: the kernel has one wall clock for all nodes, so the C library's answers jump by an hour,
  in programs that run already too. Monotonic time does not change.
- **slow-cpu** is a quota of the kernel's: all programs of the node share a tenth of one processor.
- **mtu-black-hole**, **duplicate** and **reorder** are a relay of the lab's in the node's cable.
- A **minute** is 60 s from the hit: longer than the lease (14 s) and as long as a command's lock lasts.
- **release**: a command of an older commit beside one of this commit's, or the other way round (under `older`).
- **shared-state** mounts one directory over two nodes' state directories.
- Rows that are newer than the complete run were played by themselves since.
- A port that is dropped for a while under a guard is tested by `tests/lab/test_faults_of_a_gang.py`.

Two faults at once (`--two-faults N --seed S`): 300 sampled rows, played in three parts, ended as expected.
""".removesuffix("\n")


def _wanted(row: Row) -> str:
    """The row's end in a few words."""
    end = row.end
    words = []
    meanwhile = dict(end.get("meanwhile") or {})
    if meanwhile:
        words.append("meanwhile " + ", ".join(f"{name} {value}" for name, value in meanwhile.items()))
    if row.steps:
        words.append("then " + ", ".join(row.steps))
    words.append(str(end["state"]))
    words += [
        f"{name.replace('_', ' ')} {end[name]}"
        for name in ("blames", "verb", "other", "says", "failed_requests")
        if name in end
    ]
    return "; ".join(words).replace("|", "/")


def _hear_all(rows: Sequence[Row], labs: int) -> int:
    """1 where some row is heard otherwise than the table says."""
    results = play_all(rows, labs, hears=True)
    bad = [result for result in results if result.trouble]
    sys.stdout.write(f"heard as wanted: {len(rows) - len(bad)} of {len(rows)}\n")
    sys.stdout.write("".join(f"  {result.line()}\n" for result in bad))
    REPORT.write_text(with_heard(REPORT.read_text("utf-8"), table(), read_heard()), "utf-8")
    return 1 if bad else 0


def main(words: Sequence[str]) -> int:
    """0 if every row ended as the table says."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.chaos", description=__doc__)
    parser.add_argument("--labs", type=int, default=LABS, help=f"labs side by side ({LABS})")
    parser.add_argument("--times", type=int, default=1, help="so many runs in a row; the page is of the last")
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--journal", type=Path, help="results as they come; rows that are in it are not played again")
    parser.add_argument("--two-faults", type=int, default=0, metavar="N", help="N rows of two faults instead")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32), help="of the sample")
    parser.add_argument("--hears", action="store_true", help="beside a guard: what its receivers hear")
    args = parser.parse_args(words)
    rows = two_faults(args.seed, args.two_faults) if args.two_faults else table()
    rows = [row for row in rows if not args.words or any(word in row.id for word in args.words)]
    if args.two_faults:
        sys.stdout.write(f"two faults: --seed {args.seed}\n")
    if args.hears:
        return _hear_all(rows, args.labs)
    failed = 0
    before: list[str] = []
    for number in range(args.times):
        began = time.monotonic()
        known = _read(args.journal, rows) if args.journal else {}
        results = play_all(rows, args.labs, known, args.journal)
        seconds = time.monotonic() - began + sum(result.seconds for result in known.values()) / args.labs
        bad = [result for result in results if result.trouble]
        failed += len(bad)
        sys.stdout.write(f"run {number + 1}: {len(rows) - len(bad)} of {len(rows)} as expected, {seconds:.0f} s\n")
        sys.stdout.write("".join(f"  {result.line()}\n" for result in bad))
        if args.words and not args.two_faults:
            REPORT.write_text(with_heard(REPORT.read_text("utf-8"), table(), read_heard(), results), "utf-8")
        if not args.words and not args.two_faults:
            REPORT.write_text(document(results, args.labs, seconds, before))
            proven.record("chaos", f"{len(rows) - len(bad)} of {len(rows)} rows")
            failed += _hear_all(rows, args.labs)
        if any(result.trouble == NOT_PLAYED for result in results):
            return 1
        before.append(f"{len(rows) - len(bad)} of {len(rows)} as expected in {seconds / 60:.0f} minutes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
