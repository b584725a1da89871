"""One time by which an entire operation must be over, whatever the number of waits in it; work beside us; downloads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
STOPPED_S = 1.0
"""Who looks at a deadline so long after it stood still itself (Ctrl-Z, SIGSTOP, a machine without a free processor):
a wait ends within milliseconds of its time. What has been answered meanwhile was not read yet."""
AFTER_STOP_S = 5.0
"""So long the other side has after that, once."""


class DeadlinePassed(Exception):
    """The deadline came before the end of what was waited for."""


class Deadline:
    """A point on the monotonic clock; None waits forever. It moves once, where this process stood still beyond it."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds
        self._moved = False

    def left(self) -> float | None:
        """Seconds left, above 0; None without an end. Raises Passed when there are none."""
        if self._end is None:
            return None
        if (left := self._left_of(self._end)) <= 0:
            raise DeadlinePassed
        return left

    @property
    def is_over(self) -> bool:
        """It has passed."""
        return self._end is not None and self._left_of(self._end) <= 0

    def _left_of(self, end: float) -> float:
        now = time.monotonic()
        if now - end >= STOPPED_S and not self._moved:
            self._moved, self._end = True, now + AFTER_STOP_S
            return AFTER_STOP_S
        return end - now

    def later(self, seconds: float) -> Deadline:
        """The same, so much later."""
        moved = Deadline(self.seconds)
        moved._end = None if self._end is None else self._end + seconds
        return moved

    def sooner(self, other: Deadline) -> Deadline:
        """Whichever comes first."""
        if other._end is None:
            return self
        return other if self._end is None or other._end < self._end else self

    def wait(self, event: threading.Event) -> None:
        """Wait for an event. Raises Passed."""
        while not event.wait(self.left()):
            pass  # the deadline may have been moved

    @contextmanager
    def breaking(self, end: Callable[[], object]) -> Iterator[None]:
        """For calls that cannot be given a timeout: `end` is called at the deadline and must make them return."""
        if self.left() is None:
            yield
            return
        broken, done = threading.Event(), threading.Event()

        def watch() -> None:
            try:
                self.wait(done)
            except DeadlinePassed:
                broken.set()
                end()

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        except Exception:
            if broken.is_set():
                raise DeadlinePassed from None
            raise
        finally:
            done.set()
        if broken.is_set():
            raise DeadlinePassed

    def of(self, work: Callable[[], T]) -> T:
        """The result of work that nothing can break (a name look-up); at the deadline its thread is left to end."""
        promised = ahead(work)
        while not wait((promised,), self.left()).done:
            pass  # the deadline may have been moved
        return promised.result()


def ahead(work: Callable[[], T]) -> Future[T]:
    """Start work in parallel; asking for the result returns its value or raises its error.

    Nobody waits for it at the end of the process: it must be work that changes nothing.
    """
    promised: Future[T] = Future()
    promised.set_running_or_notify_cancel()  # whoever stops waiting (an event loop that ends) can't take it back

    def do() -> None:
        try:
            promised.set_result(work())
        except BaseException as failure:
            promised.set_exception(failure)

    beside(do)
    return promised


def beside(work: Callable[[], object]) -> threading.Thread | None:
    """Its thread, which nobody waits for at the end of the process; None where this machine gives no more threads, and
    it was done at once."""
    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        work()
        return None
    return thread


def downloaded(address: str, most: int, seconds: float) -> bytes:
    """Of an https address of ours, by the user's proxy, in this time however slowly it comes. Raises OSError."""

    import http.client
    import urllib.request  # which few commands need

    def work() -> bytes:
        with urllib.request.urlopen(address, timeout=seconds) as answer:  # noqa: S310 - our own address
            return bytes(answer.read(most))

    try:
        return Deadline(seconds).of(work)
    except (DeadlinePassed, http.client.HTTPException) as wrong:
        passed = isinstance(wrong, DeadlinePassed)
        raise OSError("the time limit was reached" if passed else type(wrong).__name__) from None
