"""A real pseudo-terminal around a command, and what its user sees at the end.

The bytes go through pyte, a terminal emulator: what a live display erased is also erased here.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import termios
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pyte
import pytest

COLUMNS, LINES = 140, 60


@dataclass(frozen=True)
class Shown:
    """A command's result. lines: of the screen, without trailing blanks and without empty lines at the bottom."""

    code: int
    lines: tuple[str, ...]
    raw: bytes

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass
class Terminal:
    """One pseudo-terminal; standard output and standard error of this process go there while `run` runs."""

    columns: int = COLUMNS
    rows: int = LINES
    raw: bytearray = field(default_factory=bytearray)

    def run(self, command: Callable[[], int], patch: pytest.MonkeyPatch, term: str = "xterm-256color") -> Shown:
        """Run a verb as if it had been typed on this terminal."""
        controller, line = os.openpty()
        fcntl.ioctl(line, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, self.columns, 0, 0))
        reader = threading.Thread(target=self._read, args=(controller,), daemon=True)
        reader.start()
        with patch.context() as here:
            here.setenv("TERM", term)
            here.setenv("COLUMNS", str(self.columns))
            here.setenv("LINES", str(self.rows))
            for name in ("NO_COLOR", "FORCE_COLOR"):
                here.delenv(name, raising=False)
            with (
                open(line, "w", encoding="utf-8", buffering=1, closefd=False) as out,
                os.fdopen(os.dup(line), "w", encoding="utf-8", buffering=1) as err,
            ):
                here.setattr(sys, "stdout", out)
                here.setattr(sys, "stderr", err)
                code = command()
        os.close(line)
        reader.join(10)
        os.close(controller)
        return Shown(code, rendered(bytes(self.raw), self.columns, self.rows), bytes(self.raw))

    def _read(self, controller: int) -> None:
        while True:
            try:
                data = os.read(controller, 65536)
            except OSError:  # EIO: the last writer has closed
                return
            if not data:
                return
            self.raw += data


def rendered(raw: bytes, columns: int = COLUMNS, rows: int = LINES) -> tuple[str, ...]:
    """The text on the screen, with the lines that scrolled off the top."""
    screen = pyte.HistoryScreen(columns, rows, history=5000, ratio=0.5)
    pyte.ByteStream(screen).feed(raw)
    above = ["".join(line[place].data for place in range(columns)) for line in screen.history.top]
    lines = [line.rstrip() for line in (*above, *screen.display)]
    while lines and not lines[-1]:
        lines.pop()
    return tuple(lines)
