"""What the NVIDIA driver wrote into the kernel's log since the last boot (Documentation/ABI/testing/dev-kmsg)."""

from __future__ import annotations

import errno
import os
import time
from typing import Any

_MARK = "NVRM: Xid"
_LONGEST_RECORD = 8192
_MOST_LINES = 50
_DEADLINE_S = 0.5


def driver_errors(root: str = "/") -> dict[str, Any]:
    """{'xid': the last lines with an Xid, oldest first}, or {'error': why the log can't be read}."""
    try:
        found = [line for line in records(root) if _MARK in line]
    except OSError as error:
        return {"error": errno.errorcode.get(error.errno or 0, "EIO")}
    return {"xid": found[-_MOST_LINES:]}


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
