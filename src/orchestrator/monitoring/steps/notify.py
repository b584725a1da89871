"""Sends notices: webhooks and mail, each receiver in a thread of its own, so that nobody waits for one."""

from __future__ import annotations

import contextlib
import json
import queue
import smtplib
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.gang.view import GangView
from orchestrator.loading.secret_file import read_private_line
from orchestrator.model.deadlines import LAST_NOTICES_S, NOTICE_S
from orchestrator.model.inventory import Event, Mail, Recipient
from orchestrator.model.notice import Notice
from orchestrator.monitoring.notices import address, body, finding_key, findings_news, news, plain, refused
from orchestrator.node.network import http_connection
from orchestrator.node.network.exchange import Exchange
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.message import parsed
from orchestrator.records.documents import keep_told, read_told, told_file, unheard_file

TRIES = 3
PAUSE_S = 2.0
AGAIN_S = 60.0
LATE_S = 3600.0
"""Older messages are not sent any more: our epoch seconds since the event."""
MOST_WAITING = 200
"""Notices for one receiver."""
MOST_HEARD = 1 << 18
"""Bytes of all that a receiver says in one exchange."""


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
    except Exception as error:  # whatever a receiver answers is told as its failure
        return type(error).__name__


def shown(recipient: Recipient) -> str:
    """What may be said of a recipient: its kind, with the host or the file."""
    if recipient.mail is not None:
        return f"{recipient.kind.value} to {', '.join(recipient.mail.to)} by {recipient.mail.server}"
    return f"{recipient.kind.value} at {recipient.url_file or urlsplit(recipient.url).hostname}"


_keeping = threading.Lock()


def keep_outcome(inventory: str, recipient: Recipient, wrong: str) -> None:
    """For `status` and the metrics: whether the last notice reached this recipient; '' where it did."""
    file, who = unheard_file(inventory), shown(recipient)
    with _keeping:
        unheard = read_told(file)
        if unheard.get(who, "") != wrong:
            unheard.pop(who, None)
            keep_told(file, unheard | ({who: wrong} if wrong else {}))


@dataclass(frozen=True, slots=True)
class _Sending:
    """To one receiver."""

    waiting: queue.SimpleQueue[Notice | None]
    thread: threading.Thread


