"""Sends notices: webhooks and mail, in a separate thread, so that no command waits for a receiver."""

from __future__ import annotations

import http.client
import json
import queue
import smtplib
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from orchestrator.gang.view import GangView
from orchestrator.loading.secret_file import read_private_line
from orchestrator.model.deadlines import LAST_NOTICES_S, NOTICE_S
from orchestrator.model.errors import DeployError
from orchestrator.model.notify import Event, Mail, Notice, Recipient
from orchestrator.monitoring.events import news
from orchestrator.monitoring.wording import address, body, plain, refused
from orchestrator.records.documents import keep_told, read_told, told_file

TRIES = 3
PAUSE_S = 2.0
MOST_WAITING = 200


def send(recipient: Recipient, notice: Notice, *, deadline_s: float = NOTICE_S) -> str:
    """'' where it arrived, else why not. The words name no secret: addresses and passwords are left out."""
    try:
        if recipient.mail is not None:
            _mail(recipient.mail, notice, deadline_s)
            return ""
        return _post(recipient, notice, deadline_s)
    except DeployError as failure:
        return f"{failure.where}: {failure.what}"
    except smtplib.SMTPException as error:
        code = getattr(error, "smtp_code", "")
        return f"{type(error).__name__} {code}".strip()
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror or 'timed out'}"
    except (ValueError, http.client.HTTPException) as error:
        return type(error).__name__


def shown(recipient: Recipient) -> str:
    """What may be said of a recipient: its kind, with the host or the file."""
    if recipient.mail is not None:
        return f"{recipient.kind.value} to {', '.join(recipient.mail.to)} by {recipient.mail.server}"
    return f"{recipient.kind.value} at {recipient.url_file or urlsplit(recipient.url).hostname}"


class Notifier:
    """A context manager: on leaving, what waits is still sent for LAST_NOTICES_S.

    trouble: called with one sentence where a message could not be delivered
    """

    def __init__(self, recipients: Sequence[Recipient], inventory: str, trouble: Callable[[str], None]) -> None:
        self._recipients = tuple(recipients)
        self._trouble = trouble
        self._file = told_file(inventory)
        self._told = read_told(self._file) if recipients else {}
        self._lock = threading.Lock()
        self._waiting: queue.Queue[Notice | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._live, name="notify", daemon=True)

    def __enter__(self) -> Notifier:
        if self._recipients:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._recipients:
            self._waiting.put(None)
            self._thread.join(LAST_NOTICES_S)

    def look(self, view: GangView) -> None:
        """Tell what is new of a gang."""
        if not self._recipients:
            return
        with self._lock:
            notice, told = news(self._told.get(view.name, ""), view, time.time())
            if told != self._told.get(view.name, ""):
                self._told[view.name] = told
                keep_told(self._file, self._told)
        if notice is not None:
            self.tell(notice)

    def tell(self, notice: Notice) -> None:
        """Send it, soon."""
        if not self._recipients:
            return
        try:
            self._waiting.put_nowait(notice)
        except queue.Full:
            self._trouble(f"{MOST_WAITING} notifications are waiting already; dropped: {notice.title}")

    def _live(self) -> None:
        while (notice := self._waiting.get()) is not None:
            for recipient in self._recipients:
                if notice.event in recipient.events:
                    self._deliver(recipient, notice)

    def _deliver(self, recipient: Recipient, notice: Notice) -> None:
        for attempt in range(TRIES):
            wrong = send(recipient, notice)
            if not wrong:
                return
            time.sleep(PAUSE_S * attempt)
        self._trouble(f"{shown(recipient)} did not accept {notice.title!r}: {wrong}")


def _post(recipient: Recipient, notice: Notice, deadline_s: float) -> str:
    now = time.time()
    url = recipient.url or _secret(recipient.url_file, "the address")
    sign = _secret(recipient.sign_file, "the signing key") if recipient.sign_file else ""
    parts = urlsplit(address(recipient.kind, url, sign=sign, at=now))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "the address is not an http(s) address"
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=deadline_s)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        text = json.dumps(body(recipient.kind, notice, sign=sign, at=now), ensure_ascii=False).encode()
        connection.request("POST", path, text, {"Content-Type": "application/json; charset=utf-8"})
        answer = connection.getresponse()
        said = answer.read(1 << 16)
        if not 200 <= answer.status < 300:
            return f"HTTP {answer.status}"
        return refused(recipient.kind, _parsed(said))
    finally:
        connection.close()


def _parsed(said: bytes) -> object:
    try:
        return json.loads(said)
    except ValueError:
        return None


def _mail(mail: Mail, notice: Notice, deadline_s: float) -> None:
    message = EmailMessage()
    message["Subject"] = f"[l40s-deploy] {notice.title}"
    message["From"] = mail.sender
    message["To"] = ", ".join(mail.to)
    message.set_content(plain(notice) + "\n")
    password = _secret(mail.password_file, "the password") if mail.password_file else ""
    context = ssl.create_default_context() if mail.tls != "none" else None
    if mail.tls == "tls" and context is not None:
        server: smtplib.SMTP = smtplib.SMTP_SSL(mail.server, mail.port, timeout=deadline_s, context=context)
    else:
        server = smtplib.SMTP(mail.server, mail.port, timeout=deadline_s)
    with server:
        if mail.tls == "starttls":
            server.starttls(context=context)
        if password:
            server.login(mail.user, password)
        server.send_message(message)


def _secret(file: str, what: str) -> str:
    return read_private_line(Path(file).expanduser(), what=what, where="l40s_notify")


def trial() -> Notice:
    """What `notify --test` sends."""
    return Notice(
        event=Event.RESTORED,
        subject="test",
        text="This is a test of l40s-deploy's notifications. Nothing has happened.",
        at=time.time(),
    )
