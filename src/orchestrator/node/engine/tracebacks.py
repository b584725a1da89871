"""Python tracebacks in a log: whose they are, and what was raised. Pure.

A rank's logger writes its prefix only before the first line; the lines that follow belong to the same rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BEGIN = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_FRAME = re.compile(r'^\s{1,16}File "([^"]{1,512})", line (\d{1,7})')
_RAISED = re.compile(r"^[A-Za-z_][\w.]{0,200}(?:: |:?$)")
_THROWN = re.compile(r"^ {1,4}what\(\): {1,4}(?=\S)")
"""Of an exception of C++ that nobody catches (std::terminate of GCC's library)."""
_RECORD = re.compile(r"^\[")
"""A logger's line begins with its time in brackets."""


@dataclass(frozen=True)
class RankException:
    """An exception that ended a traceback. text: `Class: words`; file: `path:line` of its innermost frame, or ''."""

    tp_rank: int | None
    text: str
    file: str
    at: float

    @property
    def words(self) -> str:
        """The exception, and where it was raised."""
        return f"{self.text} ({self.file})" if self.file else self.text


@dataclass
class Tracebacks:
    """Feed it the lines of a log in order."""

    raised: RankException | None = None
    """The newest exception."""
    _open: bool = False
    _chained: bool = False
    _owner: int | None = None
    _file: str = ""
    _speaker: str = ""

    def feed(self, line: str, tp_rank: int | None, now: float, speaker: str = "") -> int | None:
        """Take a line; tp_rank: from its own prefix; speaker: who marks each of its lines, which are not mixed with
        those of others. Returns the rank that the line belongs to."""
        if speaker != self._speaker and _BEGIN not in line:
            return tp_rank
        self._speaker = speaker
        if _BEGIN in line:
            if tp_rank is not None or not (self._open or self._chained):
                self._owner = tp_rank
            self._open, self._chained, self._file = True, False, ""
            return self._owner
        if line.startswith(_CHAINED):
            self._chained = True
            return self._owner
        self._chained = False
        if thrown := _THROWN.match(line):
            self.raised = RankException(tp_rank, line[thrown.end() :], "", now)
            return tp_rank
        if not self._open or _RECORD.match(line):
            self._open = False
            return tp_rank
        if line[:1].isspace():
            frame = _FRAME.match(line)
            self._file = f"{frame[1]}:{frame[2]}" if frame else self._file
        elif _RAISED.match(line):
            self._open = False
            self.raised = RankException(self._owner, line, self._file, now)
        return self._owner
