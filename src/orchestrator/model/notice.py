"""What people and their programs are told of a gang."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.model.inventory import Event
from orchestrator.model.secret_text import without_secrets

MOST_TEXT = 3000
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One event. subject: gang or node that it is about; text: what and why, in sentences; at: our epoch seconds."""

    event: Event
    subject: str
    text: str
    fix: str = ""
    at: float = 0.0

    def __post_init__(self) -> None:
        """What a node or a log says may be anything."""
        object.__setattr__(self, "text", said(self.text))
        object.__setattr__(self, "fix", said(self.fix))

    @property
    def title(self) -> str:
        """One line: `gang0 failed`."""
        words = {Event.GIVEN_UP: "the guard gave up", Event.FINDING: "new finding"}
        return f"{self.subject}: {words.get(self.event, self.event.value)}"


def said(text: str) -> str:
    """Text from outside as every receiver takes it: without secrets, control characters and half characters."""
    kept = without_secrets(text[: 2 * MOST_TEXT])[:MOST_TEXT]
    return "".join(_received(char) for char in kept)


def _received(char: str) -> str:
    if char == "\n" or char.isprintable():
        return char
    return " " if char.isspace() else "?"
