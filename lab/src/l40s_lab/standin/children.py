"""Child processes of the launcher: start, check, end. Each is one forked process that keeps nothing of its siblings."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence

from .log import raw


class Child:
    """One child. `exit_code` is None while it is alive, else as in multiprocessing: -9 for SIGKILL."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self.exit_code: int | None = None

    def alive(self) -> bool:
        """Check, and reap it if it is dead."""
        if self.exit_code is None:
            self._wait(os.WNOHANG)
        return self.exit_code is None

    def join(self) -> int | None:
        """Wait for its end; other children are not checked meanwhile."""
        if self.exit_code is None:
            self._wait(0)
        return self.exit_code

    def _wait(self, options: int) -> None:
        try:
            found, status = os.waitpid(self.pid, options)
        except ChildProcessError:  # another thread, or code interrupted by a signal, has just reaped it
            self.exit_code = -signal.SIGKILL if self.exit_code is None else self.exit_code
            return
        if found:
            self.exit_code = os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)


def fork(name: str, work: Callable[[], None], close: Iterable[int] = ()) -> Child:
    """Run work in a new child process, with default signal handlers and without the descriptors in close."""
    pid = os.fork()
    if pid:
        return Child(name, pid)
    status = 0
    try:
        for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in close:
            os.close(descriptor)
        work()
    except BaseException:  # always end here: the child must never run the launcher's code
        raw(traceback.format_exc())
        status = 1
    sys.stdout.flush()
    os._exit(status)


def kill_all(children: Sequence[Child], *, wait: bool = True) -> None:
    """SIGKILL all children, and wait until they are gone."""
    for child in children:
        child.kill()
    for child in children if wait else ():
        child.join()


def kill_self() -> None:
    """How the real engine ends after a failure. Does not return."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)
