"""Removes secrets from an engine's log before it is written or read. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

MARK = b"[redacted]"
SHORTEST = 6
"""A shorter secret would remove ordinary words from the log, and protects nothing."""
_NAMES = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY)$", re.I)
_FLAGS = re.compile(r"--(?:[\w-]+-)?(?:api-key|token|password|secret)$")


def secrets_of(
    env: Mapping[str, str], flags: Iterable[Sequence[str]], staged: Iterable[object] = ()
) -> tuple[str, ...]:
    """Strings to hide: values of variables and flags with names like secrets, and staged secrets."""
    found = [str(secret) for secret in staged]
    found += [value for name, value in env.items() if _NAMES.search(name)]
    found += [value for flag, *values in flags if _FLAGS.match(flag) for value in values]
    return tuple(dict.fromkeys(secret for secret in found if len(secret) >= SHORTEST))


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
