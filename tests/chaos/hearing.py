"""What a guard's receivers hear of a row, and when: the row is hit beside a real guard, whose webhook we answer.

The guard restarts what it can, as it does for its operator; so a row is healed once the messages of its fault have
come, and ends with a gang that serves, or with what its command has made of it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.play import (
    LEASE_S,
    MOMENT_S,
    PAGES,
    SHOWN_S,
    Command,
    Game,
    Otherwise,
    Stage,
    clear,
    until,
)
from tests.chaos.rows import ENDING, Row, table
from tests.chaos.watch import NodeGone
from tests.support.waiting import slack

HEARD = Path(__file__).with_name("heard.json")
NOTHING = "nothing"
RESTORED = "restored"
LIMITS = {"soon": 10.0, "silence": LEASE_S / 2 + 10.0, "lease": LEASE_S + 15.0, "minute": 75.0}
"""Seconds from the hit, or from the first request that failed, on an idle machine."""
QUIET_S = 8.0
"""Three looks of a guard: what it has to say, it has said by then."""
ENDS_S = 30.0


@dataclass(frozen=True)
class Wanted:
    """A message. within_s: on an idle machine; infinite for the one at the end, which comes once it serves again."""

    event: str
    within_s: float


@dataclass(frozen=True)
class Heard:
    """What came of a row: (event, seconds after the hit), and why that is not what the table says."""

    messages: tuple[tuple[str, float], ...]
    trouble: str = ""

    @property
    def words(self) -> str:
        """For the page."""
        if self.trouble:
            return f"**{self.trouble[:200]}**".replace("|", "/")
        return ", ".join(f"{event} {seconds:.0f} s" for event, seconds in self.messages) or NOTHING


def wanted_of(row: Row) -> tuple[Wanted, ...]:
    """Out of the table's words: `degraded silence, failed lease, restored`."""
    if row.hears == NOTHING:
        return ()
    words = (text.split() for text in row.hears.split(", "))
    return tuple(Wanted(event, LIMITS[by[0]] if by else float("inf")) for event, *by in words)


def hear(stage: Stage, row: Row) -> Heard:
    """Play the row beside a guard. Raises Missed where nothing could be hit."""
    with ExitStack() as over:
        over.callback(clear, stage)
        game = Game(stage, row, over)
        messages: list[tuple[str, float]] = []
        try:
            game.set_up()
            stage.forget_told()
            if not _has_a_guard(row):
                over.callback(_end, _guard(stage, row))
            if row.at == "ready" and game.load is None:
                game.load_it()
            since = len(stage.pager.got)
            game.strike()
            trouble = _listen(game, since)
            messages = [*_messages(game, since)]
            stage.serving = not stage.broken and not row.first and stage.gang()["state"] == "ready"
        except Otherwise as words:
            trouble = str(words)
        except NodeGone as gone:
            trouble = f"its console does not answer: {gone}"
        except AssertionError as failed:
            trouble = f"a command failed: {failed}"
        return Heard(tuple(messages), " ".join(trouble.split()))


def _has_a_guard(row: Row) -> bool:
    """The row's own command is one."""
    begins_one = row.hit in ("controller", "session", "release") and row.at == "ready" and row.under not in PAGES
    return row.under == "guard" or begins_one


def _guard(stage: Stage, row: Row) -> Command:
    """A guard that has looked at the gang. The lock of one that was killed goes stale first."""
    ends = time.monotonic() + MOMENT_S * slack()
    while True:
        guard = stage.command("guard-beside", "guard", "--pause", "2s", "--limit", "99")
        if _holds(stage, guard):
            break
        guard.close()
        if time.monotonic() > ends:
            raise Otherwise(f"no guard starts: {guard.said[-200:]}")
        time.sleep(1.0)
    # its first question to the doctor is answered by then: what it finds at the hit's moment would be chance
    if row.begins_served and not until(lambda: "well" in stage.told() and stage.kept("health") != [], MOMENT_S):
        raise Otherwise(f"the guard has not seen that the gang serves: {guard.said[-200:]}")
    return guard


