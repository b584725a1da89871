"""The engine's log as bytes: secrets taken out, kept on disk within a bound, and cut into lines."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from orchestrator.node import viewers
from orchestrator.node.bounded_log import begin_anew, predecessor

CHUNK = 1 << 20
LONGEST_LINE = 64 * 1024
DEFAULT_LIMIT = 64 * 1024 * 1024
_STYLE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
"""A control sequence (ECMA-48, 5.4): the router colours its log even where no terminal reads it."""


@dataclass
class LogFile:
    """Appends bytes to a log that nobody else writes. Beyond `limit` bytes it begins anew."""

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
            os.fchmod(self._file, viewers.log_mode(self.path))
            self._size = os.fstat(self._file).st_size
        if self._size and self._size + len(data) > self.limit:
            self.close()
            begin_anew(self.path)
            self._append(data)
            return
        view = memoryview(data)
        while view:
            written = os.write(self._file, view)
            view = view[written:]
            self._size += written


@dataclass
class LineCutter:
    """Bytes into text lines, without colours. A progress bar's carriage return ends a line too. Of a long line only
    the beginning is kept."""

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[str]:
        """Complete lines so far, without line ends; blank lines are skipped."""
        *ended, begun = data.replace(b"\r", b"\n").split(b"\n")
        for piece in ended:
            self._keep(piece)
            line, self._rest = _STYLE.sub(b"", self._rest), bytearray()
            if line.strip():
                yield line.decode("utf-8", "replace").rstrip()
        self._keep(begun)

    def _keep(self, piece: bytes) -> None:
        self._rest += piece[: max(0, LONGEST_LINE - len(self._rest))]


@contextlib.contextmanager
def log_since_now(path: str) -> Iterator[Callable[[], Iterator[str]]]:
    """A log's lines from now on, including rotated parts, oldest first. The current file is kept open, so that no later
    file can reuse its inode and be mistaken for it. If the log was rotated three times meanwhile, the parts in between
    are lost."""
    with contextlib.ExitStack() as opened:
        begun: BinaryIO | None = None
        with contextlib.suppress(FileNotFoundError):
            begun = opened.enter_context(open(path, "rb"))
            begun.seek(0, os.SEEK_END)

        def is_at(name: str) -> bool:
            with contextlib.suppress(FileNotFoundError):
                return begun is not None and os.path.samestat(os.stat(name), os.fstat(begun.fileno()))
            return False

        def lines() -> Iterator[str]:
            if begun is not None:
                yield from _lines_of(begun)
                if is_at(path):
                    return
                if not is_at(predecessor(path)):
                    yield from lines_at(predecessor(path))
            yield from lines_at(path)

        yield lines


def lines_at(path: str) -> Iterator[str]:
    """Every line of a log file; none if there is no file."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        yield from _lines_of(file)


def _lines_of(file: BinaryIO) -> Iterator[str]:
    cutter = LineCutter()
    while data := file.read(CHUNK):
        yield from cutter.feed(data)
    yield from cutter.feed(b"\n")


MARK = b"[redacted]"
SHORTEST = 6
"""A shorter secret would remove ordinary words from the log, and protects nothing."""
_NAMES = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY)$", re.I)
_FLAGS = re.compile(r"--(?:[\w-]+-)?(?:api-key|token|password|secret)$")


def secrets_of(
    env: Mapping[str, str], flags: Iterable[Sequence[str]], staged: Iterable[object] = ()
) -> tuple[str, ...]:
    """Strings to hide: values of variables and flags with names like secrets, and staged secrets."""
    hidden = [str(secret) for secret in staged]
    hidden += [value for name, value in env.items() if _NAMES.search(name)]
    hidden += [value for flag, *values in flags if _FLAGS.match(flag) for value in values]
    return tuple(dict.fromkeys(secret for secret in hidden if len(secret) >= SHORTEST))


@dataclass
class Redactor:
    """Replaces secrets in a stream of bytes, even if they are split. Bytes that may begin a secret are held back."""

    secrets: Sequence[str] = ()
    _rest: bytes = b""
    _pattern: re.Pattern[bytes] | None = field(init=False, default=None)
    _words: list[bytes] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._words = sorted((secret.encode() for secret in self.secrets), key=len, reverse=True)
        if self._words:
            self._pattern = re.compile(b"|".join(map(re.escape, self._words)))

    def feed(self, data: bytes) -> bytes:
        """The bytes that can be shown so far."""
        if self._pattern is None:
            return data
        data = self._rest + data
        cut = len(data) - max(self._begun(data, word) for word in self._words)
        for match in self._pattern.finditer(data):
            if match.start() < cut < match.end():
                cut = match.start()
        self._rest = data[cut:]
        return self._pattern.sub(MARK, data[:cut])

    def finish(self) -> bytes:
        """The bytes held back, at the end of the stream."""
        rest, self._rest = self._rest, b""
        return self._pattern.sub(MARK, rest) if self._pattern else rest

    @staticmethod
    def _begun(data: bytes, word: bytes) -> int:
        """How many bytes at the end of data are the beginning of word."""
        return next((size for size in range(min(len(word) - 1, len(data)), 0, -1) if data.endswith(word[:size])), 0)
