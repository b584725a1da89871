"""What a user sees: results on stdout, talk on stderr, untrusted text always escaped."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cached_property
from textwrap import wrap
from typing import IO, TYPE_CHECKING, Any

from orchestrator.cli.detaching import forget
from orchestrator.protocol.errors import DeployError, Detached, OutputLost

if TYPE_CHECKING:  # rich costs 60 ms to import: only verbs that draw pay for it
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

_UNLIMITED = 4096
_LEAST = 20
"""Columns; in less, nothing can be read anyway."""
_LABEL = re.compile(r" *\S+ {2,}(?=\S)")
"""A word that stands in a column of its own."""
_KEPT = "\x1f"
"""In place of a space at which no line ends; printable() leaves none of these in a text."""


@dataclass
class Screen:
    """stdout for the answer, stderr for everything said along the way; with --json nothing but JSON, with --quiet
    nothing but the answer and errors."""

    as_json: bool = False
    quiet: bool = False

    @cached_property
    def out(self) -> Console:
        """Console for the answer; markup is off unless a renderable brings its own style."""
        return _console(sys.stdout.isatty(), stderr=False)

    @cached_property
    def err(self) -> Console:
        """Console for progress and remarks."""
        return _console(sys.stderr.isatty(), stderr=True)

    @property
    def draws(self) -> bool:
        """A display that is drawn again and again has a place: a terminal whose cursor can be moved, and no --json."""
        return sys.stderr.isatty() and self.moves and not self.as_json and not self.quiet

    @property
    def moves(self) -> bool:
        """The terminal's cursor can be moved."""
        return os.environ.get("TERM", "dumb") not in ("dumb", "unknown")

    def say(self, text: str) -> None:
        """One remark on stderr, under --json too; nothing under --quiet."""
        if not self.quiet:
            self._write(_in_width(printable(text)))

    def _write(self, text: str) -> None:
        """Lines. Detaches, as Ctrl-C does, if nobody reads stderr any more (`2>&1 | head`, a closed terminal). A file
        that takes no more is no reason to: the work goes on, silently."""
        try:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
        except OSError as failure:
            forget(sys.stderr)
            if failure.errno in (errno.EPIPE, errno.EIO):
                raise Detached from None

    def show(self, *parts: str | RenderableType) -> None:
        """Parts of the answer, one below the other: text is escaped, what is drawn is as it is."""
        for part in parts:
            self.out.print(printable(part) if isinstance(part, str) else part)

    def verbatim(self, text: str) -> None:
        """Lines of the answer as they are, with tabs kept and never wrapped."""
        sys.stdout.write(printable(text) + "\n")

    def json(self, document: Any) -> None:
        """The one JSON document of this command."""
        text = _NOT_ASCII.sub(_as_json, json.dumps(document, indent=2, ensure_ascii=False))
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:  # a file's name that is no UTF-8
            text = json.dumps(document, indent=2)
        sys.stdout.write(text + "\n")

    def error(self, failure: DeployError) -> None:
        """Name the place, what was found and wanted, and the fix; with --json as one line, the last one on stderr."""
        if self.as_json:
            self._write(json.dumps({"error": failure.as_json()}))
            return
        fix = f"\n  fix: {failure.fix}" if failure.fix else ""
        self._write(_in_width(printable(f"error: {failure.where}: {failure.what}{fix}")))