def _holds(stage: Stage, guard: Command) -> bool:
    """Whether it has the guard's lock, once it has that or has ended."""
    process, man = guard.process, stage.watch["node0"]

    def holds() -> bool:
        return bool(man.ask(do="holds", gang="guard.gang0", pid=process.pid)["holds"])

    until(lambda: process.poll() is not None or holds(), MOMENT_S)
    return process.poll() is None


def _end(guard: Command) -> None:
    """As Ctrl-C does, so that it gives its lock back."""
    if guard.process.poll() is None:
        guard.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            guard.process.wait(ENDS_S)
    guard.close()


def _messages(game: Game, since: int) -> Iterator[tuple[str, float]]:
    """Those about the gang, in the order in which they came."""
    for _, document, at in game.stage.pager.got[since:]:
        if document["subject"] == "gang0":
            yield str(document["event"]), max(0.0, at - game.struck_at)


def _listen(game: Game, since: int) -> str:
    """Until the row has ended; why that is not what the table says, '' where it is."""
    wanted = wanted_of(game.row)
    first = [message for message in wanted if message.event != RESTORED]
    wait_s = max((message.within_s for message in first), default=QUIET_S) * slack()
    until(lambda: len([*_messages(game, since)]) >= len(first) and bool(first), wait_s + QUIET_S)
    _mend(game)
    game.verb_ended()
    if len(first) < len(wanted):
        until(lambda: [*_messages(game, since)][-1:] != [] and [*_messages(game, since)][-1][0] == RESTORED, SHOWN_S)
    until(lambda: len([*_messages(game, since)]) > len(wanted), QUIET_S)
    heard = [*_messages(game, since)]
    heard.sort(key=_place(wanted))
    if [event for event, _ in heard] != [message.event for message in wanted]:
        return f"heard {', '.join(event for event, _ in heard) or NOTHING}: {_texts(game, since)}"
    begins = _late_s(game)
    late = [
        f"{message.event} after {at - begins:.0f} s"
        for message, (_, at) in zip(wanted, heard, strict=True)
        if at - begins > message.within_s * slack()
    ]
    return "; ".join(late)


def _place(wanted: Sequence[Wanted]) -> Callable[[tuple[str, float]], int]:
    """Where the table has a message: those of one fault come in any order, but for the one at its end."""
    order = [message.event for message in wanted]

    def place(heard: tuple[str, float]) -> int:
        return order.index(heard[0]) if heard[0] in order else len(order)

    return place


def _late_s(game: Game) -> float:
    """From the hit until the first request failed: what a message is measured from, where it may fail later."""
    failed = game.load.failed_at if game.load is not None else 0.0
    return max(0.0, failed - game.struck_at) if failed else 0.0


def _texts(game: Game, since: int) -> str:
    return "; ".join(str(document["text"])[:80] for _, document, _ in game.stage.pager.got[since:])


def _mend(game: Game) -> None:
    """What an operator does about the fault, as far as a guard can't. Whatever was stopped continues, unless the guard
    is to end it."""
    row = game.row
    if row.at in ENDING:
        game.verb_ended()
    for node in sorted(game.stage.broken):
        game.stage.fault("heal", node)
    if "continue" in row.steps:
        game.do("continue")


def read_heard() -> dict[str, Heard]:
    """What was measured, by the rows' ids."""
    kept = json.loads(HEARD.read_text("utf-8")) if HEARD.exists() else {}
    return {
        name: Heard(tuple((str(event), float(at)) for event, at in one["messages"]), one["trouble"])
        for name, one in kept.items()
    }


def keep_heard(found: Mapping[str, Heard]) -> None:
    """With those that were measured before, of rows that the table has."""
    both, names = {**read_heard(), **found}, {row.id for row in table()}
    lines = [
        json.dumps(name) + ": " + json.dumps({
            "messages": [(event, round(at, 1)) for event, at in one.messages], "trouble": one.trouble
        })
        for name, one in sorted(both.items())
        if name in names
    ]  # fmt: skip
    HEARD.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def right_before(rows: Iterable[Row]) -> list[Row]:
    """Those that were heard as the table says."""
    heard = read_heard()
    return [row for row in rows if row.id in heard and not heard[row.id].trouble]


def cells(row: Row, heard: Mapping[str, Heard]) -> Sequence[str]:
    """Of the page: what is wanted, and what was measured."""
    return row.hears, heard[row.id].words if row.id in heard else ""
