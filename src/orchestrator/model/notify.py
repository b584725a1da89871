"""Who is notified of events of a gang."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


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