class Notifier:
    """A context manager: on leaving, what waits is still sent for LAST_NOTICES_S, to former receivers too.

    trouble: called with one sentence where a message could not be delivered
    """

    def __init__(self, recipients: Sequence[Recipient], inventory: str, trouble: Callable[[str], None]) -> None:
        self._wanted = tuple(recipients)
        self._trouble = trouble
        self._inventory = inventory
        self._file = told_file(inventory)
        self._told: dict[str, str] = {}
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()
        self._lines: dict[Recipient, _Sending] = {}
        self._ending: list[threading.Thread] = []

    def __enter__(self) -> Notifier:
        self.renew(self._wanted)
        return self

    def __exit__(self, *_: object) -> None:
        ends = time.monotonic() + LAST_NOTICES_S
        self.renew(())
        for thread in self._ending:
            thread.join(max(0.0, ends - time.monotonic()))

    def renew(self, recipients: Sequence[Recipient]) -> None:
        """Tell these from now on. Those that are gone are sent what waits for them."""
        if recipients:
            self._forget_all_but(recipients)
        with self._lock:
            if recipients and not self._lines:
                self._told = read_told(self._file)
            before, lines = (
                self._lines,
                {recipient: self._lines.get(recipient) or self._line(recipient) for recipient in recipients},
            )
            self._lines = lines
            gone = [line for recipient, line in before.items() if recipient not in lines]
            still_sending = [thread for thread in self._ending if thread.is_alive()]
            self._ending = still_sending + [line.thread for line in gone]
        for line in gone:
            line.waiting.put(None)

    def _forget_all_but(self, recipients: Sequence[Recipient]) -> None:
        """Who did not hear what, where nobody is told any more."""
        known, file = {shown(recipient) for recipient in recipients}, unheard_file(self._inventory)
        keep_told(file, {who: wrong for who, wrong in read_told(file).items() if who in known})

    def _line(self, recipient: Recipient) -> _Sending:
        waiting: queue.SimpleQueue[Notice | None] = queue.SimpleQueue()
        thread = threading.Thread(target=self._live, args=(recipient, waiting), name="notify", daemon=True)
        thread.start()
        return _Sending(waiting, thread)

    def look(self, view: GangView) -> None:
        """Tell what is new of a gang, and of what is wrong about it."""
        if not self._lines:
            return
        with self._lock:
            before = dict(self._told)
            notice, self._told[view.name] = news(before.get(view.name, ""), view, time.time())
            findings_told = findings_news(self._told, view, self._gone_s(view), time.time())
            self._told = dict(findings_told.told)
            if self._told != before:
                keep_told(self._file, self._told)
        for outgoing in (*([notice] if notice is not None else []), *findings_told.notices):
            self.tell(outgoing)

    def _gone_s(self, view: GangView) -> dict[str, float]:
        """Since when each finding that was told is not seen any more: of this guard, whatever an earlier one saw."""
        now = time.monotonic()
        self._seen |= {finding_key(view.name, finding): now for finding in view.findings}
        return {key: now - self._seen.setdefault(key, now) for key in self._told}

    def tell(self, notice: Notice) -> None:
        """Send it, soon, to those who want to hear of such an event."""
        for recipient, line in self._lines.items():
            if notice.event not in recipient.events:
                continue
            if line.waiting.qsize() < MOST_WAITING:
                line.waiting.put(notice)
            else:
                self._trouble(f"{MOST_WAITING} notifications wait for {shown(recipient)}; dropped: {notice.title}")

    def _live(self, recipient: Recipient, waiting: queue.SimpleQueue[Notice | None]) -> None:
        """A message that was not accepted is tried again every AGAIN_S, before newer ones, for as long as LATE_S."""
        late: list[Notice] = []
        while True:
            try:
                notice = waiting.get(timeout=AGAIN_S if late else None)
            except queue.Empty:
                notice = None
            else:
                if notice is None:
                    return
            late = [
                late_notice
                for late_notice in late
                if time.time() - late_notice.at < LATE_S and self._deliver(recipient, late_notice, tries=1)
            ]
            if notice is not None and (wrong := self._deliver(recipient, notice)):
                late = [*late[1 - MOST_WAITING :], notice]
                with contextlib.suppress(Exception):
                    self._trouble(f"{shown(recipient)} did not accept {notice.title!r}: {wrong}")

    def _deliver(self, recipient: Recipient, notice: Notice, *, tries: int = TRIES) -> str:
        """'' where it arrived, else why not."""
        try:
            wrong = self._tried(recipient, notice, tries)
        except BaseException as defect:  # whatever ends one message, the next is tried
            wrong = type(defect).__name__
        with contextlib.suppress(Exception):
            keep_outcome(self._inventory, recipient, wrong)
        return wrong

    @staticmethod
    def _tried(recipient: Recipient, notice: Notice, tries: int) -> str:
        for attempt in range(tries):
            if not (wrong := send(recipient, notice)):
                break
            time.sleep(PAUSE_S * attempt)
        return wrong


def _post(recipient: Recipient, notice: Notice, deadline_s: float) -> str:
    now = time.time()
    url = recipient.url or _secret(recipient.url_file, "the address")
    sign = _secret(recipient.sign_file, "the signing key") if recipient.sign_file else ""
    where = address(recipient.kind, url, sign=sign, at=now)
    text = json.dumps(body(recipient.kind, notice, sign=sign, at=now), ensure_ascii=False).encode()
    headers = {"Content-Type": "application/json; charset=utf-8"}
    try:
        status, reply = http_connection.ask("POST", where, text, headers, deadline_s, longest=1 << 16, most=MOST_HEARD)
    except ValueError:
        return "the address is not an http(s) address"
    return refused(recipient.kind, parsed(reply)) if 200 <= status < 300 else f"HTTP {status}"


class _Smtp(smtplib.SMTP):
    def __init__(self, exchange: Exchange, *place: Any, **more: Any) -> None:
        self._exchange = exchange
        super().__init__(*place, **more)

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = self._exchange.makefile(self.sock)
        return super().getreply()


class _SmtpOverTls(_Smtp, smtplib.SMTP_SSL):
    pass


def _mail(mail: Mail, notice: Notice, deadline_s: float) -> None:
    message = EmailMessage()
    message["Subject"] = f"[l40s-deploy] {notice.title}"
    message["From"] = mail.sender
    message["To"] = ", ".join(mail.to)
    message.set_content(plain(notice) + "\n")
    password = _secret(mail.password_file, "the password") if mail.password_file else ""
    context = ssl.create_default_context() if mail.tls != "none" else None
    exchange = Exchange(deadline_s, MOST_HEARD)
    if mail.tls == "tls" and context is not None:
        server: smtplib.SMTP = _SmtpOverTls(exchange, mail.server, mail.port, timeout=deadline_s, context=context)
    else:
        server = _Smtp(exchange, mail.server, mail.port, timeout=deadline_s)
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
