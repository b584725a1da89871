"""The NVIDIA driver's errors (Xid) since the last boot, counted: a process that stays reads each record once."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field

from orchestrator.node.look.kernel_log import read_records
from orchestrator.protocol.gauges import XidCount

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): ([0-9]{1,4})\b")


@dataclass
class Xids:
    """Below one root. error: why the log can't be read, '' where it can."""

    root: str
    error: str = ""
    _descriptor: int = -1
    _counts: dict[tuple[str, int], int] = field(default_factory=dict)
    _rest: str = ""

    def read(self) -> tuple[XidCount, ...]:
        """All so far."""
        try:
            self._read()
        except OSError as error:
            self.error = errno.errorcode.get(error.errno or 0, "EIO")
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
            found = _XID.search(line)
            if found:
                key = found[1].lower(), int(found[2])
                self._counts[key] = self._counts.get(key, 0) + 1
