"""Files that several threads work through, side by side; what they have done is counted for all of them together.

Threads, since nearly all of the time is spent inside the kernel or a digest, and a killed process leaves no worker
behind that goes on writing while the next run resumes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeVar

from orchestrator.node.requests import TICK_S, reader_is_gone, tell
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.jobs import Progress
from orchestrator.protocol.message import Message

T = TypeVar("T")
R = TypeVar("R")
AT_ONCE = min(8, os.cpu_count() or 1)
Report = Callable[[Progress], None]
"""Told now and then how far it is, from the calling thread; what it raises ends the work."""


class FileWork:
    """now: how far it is."""

    def __init__(self, start: Progress) -> None:
        self.now = start
        self._over = False
        self._lock = threading.Lock()

    def add(self, done: int, **counts: int) -> None:
        """So many bytes more, and so many of each of these. Raises DeployError where it has ended: threads end then."""
        if self._over:
            raise DeployError(
                "another file failed, or nobody waits for it any longer", where="request", fix="", kind="stopped"
            )
        with self._lock:
            grown = {name: getattr(self.now, name) + count for name, count in counts.items()}
            self.now = replace(self.now, done=self.now.done + done, **grown)

    def on(self, items: Sequence[T], work: Callable[[T], R], report: Report, *, most: int = AT_ONCE) -> list[R]:
        """What came of each, begun in their order. most: at the same time

        The first failure, or an interrupt, stops the others at their next step. Of several failures the first item's is
        raised, whichever thread was faster.
        """
        with ThreadPoolExecutor(max_workers=most) as pool:
            begun = [pool.submit(work, item) for item in items]
            pending = set(begun)
            try:
                while pending:
                    _, pending = wait(pending, timeout=TICK_S, return_when=FIRST_EXCEPTION)
                    for future in begun:
                        if future.done():
                            future.result()
                    report(self.now)
            except BaseException:
                self._over = True
                pool.shutdown(cancel_futures=True)
                raise
        return [future.result() for future in begun]


def say(line: Message) -> None:
    """One line of progress. Raises BrokenPipeError if the reader is gone."""
    if reader_is_gone(0):
        raise BrokenPipeError
    tell(line.as_json())
