"""Whether a node under maintenance is back. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ReturnState(str, Enum):
    """AWAY: does not answer. STILL: answers, but has not been away. BACK: there is nothing more to wait for."""

    AWAY = "away"
    STILL = "still"
    BACK = "back"


@dataclass(frozen=True, slots=True)
class Boot:
    """Identifies one boot of a machine: the kernel's boot id, and the start time of process 1, which identifies a
    container's."""

    kernel: str
    first: str


def boot_of(text: str) -> Boot | None:
    """Parse the contents of /proc/sys/kernel/random/boot_id and, if readable, /proc/1/stat, one after the other
    (random(4), proc(5), field 22); None for anything else."""
    kernel, _, stat = text.partition("\n")
    fields = stat.rpartition(")")[2].split()
    return Boot(kernel.strip(), fields[19] if len(fields) > 19 else "") if kernel.strip() else None


def place(before: Boot | None, now: Boot | None, *, reboots: bool) -> ReturnState:
    """before: the boot when the gang had been stopped; now: None if the node does not answer; reboots: wait for a new
    boot, an answer is not enough."""
    if now is None:
        return ReturnState.AWAY
    return ReturnState.STILL if reboots and now == before else ReturnState.BACK
