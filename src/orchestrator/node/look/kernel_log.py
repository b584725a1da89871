"""What the drivers of GPUs and RDMA cards wrote into the kernel's log since the last boot, and Xid errors counted."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.node.os_errors import errno_name

if TYPE_CHECKING:
    from orchestrator.protocol.gauges import XidCount

_MARKS = (
    "NVRM: Xid",
    "fallen off the bus",
    "health compromised",
    "firmware internal error",
    "mlx5_load_one failed",
    "mlx5_core: probe of",
)
_LONGEST_RECORD = 8192
_MOST_LINES = 50
_DEADLINE_S = 0.5


def driver_errors(root: str = "/") -> dict[str, Any]:
    """{'xid': the last lines with an Xid, or of a GPU or a card that is lost, oldest first}, or {'error': why the log
    can't be read}.
    """
    try:
        marked = [line for line in records(root) if any(mark in line for mark in _MARKS)]
    except OSError as error:
        return {"error": errno_name(error)}
    return {"xid": marked[-_MOST_LINES:]}


def records(root: str = "/") -> list[str]:
    """Every record's lines, oldest first. Raises OSError where the log can't be read."""
    descriptor = os.open(f"{root.rstrip('/')}/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return read_records(descriptor).decode("utf-8", "replace").split("\n")
    finally:
        os.close(descriptor)


def read_records(descriptor: int) -> bytes:
    """Every record not read yet: each read returns one, EAGAIN means that there are no more."""
    log = bytearray()
    end = time.monotonic() + _DEADLINE_S
    while time.monotonic() < end:
        try:
            record = os.read(descriptor, _LONGEST_RECORD)
        except BlockingIOError:
            break
        except BrokenPipeError:  # the kernel wrote over the one that was next
            continue
        if not record:
            break
        log += record
    return bytes(log)


_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): ([0-9]{1,4})\b")


@dataclass
class Xids:
    """Below one root. error: why the log can't be read, '' where it can."""

    root: str
    error: str = ""
    _descriptor: int = -1
    _counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    _rest: str = ""

    def read(self) -> tuple[XidCount, ...]:
        """All so far."""
        from orchestrator.protocol.gauges import XidCount  # an agent, which reads the lines alone, starts without it

        try:
            self._read()
        except OSError as error:
            self.error = errno_name(error)
        return tuple(
            XidCount(pci_bus_id=address, xid=xid, count=count) for (address, xid), count in sorted(self._counts.items())
        )

    def _read(self) -> None:
        path = f"{self.root.rstrip('/')}/dev/kmsg"
        if self._descriptor >= 0 and os.fstat(self._descriptor).st_ino != os.stat(path).st_ino:
            os.close(self._descriptor)  # another log: an emulated machine has booted
            self._descriptor, self._rest = -1, ""
            self._counts.clear()
        if self._descriptor < 0:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.error = ""
        lines = (self._rest + read_records(self._descriptor).decode("utf-8", "replace")).split("\n")
        self._rest = lines.pop()
        for line in lines:
            if xid := _XID.search(line):
                self._counts[xid[1].lower(), int(xid[2])] += 1
