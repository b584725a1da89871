"""What the kernel logged of a rank's GPU, or of its process, about when it died. Pure.

Records are those of /dev/kmsg: `priority,number,microseconds,flags;text`, on the monotonic clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

NEAR_S = 30.0
"""The driver reports a lost GPU when it sees it; the rank may end only after NCCL's watchdog or its own next call."""
_RECORD = re.compile(r"^\d{1,5},\d{1,12},(\d{1,18}),[^;]{0,200};(.{0,1000})")
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})[^)]{0,16}\): (\d{1,4})\b")
_OUT_OF_MEMORY = re.compile(r"[Oo]ut of memory: Killed process (\d{1,10})\b")
_PLACE = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})")
_RESET = "reset the GPU (`nvidia-smi --gpu-reset`) or reboot the node; if it comes again, have the card replaced"
_XIDS = {
    48: ("has an uncorrectable memory error", _RESET),
    62: ("stopped in its own firmware", _RESET),
    64: ("can't remap a broken row of its memory", _RESET),
    74: ("has an NVLink error", _RESET),
    79: (
        "fell off the bus",
        "power-cycle the node; if it comes again, reseat the card and check its power",
    ),
    95: ("has an uncontained memory error", _RESET),
    119: ("does not answer its driver", "reboot the node; if it comes again, update the driver"),
    120: ("has an error in its system processor", "reboot the node; if it comes again, update the driver"),
}
"""NVIDIA's catalogue of Xid errors: those of broken hardware. 13, 31, 43 and 45 may follow from a process's own end."""


@dataclass(frozen=True)
class KernelWord:
    """signature: XID-NUMBER or OUT-OF-MEMORY; line: as the kernel logged it."""

    signature: str
    text: str
    fix: str
    line: str


def of_rank(records: Sequence[str], now_s: float, *, pid: int, gpu: int, place: str) -> KernelWord | None:
    """The kernel's reason for a rank's death, or None. now_s: monotonic; place: the GPU's PCI address."""
    for record in reversed(records):
        match = _RECORD.match(record)
        if match is None or now_s - int(match[1]) / 1e6 > NEAR_S:
            continue
        word = _xid(match[2], gpu, place) or _killed(match[2], pid)
        if word is not None:
            return word
    return None


def _xid(line: str, gpu: int, place: str) -> KernelWord | None:
    match, ours = _XID.search(line), _PLACE.match(place)
    if match is None or ours is None or _address(match) != _address(ours):
        return None
    number = int(match[4])
    if number not in _XIDS:
        return None
    what, fix = _XIDS[number]
    return KernelWord(f"XID-{number}", f"GPU {gpu} {what} (Xid {number})", fix, line)


def _killed(line: str, pid: int) -> KernelWord | None:
    match = _OUT_OF_MEMORY.search(line)
    if match is None or int(match[1]) != pid:
        return None
    fix = "check what else uses main memory there (`journalctl -k | grep -i oom`), and end it"
    return KernelWord("OUT-OF-MEMORY", "the kernel's OOM killer ended it, main memory ran out", fix, line)


def _address(match: re.Match[str]) -> tuple[int, int, int]:
    return int(match[1], 16), int(match[2], 16), int(match[3], 16)
