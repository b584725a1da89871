"""How far what takes long has come: counts, bytes, rates and time left, and a limit to it."""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rich.progress_bar import ProgressBar
from rich.table import Column, Table

from orchestrator.cli.progress import PATIENCE_S, LivePicture, NowAndThen, spinner
from orchestrator.cli.screen import Screen
from orchestrator.cli.tables import cell
from orchestrator.protocol.errors import Unreachable
from orchestrator.protocol.sizes import in_words

LINES_S = 30.0
"""Between two lines on one thing, where lines can't be changed in their place."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_WINDOW_S = 15.0


def duration(seconds: float) -> str:
    """Minutes and seconds, hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def rate(text: str) -> int:
    """Bytes a second from 500K, 100M or 1.5G, for argparse."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in ("K", "M", "G") else (text, "")
    try:
        bytes_a_second = int(float(number) * _UNITS[unit])
    except (ValueError, OverflowError):
        bytes_a_second = 0
    if bytes_a_second < 1024:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted bytes per second, at least 1K: 500K, 100M, 1.5G")
    return bytes_a_second


def port(text: str) -> int:
    """A TCP port, 0 for any free one, for argparse."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a port: 1 to 65535, or 0 for any free one")
    return int(text)


class TransferRate:
    """Bytes a second over the last quarter of a minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, done: int) -> float:
        """Record how much is done; returns the rate, 0 if unknown."""
        now = time.monotonic()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        began, before = self._seen[0]
        return max(0.0, (done - before) / (now - began)) if now > began else 0.0


@contextlib.contextmanager
def counting(screen: Screen, words: str) -> Iterator[Callable[[str, int, int], None]]:
    """A function (name, done, of) that shows how far each of several is, how fast, and how long the rest takes at that
    rate: in place on a terminal, a line now and then where something takes long elsewhere."""
    began = time.monotonic()
    announced: dict[str, NowAndThen] = {}
    paces: dict[str, TransferRate] = {}
    with spinner(screen, words) as draw:

        def at(name: str, done: int, of: int) -> None:
            progress = f"{name}: {words}, {done} of {of}{_pace(paces.setdefault(name, TransferRate()), done, of)}"
            if draw is not None:
                draw(progress)
            elif name in announced:
                if announced[name].due():
                    screen.say(f"{progress} ...")
            elif time.monotonic() - began > PATIENCE_S:
                announced[name] = NowAndThen(LINES_S)
                screen.say(f"{progress} ...")

        yield at


def _pace(pace: TransferRate, done: int, of: int) -> str:
    """', 12.3 a second, 0:40 left'; '' until two figures allow it."""
    rate = pace.at(done)
    if rate <= 0:
        return ""
    return f", {rate:.3g} a second" + (f", {duration((of - done) / rate)} left" if done < of else "")


@dataclass(frozen=True, slots=True)
class Transfer:
    """One row of a TransferPicture: bytes done of total. words: of its line, with {} for how many of how many; state:
    shown in place of rate and time left, '' while it moves"""

    name: str
    done: int
    total: int
    words: str = "{}"
    state: str = ""


class TransferPicture(LivePicture):
    """Bytes, rate and time left of several transfers: a table on a terminal, else a line now and then for each that
    moves. May be told from several threads."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._paces: dict[str, TransferRate] = {}
        self._lines = NowAndThen()
        self._lock = threading.Lock()

    def show(self, transfers: Iterable[Transfer]) -> None:
        """How far each is now."""
        with self._lock:
            rows = [
                (transfer, self._paces.setdefault(transfer.name, TransferRate()).at(transfer.done))
                for transfer in transfers
            ]
            if self._live is not None:
                self._live.update(_table(rows))
            elif self._lines.due():
                for moving, pace in rows:
                    if not moving.state:
                        left = f", {_left(moving, pace)} left" if pace > 0 else ""
                        much = moving.words.format(f"{in_words(moving.done)} of {in_words(moving.total)}")
                        self._screen.say(f"{moving.name}: {much}, {in_words(int(pace))}/s{left}")


def _left(transfer: Transfer, pace: float) -> str:
    return duration((transfer.total - transfer.done) / pace)


def _table(rows: Iterable[tuple[Transfer, float]]) -> Table:
    figures = (Column(title, justify="right") for title in ("here", "rate", "left"))
    table = Table("", "", *figures, box=None, pad_edge=False)
    for transfer, pace in rows:
        left = _left(transfer, pace) if pace > 0 else ""
        moving = () if transfer.state else (f"{in_words(int(pace))}/s", left)
        bar = ProgressBar(total=max(1, transfer.total), completed=transfer.done, width=30)
        table.add_row(cell(transfer.name), bar, transfer.state or in_words(transfer.done), *moving)
    return table


class _Over(BaseException):
    """Not a DeployError, so that no caller mistakes it for a node's failure."""


@contextlib.contextmanager
def time_limit(seconds: float, *, fix: str) -> Iterator[None]:
    """Raises Unreachable in the block once it took longer; 0: never. Only in the main thread, as signals are."""

    def over(*_: object) -> None:
        raise _Over

    if seconds <= 0:
        yield
        return
    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _Over:
        raise Unreachable(f"not finished within {seconds:g} s", where="--timeout", fix=fix) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
