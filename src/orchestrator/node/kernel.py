"""prctl(2), which the standard library does not have."""

from __future__ import annotations

import ctypes

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Orphans below us become our children instead of init's, so that none escapes (PR_SET_CHILD_SUBREAPER)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> None:
    """Get this signal when the thread that forked us ends; a change of user clears it (PR_SET_PDEATHSIG)."""
    _prctl(_PR_SET_PDEATHSIG, number)


def name_process(name: str) -> None:
    """The name that `ps -o comm` shows, 15 bytes at most."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    _prctl(_PR_SET_NAME, ctypes.addressof(buffer))


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
