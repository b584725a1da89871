"""`l40s_notify`: who is notified of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.loading.variables import Variables
from orchestrator.model.errors import InputError
from orchestrator.model.notify import Event, Mail, ReceiverKind, Recipient

NAME = "l40s_notify"
_WEB = ("kind", "url", "url_file", "sign_file", "events")
_MAIL = ("kind", "server", "from", "to", "tls", "user", "password_file", "events")
_SIGNED = (ReceiverKind.FEISHU, ReceiverKind.DINGTALK)
_PORTS = {"starttls": 587, "tls": 465, "none": 25}


def recipients(variables: Variables) -> tuple[Recipient, ...]:
    """The list, in its order. Raises InputError that names the entry and the key."""
    return tuple(
        _RecipientEntry(variables.place(NAME), place, entry).read()
        for place, entry in enumerate(variables.mappings(NAME))
    )


class _RecipientEntry:
    def __init__(self, where: str, place: int, entry: Mapping[Any, Any]) -> None:
        self._where = f"{where}/{place}"
        self._entry = entry

    def read(self) -> Recipient:
        kind = self._kind()
        self._refuse_unknown(_MAIL if kind is ReceiverKind.EMAIL else _WEB)
        if kind is ReceiverKind.EMAIL:
            return Recipient(kind=kind, mail=self._mail(), events=self._events())
        url, file = self._text("url"), self._text("url_file")
        if bool(url) == bool(file):
            raise self._wrong("url", "either url or url_file", "write the address into a file of mode 600: url_file")
        if url and not url.startswith(("http://", "https://")):
            raise self._wrong("url", "an http(s) address", "url: https://HOST/PATH")
        sign = self._text("sign_file")
        if sign and kind not in _SIGNED:
            raise self._wrong("sign_file", "no such key: only feishu and dingtalk sign", "remove sign_file")
        return Recipient(kind=kind, url=url, url_file=file, sign_file=sign, events=self._events())

    def _kind(self) -> ReceiverKind:
        try:
            return ReceiverKind(self._text("kind"))
        except ValueError:
            raise self._wrong("kind", " or ".join(kind.value for kind in ReceiverKind), "kind: webhook") from None

    def _mail(self) -> Mail:
        server, _, port = self._text("server").partition(":")
        tls = self._text("tls") or "starttls"
        if tls not in _PORTS:
            raise self._wrong("tls", " or ".join(_PORTS), "tls: starttls")
        if not server or (port and not port.isdigit()):
            raise self._wrong("server", "HOST or HOST:PORT", "server: smtp.example.org:587")
        to = self._texts("to")
        if not self._text("from") or not to:
            raise self._wrong("to", "from and to", "from: l40s@example.org, to: [ops@example.org]")
        user, password = self._text("user"), self._text("password_file")
        if bool(user) != bool(password):
            raise self._wrong(
                "user", "user and password_file, or neither", "write the password into a file of mode 600"
            )
        return Mail(
            server=server,
            port=int(port) if port else _PORTS[tls],
            sender=self._text("from"),
            to=to,
            tls=tls,
            user=user,
            password_file=password,
        )

    def _events(self) -> frozenset[Event]:
        found = self._texts("events")
        try:
            return frozenset(map(Event, found)) if found else frozenset(Event)
        except ValueError:
            known = ", ".join(event.value for event in Event)
            raise self._wrong("events", f"a list of {known}", "leave events out for all of them") from None

    def _text(self, key: str) -> str:
        value = self._entry.get(key, "")
        if not isinstance(value, str) or not value.isprintable():
            raise self._wrong(key, "a string on one line", f"put {key} into quotes")
        return value.strip()

    def _texts(self, key: str) -> tuple[str, ...]:
        value = self._entry.get(key, [])
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str) and item and item.isprintable() for item in items):
            raise self._wrong(key, "a list of strings", f"{key}: [first, second]")
        return tuple(items)

    def _refuse_unknown(self, known: tuple[str, ...]) -> None:
        for key in self._entry:
            if key not in known:
                raise InputError(
                    f"found the key {str(key)[:40]!r}; wanted {', '.join(known)}",
                    where=self._where,
                    fix="correct or remove it; an address or password belongs into a file of mode 600",
                )

    def _wrong(self, key: str, wanted: str, fix: str) -> InputError:
        """What was found is not shown: it may be a secret."""
        return InputError(f"wanted {wanted}", where=f"{self._where}/{key}", fix=fix)
