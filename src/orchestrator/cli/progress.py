"""What takes long: a sign of life on stderr, a line or a picture drawn anew."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.live import Live

from orchestrator.cli.screen import Screen, printable

if TYPE_CHECKING:
    from typing_extensions import Self

PATIENCE_S = 2.0


@contextlib.contextmanager
def patience(screen: Screen, words: str) -> Iterator[None]:
    """Say what is being waited for, once it takes long: a spinner on a terminal, one line elsewhere."""
    over = threading.Event()

    def tell() -> None:
        if over.wait(PATIENCE_S):
            return
        if not screen.draws:
            screen.say(f"{words} ...")
            return
        with screen.err.status(printable(words)):
            over.wait()

    waiting = threading.Thread(target=tell, daemon=True)
    waiting.start()
    try:
        yield
    finally:
        over.set()
        waiting.join()


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


@contextlib.contextmanager
def spinner(screen: Screen, words: str) -> Iterator[Callable[[str], None] | None]:
    """A function that changes the words beside a spinner; None where nothing can be drawn in its place."""
    if not screen.draws:
        yield None
        return
    with screen.err.status(printable(words)) as drawn:
        yield lambda now: drawn.update(printable(now))


@contextlib.contextmanager
def words_in_place(screen: Screen, words: str, *, every_s: float) -> Iterator[Callable[[str], None]]:
    """A function that changes one line in its place on a terminal; elsewhere it says a line every every_s seconds."""
    lines = NowAndThen(every_s)
    with spinner(screen, words) as draw:
        if draw is None:
            screen.say(f"{words} ...")
        yield draw or (lambda now: screen.say(now) if lines.due() else None)


class LivePicture:
    """A context in which `_live` takes renderables, or is None and lines have to do.

    The picture is erased when the context ends: a result is printed after it, never inside.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._screen.draws:
            self._live = Live(console=self._screen.err, transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, words: str) -> None:
        """A line of talk, above the picture where there is one."""
        if self._live is not None:
            self._screen.err.print(printable(words))
        else:
            self._screen.say(words)
