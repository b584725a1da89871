"""Text for a bug report: secrets are taken out, and who and where a machine is gets a pseudonym. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.topology.pseudonyms import ANYTHING, Pseudonyms

HIDDEN = "<secret>"
SHORTEST_SECRET = 6
"""A shorter one would remove ordinary words from the text, and protects nothing."""
SHORTEST_NAME = 3
_NAMED = re.compile(
    r"(?i)(?P<name>(?:[\w-]*(?:api[_-]?key|access[_-]?key|private[_-]?key|token|secret|passw(?:or)?d|passphrase|"
    r"credential)s?|authorization)[\"']?\s*[:=]\s*)(?P<value>\"[^\"]*\"|'[^']*'|(?:bearer|basic)\s+\S+|[^\s,;}\])]+)"
)
"""A name like a secret's with its value. `tokens: 5` loses its number too: a report is readable without it."""
_BY_FORM = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)|(?i:\bbearer\s+)[\w.~+/=-]{8,}"
)
"""Hugging Face, OpenAI, GitHub, AWS, JSON web tokens, and whatever follows Bearer."""
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_URL_PASSWORD = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^/\s@:]*:[^/\s@]+@", re.IGNORECASE)
_COUNTS = re.compile(r"(?i)^[\w-]*tokens?(?:_[a-z]+)?[\"']?\s*[:=]\s*$")


@dataclass(frozen=True)
class Scrubber:
    """secrets: known ones, each taken out wherever it is; names: who and where somebody is -> what to call it."""

    pseudonyms: Pseudonyms
    secrets: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    def text(self, text: str) -> str:
        """Without secrets, under pseudonyms."""
        for secret in sorted(filter(None, self.secrets), key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        text = _PRIVATE_KEY.sub(HIDDEN, text)
        text = _URL_PASSWORD.sub(rf"\g<scheme>{HIDDEN}@", text)
        text = _NAMED.sub(_hidden, text)
        text = _BY_FORM.sub(HIDDEN, text)
        if wanted := self._named():
            text = wanted.sub(lambda found: self.names[found.group()], text)
        return self.pseudonyms.in_text(text, ANYTHING)

    def value(self, value: Any, name: str = "") -> Any:
        """The same for every text of a JSON value; a value whose name is a secret's is removed entirely."""
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(one, str(key)) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(one, name) for one in value]
        if not isinstance(value, str):
            return value
        return HIDDEN if value and _NAMED.fullmatch(f"{name}: x") else self.text(value)

    def left(self, text: str) -> str:
        """The first known secret or name that is still in a text, '' for none."""
        named = self._named()
        found = named.search(text) if named else None
        return next((one for one in self.secrets if one and one in text), found.group() if found else "")

    def _named(self) -> re.Pattern[str] | None:
        words = sorted((name for name in self.names if len(name) >= SHORTEST_NAME), key=len, reverse=True)
        return re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, words))})(?![\w-])") if words else None


def long_enough(secrets: Iterable[str]) -> tuple[str, ...]:
    """Each once, without those that ordinary words contain."""
    return tuple(dict.fromkeys(secret for secret in secrets if len(secret) >= SHORTEST_SECRET))


def _hidden(found: re.Match[str]) -> str:
    counted = _COUNTS.match(found["name"]) and re.fullmatch(r"\"?[0-9.]+\"?", found["value"])
    return found.group() if counted else f"{found['name']}{HIDDEN}"
