"""The engine's log on disk: bounded, and cut into lines as it arrives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

LONGEST_LINE = 64 * 1024
DEFAULT_LIMIT = 64 * 1024 * 1024


@dataclass
class LogFile:
    """Appends bytes to a file; beyond `limit` bytes the file moves to `<path>.1`, which is replaced."""

    path: str
    limit: int = DEFAULT_LIMIT
    _file: int = -1
    _size: int = 0

    def write(self, data: bytes) -> None:
        """Append. A full disk loses log lines, never the engine."""
        try:
            self._append(data)
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, data: bytes) -> None:
        if self._file < 0:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._size = os.fstat(self._file).st_size
        if self._size and self._size + len(data) > self.limit:
            self.close()
            os.replace(self.path, f"{self.path}.1")
            self._append(data)
            return
        view = memoryview(data)
        while view:
            written = os.write(self._file, view)
            view = view[written:]
            self._size += written


@dataclass
class LineCutter:
    """Bytes into text lines. A progress bar's carriage return ends a line too; of a long line the beginning is kept."""

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[str]:
        """Complete lines so far, without their ends; blank ones are passed over."""
        *ended, begun = data.replace(b"\r", b"\n").split(b"\n")
        for piece in ended:
            self._keep(piece)
            line, self._rest = self._rest, bytearray()
            if line.strip():
                yield line.decode("utf-8", "replace").rstrip()
        self._keep(begun)

    def _keep(self, piece: bytes) -> None:
        self._rest += piece[: max(0, LONGEST_LINE - len(self._rest))]
