"""How a command ends: the product's contract with scripts."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """One meaning a number, whatever the command."""

    DONE = 0
    DEFECT = 1
    INPUT = 2
    FINDINGS = 3
    """`doctor`, `up`: findings; a node refused or failed; `status`: a gang is degraded."""
    UNREACHABLE = 4
    GANG_FAILED = 5
    LOCK_HELD = 6
    DIFFERS = 7
    INTERRUPTED = 130
    """By Ctrl-C, as a shell tells it (128 and the signal's number)."""
