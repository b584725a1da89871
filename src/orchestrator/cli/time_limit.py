"""`--timeout` of verbs that move or compare data: they give up after so long, as by Ctrl-C, and can be resumed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from orchestrator.model.errors import Unreachable


class _Over(BaseException):
    """Not a DeployError, so that no caller mistakes it for a node's failure."""


@contextmanager
def time_limit(seconds: float, *, fix: str) -> Iterator[None]:
    """Raises Unreachable in the block once it took longer; 0: never. Only in the main thread, as signals are."""

    def over(_: int, __: FrameType | None) -> None:
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
