"""A sign of life on stderr for what takes longer than two seconds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from orchestrator.cli.screen import Screen, printable

PATIENCE_S = 2.0


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


@contextlib.contextmanager
def counting(screen: Screen, words: str) -> Iterator[Callable[[str, int, int], None]]:
    """A function (name, done, of) that shows how far each of several is: in place on a terminal, one line each
    where something takes long elsewhere."""
    began = time.monotonic()
    announced: set[str] = set()
    with contextlib.ExitStack() as stack:
        drawn = stack.enter_context(screen.err.status(printable(words))) if screen.draws else None

        def at(name: str, done: int, of: int) -> None:
            if drawn is not None:
                drawn.update(printable(f"{name}: {words}, {done} of {of}"))
            elif name not in announced and time.monotonic() - began > PATIENCE_S:
                announced.add(name)
                screen.say(f"{name}: {words}, {done} of {of} ...")

        yield at
