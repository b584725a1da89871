"""Treats a lost terminal and SIGTERM like Ctrl-C: a command leaves its work in a state that can continue."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from typing import IO, Any

from orchestrator.protocol.errors import Detached

SIGNALS = (signal.SIGHUP, signal.SIGTERM)


@contextlib.contextmanager
def detaching() -> Iterator[None]:
    """Within, SIGHUP and SIGTERM raise Detached in the main thread, once: what follows is tidying up, which nothing
    interrupts but Ctrl-C. A signal that the caller has ignored (nohup) stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    listened = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in listened:
        signal.signal(number, _detach)
    try:
        yield
    finally:
        for number in listened:
            signal.signal(number, before[number])


def _detach(number: int, _: Any) -> None:
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    if number == signal.SIGHUP:
        for stream in (sys.stdout, sys.stderr):
            if _is_device(stream):
                forget(stream)
    raise Detached


def _is_device(stream: IO[str]) -> bool:
    """A terminal, also one that has hung up: isatty denies those."""
    try:
        return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def forget(stream: IO[str]) -> None:
    """Whatever is still written to it goes nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
