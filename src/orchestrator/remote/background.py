"""Work that is begun before its result is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def ahead(work: Callable[[], T]) -> Future[T]:
    """Start work in parallel; asking for the result returns its value or raises its error.

    Nobody waits for it at the end of the process: it must be work that changes nothing.
    """
    promised: Future[T] = Future()

    def do() -> None:
        try:
            promised.set_result(work())
        except BaseException as failure:
            promised.set_exception(failure)

    threading.Thread(target=do, name="ahead", daemon=True).start()
    return promised