class _WatchedOutput:
    """stdout, which remembers why it could not be written."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._remembered():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._remembered():
            self._stream.flush()

    @contextmanager
    def _remembered(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            forget(self._stream)
            if not isinstance(failure, BrokenPipeError):
                self.lost = failure
            raise


@contextmanager
def answering() -> Iterator[None]:
    """Within, all of stdout is written, or the end is OutputLost, --help's too; another failure remains what it is.
    Raises BrokenPipeError where nobody reads it."""
    answer = _WatchedOutput(sys.stdout or _closed(os.O_RDONLY))
    sys.stderr = sys.stderr or _closed(os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale that lacks a sign of ours costs this sign, not the answer
    with redirect_stdout(answer):
        try:
            yield
            answer.flush()
        except (SystemExit, OSError) as ended:
            if isinstance(ended, SystemExit):
                with suppress(OSError):
                    answer.flush()
            if answer.lost is None:
                raise
        except BaseException:
            with suppress(OSError):
                answer.flush()
            raise
        if answer.lost is not None:
            raise OutputLost(
                f"could not be written: {answer.lost.strerror}; the answer is not complete", where="output", fix=""
            ) from None


def _closed(way: int) -> IO[str]:
    """In place of a stream that the caller has closed (`>&-`). Opened for reading, it refuses what is written."""
    return os.fdopen(os.open(os.devnull, way), "w")


def _console(is_terminal: bool, *, stderr: bool) -> Console:
    from rich.console import Console
    from rich.text import Text

    class Quiet(Console):
        """A closed stdout is not an error; rich itself would exit with status 1. Words stay whole, those of tables and
        a path longer than a line too, and lines that are too long keep their indent."""

        def print(self, *things: Any, **options: Any) -> None:
            """As rich does."""
            wraps = not options.get("soft_wrap", self.soft_wrap)
            whole = [part for thing in things for part in _whole(thing, self.width, wraps=wraps)]
            if wraps and all(isinstance(part, Text) for part in whole):  # they are in width already
                options = {"no_wrap": True, "overflow": "ignore", "crop": False, **options}
            super().print(*whole, **options)

        def on_broken_pipe(self) -> None:
            if stderr:
                forget(sys.stderr)
                raise Detached
            raise BrokenPipeError

    width = None if is_terminal else _UNLIMITED  # what reads a pipe has no width
    return Quiet(stderr=stderr, markup=False, highlight=False, soft_wrap=not is_terminal, width=width)


def _whole(thing: RenderableType, width: int, *, wraps: bool) -> list[RenderableType]:
    """What is printed in so many columns."""
    from rich.table import Table
    from rich.text import Text

    if isinstance(thing, Table):
        return fitted(thing, width)
    text = Text(thing) if isinstance(thing, str) else thing
    return [hanging(text, width)] if wraps and isinstance(text, Text) else [thing]


def hanging(text: Text, width: int) -> Text:
    """A text in so many columns, as `broken` divides its lines, with its styles."""
    from rich.text import Text

    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        line.expand_tabs(8)
        end = 0
        for part in broken(line.plain, width).split("\n"):
            words = part.strip()
            start = line.plain.index(words, end)
            indent = "".ljust(len(part) - len(part.lstrip()))
            lines.append(Text(indent, style=text.style).append_text(line[start : start + len(words)]))
            end = start + len(words)
    joined = Text("\n", end=text.end).join(lines)
    joined.justify, joined.style = text.justify, text.style
    return joined


def _longest(cells: Sequence[str], parts_of: Callable[[str], Sequence[str]]) -> int:
    """The width of a column's longest word, or of its longest line."""
    return max(len(part) for cell in cells for part in parts_of(cell) or [""])


def fitted(table: Table, width: int) -> list[RenderableType]:
    """A table in so many columns without a broken word; where that can't be, its rows as lines that wrap."""
    texts = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    least = [_longest(cells, str.split) for cells in texts]
    widths = [_longest(cells, str.splitlines) for cells in texts]
    room = width - 2 * (len(widths) - 1)
    if sum(least) > room:
        return [hanging(_as_lines(table), width)]
    if sum(widths) > room:
        while sum(widths) > room:
            widest = max(range(len(widths)), key=lambda place: widths[place] if widths[place] > least[place] else 0)
            widths[widest] -= 1
        for column, columns in zip(table.columns, widths, strict=True):
            column.width = columns
    return [table]


def _as_lines(table: Table) -> Text:
    from rich.text import Text

    rows = zip(*([column.header, *column.cells] for column in table.columns), strict=True)
    texts = (Text("  ").join(Text.assemble(cell) for cell in cells if str(cell)) for cells in rows)
    return Text("\n").join(text for text in texts if text.plain.strip())  # print() puts blanks between several


def _in_width(text: str) -> str:
    """Lines broken between words where stderr is a terminal, and not within a command in backticks."""
    if not sys.stderr.isatty():
        return text
    with suppress(OSError, ValueError):
        width = os.get_terminal_size(sys.stderr.fileno()).columns
        return "\n".join(broken(line, width) for line in text.split("\n"))
    return text


def broken(line: str, width: int) -> str:
    """A line as lines of whole words, below the text behind its label; a command in backticks that fits one is not
    divided."""
    if len(line) <= width or width < _LEAST:
        return line
    whole = re.sub(
        r"`[^`]+`", lambda command: command[0].replace(" ", _KEPT) if len(command[0]) < width - 4 else command[0], line
    )
    label = _LABEL.match(line)
    indented = label.end() if label and label.end() < width // 2 else len(line) - len(line.lstrip()) + 2
    indent = "".ljust(indented)
    lines = wrap(whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(_KEPT, " ")


_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
"""Select graphic rendition (ECMA-48, 8.3.117)."""


def uncoloured(text: str) -> str:
    """A line of a log without the colours that its program gave it."""
    return _COLOUR.sub("", text)


def printable(text: str) -> str:
    """Text from outside with control characters made visible, so that it cannot drive a terminal."""
    return "".join(
        char if char in "\n\t" or char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


_NOT_ASCII = re.compile(r"[^\n -~]")


def _as_json(match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]
