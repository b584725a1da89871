"""Who is notified of events of a gang."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from orchestrator.model.secret_text import without_secrets

MOST_TEXT = 3000
"""Characters."""


class Event(str, Enum):
    """What is worth a message."""

    FAILED = "failed"
    DEGRADED = "degraded"
    RESTORED = "restored"
    GIVEN_UP = "given-up"
    FINDING = "finding"


class ReceiverKind(str, Enum):
    """What a receiver understands."""

    SLACK = "slack"
    FEISHU = "feishu"
    DINGTALK = "dingtalk"
    WECOM = "wecom"
    WEBHOOK = "webhook"
    EMAIL = "email"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """How mail is sent. tls: starttls, tls (from the first byte) or none; password_file: '' for no login."""

    server: str
    port: int
    sender: str
    to: tuple[str, ...]
    tls: str = "starttls"
    user: str = ""
    password_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """One entry of `l40s_notify`.

    url, url_file: a webhook's address, or the file of mode 0600 that holds it (it often is a secret)
    sign_file: the file with the key that Feishu's and DingTalk's signed robots want, '' for none
    """

    kind: ReceiverKind
    url: str = field(default="", repr=False)
    url_file: str = ""
    sign_file: str = ""
    mail: Mail | None = None
    events: frozenset[Event] = frozenset(Event)


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
    return "".join(one if one == "\n" or one.isprintable() else " " if one.isspace() else "?" for one in kept)
