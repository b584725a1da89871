"""Whether a node under maintenance is back. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Where(str, Enum):
    """AWAY: does not answer. STILL: answers, and has not been away. BACK: there is nothing more to wait for."""

    AWAY = "away"
    STILL = "still"
    BACK = "back"


@dataclass(frozen=True, slots=True)
class Boot:
    """Names one boot of a machine: the kernel's id of it, and when its process 1 began, which tells a container's."""

    kernel: str
    first: str


def boot_of(text: str) -> Boot | None:
    """Out of /proc/sys/kernel/random/boot_id and, where it may be read, /proc/1/stat, one after the other
    (random(4), proc(5), field 22); None where that is neither."""
    kernel, _, stat = text.partition("\n")
    fields = stat.rpartition(")")[2].split()
    return Boot(kernel.strip(), fields[19] if len(fields) > 19 else "") if kernel.strip() else None


def place(before: Boot | None, now: Boot | None, *, reboots: bool) -> Where:
    """before: when the gang had been stopped; now: None where the node does not answer; reboots: a new boot is
    what is waited for, an answer is not enough."""
    if now is None:
        return Where.AWAY
    return Where.STILL if reboots and now == before else Where.BACK
