"""Processes that work in other namespaces, and what is mounted there."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable
from typing import TypeVar

from l40s_lab import syscalls

T = TypeVar("T")


def mounted_below(folder: str) -> list[str]:
    """Mount points below a directory of a node that this process has joined, in the order of mounting.

    Reads the list of PID 1: a process that has joined only the mounts does not appear in that /proc.
    """
    with open("/proc/1/mountinfo", encoding="utf-8") as file:  # noqa: PTH123
        points = [line.split()[4] for line in file]
    return list(dict.fromkeys(point for point in points if point.startswith(f"{folder}/")))


class Spaces:
    """The namespaces of a process, held open by descriptors: their /proc paths are invalid once we have changed
    ours."""

    def __init__(self, pid: int, kinds: Iterable[str]) -> None:
        """kinds: names in /proc/PID/ns; raises OSError if there is no such process."""
        self._handles = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]

    def join(self) -> None:
        """Move this process, which must be single-threaded, into them; for a PID namespace, its next child."""
        for handle in self._handles:
            syscalls.join(handle)

    def __enter__(self) -> Spaces:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the descriptors."""
        for handle in self._handles:
            os.close(handle)


def in_child(work: Callable[[], T]) -> T:
    """Run a function in a forked process, whose namespaces it may change; its exception is raised here."""
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os._exit(_tell(work, theirs))
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    if not said:
        raise OSError("a process of the lab ended without a message")
    failed, value = pickle.loads(said)  # noqa: S301 - from our own child
    if failed:
        raise value
    result: T = value
    return result


def _tell(work: Callable[[], object], out: int) -> int:
    """A forked child must never return into its parent's code."""
    try:
        said = pickle.dumps((False, work()))
    except BaseException as failure:
        said = pickle.dumps((True, failure if isinstance(failure, OSError) else OSError(repr(failure))))
    try:
        with os.fdopen(out, "wb") as file:
            file.write(said)
    except OSError:
        return 1
    return 0
