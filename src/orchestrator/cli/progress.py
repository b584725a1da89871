"""A sign of life on stderr for what takes longer than two seconds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.sizes import TransferRate, duration

if TYPE_CHECKING:  # rich costs 60 ms to import
    from rich.status import Status

PATIENCE_S = 2.0
LINES_S = 30.0
"""Between two lines on one thing, where lines can't be changed in their place."""


@contextlib.contextmanager
def patience(screen: Screen, words: str) -> Iterator[None]:
    """Say what is being waited for, once it takes long: a spinner on a terminal, one line elsewhere."""
    over = threading.Event()
    waiting = threading.Thread(target=_tell, args=(screen, printable(words), over), daemon=True)
    waiting.start()
    try:
        yield
    finally:
        over.set()
        waiting.join()


def _tell(screen: Screen, words: str, over: threading.Event) -> None:
    if over.wait(PATIENCE_S):
        return
    if not screen.draws:
        screen.say(f"{words} ...")
        return
    with screen.err.status(words):
        over.wait()


class NowAndThen:
    """Whether it is time for another line, where lines can't be changed in their place: the first after every_s."""

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s = every_s
        self._last = time.monotonic()

    def due(self) -> bool:
        """True once in every_s seconds."""
        now = time.monotonic()
        if now - self._last < self._every_s:
            return False
        self._last = now
        return True


class WordsInPlace:
    """A context with one line that changes in its place on a terminal; elsewhere a line every every_s seconds."""

    def __init__(self, screen: Screen, words: str, *, every_s: float) -> None:
        self._screen = screen
        self._lines = NowAndThen(every_s)
        self._words = printable(words)
        self._stack = contextlib.ExitStack()
        self._drawn: Status | None = None

    def __enter__(self) -> WordsInPlace:
        if self._screen.draws:
            self._drawn = self._stack.enter_context(self._screen.err.status(self._words))
        else:
            self._screen.say(f"{self._words} ...")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def update(self, words: str) -> None:
        """Current progress."""
        if self._drawn is not None:
            self._drawn.update(printable(words))
        elif self._lines.due():
            self._screen.say(words)


@contextlib.contextmanager
def counting(screen: Screen, words: str) -> Iterator[Callable[[str, int, int], None]]:
    """A function (name, done, of) that shows how far each of several is, how fast, and how long the rest takes at that
    rate: in place on a terminal, a line now and then where something takes long elsewhere."""
    began = time.monotonic()
    announced: dict[str, NowAndThen] = {}
    paces: dict[str, TransferRate] = {}
    with contextlib.ExitStack() as stack:
        drawn = stack.enter_context(screen.err.status(printable(words))) if screen.draws else None

        def at(name: str, done: int, of: int) -> None:
            said = f"{name}: {words}, {done} of {of}{_pace(paces.setdefault(name, TransferRate()), done, of)}"
            if drawn is not None:
                drawn.update(printable(said))
            elif name in announced:
                if announced[name].due():
                    screen.say(f"{said} ...")
            elif time.monotonic() - began > PATIENCE_S:
                announced[name] = NowAndThen(LINES_S)
                screen.say(f"{said} ...")

        yield at


def _pace(pace: TransferRate, done: int, of: int) -> str:
    """', 12.3 a second, 0:40 left'; '' until two figures allow it."""
    rate = pace.at(done)
    if rate <= 0:
        return ""
    return f", {rate:.3g} a second" + (f", {duration((of - done) / rate)} left" if done < of else "")
