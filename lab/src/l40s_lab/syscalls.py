"""System calls for labs that Python's os module lacks, or has only since 3.12."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

CAP_SYS_MODULE = 16
CAP_SYS_TIME = 25

_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_SYS_PIVOT_ROOT = 155 if os.uname().machine == "x86_64" else 41
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Give this process new namespaces (unshare(2)); raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def setns(path: str, kind: int) -> None:
    """Join the namespace of a /proc/PID/ns file; kind 0 accepts any."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        join(handle, kind)
    finally:
        os.close(handle)


def join(handle: int, kind: int = 0) -> None:
    """Join the namespace of an open file; this process must be single-threaded, a PID namespace is its next child's."""
    _check(_libc.setns(handle, kind), "setns")


def mount(source: str, target: str | Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2); raises OSError that names the target."""
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode() or None, ctypes.c_ulong(flags), options.encode() or None
    )
    _check(result, "mount", f"{kind or source} on {target}")


def bind(source: str | Path, target: str | Path, *, recursive: bool = False) -> None:
    """Show a file or directory at a second place."""
    mount(str(source), target, flags=MS_BIND | (MS_REC if recursive else 0))


def make_mounts_private() -> None:
    """Make later mounts visible only in this mount namespace."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)


def pivot_root(new_root: str | Path, old: str) -> None:
    """Make new_root this namespace's /, then unmount the former root; `old` is a directory inside new_root."""
    os.chdir(new_root)
    _check(_libc.syscall(_SYS_PIVOT_ROOT, b".", os.fsencode(old)), "pivot_root", str(new_root))
    os.chdir("/")
    detach(f"/{old}")


def detach(place: str | Path) -> None:
    """Unmount lazily: detach now, and release the mount once it is unused."""
    _check(_libc.umount2(os.fsencode(place), _MNT_DETACH), "umount", str(place))


def cover_link(link: str, over: str) -> None:
    """Mount one symbolic link over another without following either.

    mount(8) follows links; /proc/net is one, and it would lead each process to its own.
    """
    attach(_open_tree(link, _AT_SYMLINK_NOFOLLOW), over)


def clone_tree(path: str | Path) -> int:
    """A copy of the mount at a path and those below it, as a descriptor that is not attached anywhere."""
    return _open_tree(path, _AT_RECURSIVE)


def _open_tree(path: str | Path, flags: int) -> int:
    flags |= _OPEN_TREE_CLONE | os.O_CLOEXEC
    return _check(_libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags), "open_tree", str(path))


def attach(tree: int, target: str | Path) -> None:
    """Mount such a copy over a path of this mount namespace; the descriptor can't be used again."""
    try:
        moved = _libc.syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
        _check(moved, "move_mount", str(target))
    finally:
        os.close(tree)


def die_with_parent(signal_number: int) -> None:
    """Make the kernel send this signal when the parent ends; 0 cancels it."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")


def drop_capability(number: int) -> None:
    """Prevent this process's children from ever having it; not an error on a machine that lacks it already."""
    if _libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1:
        _check(_libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (PR_SET_CHILD_SUBREAPER)."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def _check(result: int, call: str, what: str = "") -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}", what or None)
    return result
