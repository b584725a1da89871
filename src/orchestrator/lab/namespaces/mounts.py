"""Mounts made in one mount namespace and shown in another, and processes that work in namespaces not their own."""

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
    """A copy of what is mounted at a path, with what is mounted below it, as a descriptor that is nowhere attached."""
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    return _checked(_libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags), "open_tree", path)


def attach(tree: int, target: str | Path) -> None:
    """Mount such a copy over a path of this mount namespace; the descriptor is used up."""
    try:
        moved = _libc.syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
        _checked(moved, "move_mount", target)
    finally:
        os.close(tree)


def detach(path: str | Path) -> None:
    """Detach the uppermost mount at a path and those below it; processes that use it keep it until they are done."""
    _checked(_libc.umount2(os.fsencode(path), _MNT_DETACH), "umount", path)


def mounted_below(folder: str) -> list[str]:
    """Where something is mounted below a directory of a node that this process has joined, in the order of mounting.

    Its PID 1 is asked, since who joined the mounts only is nobody in that /proc.
    """
    with open("/proc/1/mountinfo") as file:  # noqa: PTH123
        points = [line.split()[4] for line in file]
    return list(dict.fromkeys(point for point in points if point.startswith(f"{folder}/")))


class Spaces:
    """The namespaces of a process, kept by descriptors: their names in /proc mean nothing once we moved."""

    def __init__(self, pid: int, kinds: Iterable[str]) -> None:
        """kinds: names in /proc/PID/ns; raises OSError where there is no such process."""
        self._handles = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]

    def join(self) -> None:
        """Make this process, which must have a single thread, one of them; of a PID namespace its next child."""
        for handle in self._handles:
            _checked(_libc.setns(handle, 0), "setns", "")

    def close(self) -> None:
        """Let go."""
        for handle in self._handles:
            os.close(handle)


def in_child(work: Callable[[], T]) -> T:
    """Run something in a forked process, whose namespaces it may change; what it raises is raised here."""
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
    failed, value = pickle.loads(said)  # noqa: S301 - our own child's
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
