"""A sign of life on stderr for what takes longer than two seconds."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

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
