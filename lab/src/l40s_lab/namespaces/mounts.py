"""Mounts made in one mount namespace and shown in another, and processes that work in other namespaces."""

from __future__ import annotations

import ctypes
import os
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def clone_tree(path: str | Path) -> int:
    """A copy of the mount at a path and those below it, as a descriptor that is not attached anywhere."""
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    return _checked(_libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags), "open_tree", path)


def attach(tree: int, target: str | Path) -> None:
    """Mount such a copy over a path of this mount namespace; the descriptor can't be used again."""
    try:
        moved = _libc.syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
        _checked(moved, "move_mount", target)
    finally:
        os.close(tree)


def detach(path: str | Path) -> None:
    """Detach the uppermost mount at a path and those below it; processes that use it keep it until they finish."""
    _checked(_libc.umount2(os.fsencode(path), _MNT_DETACH), "umount", path)


def mounted_below(folder: str) -> list[str]:
    """Mount points below a directory of a node that this process has joined, in the order of mounting.

    Reads the list of PID 1: a process that has joined only the mounts does not appear in that /proc.
    """
    with open("/proc/1/mountinfo") as file:  # noqa: PTH123
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
            _checked(_libc.setns(handle, 0), "setns", "")

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


def _checked(result: int, call: str, what: object) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}", str(what) or None)
    return result
