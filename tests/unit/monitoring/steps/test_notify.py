"""Messages arrive at real servers on loopback; a secret stays in its file; no step waits for a receiver."""

from __future__ import annotations

import base64
import json
import queue
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.hostile import HOSTILE, talker
from tests.support.prometheus import receiver

from orchestrator.cli import main as cli
from orchestrator.gang.overview import Overview
from orchestrator.gang.steps.guard.notice_hook import Hook, run_hook
from orchestrator.gang.steps.status.overview import _with_unheard
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import Event, Inventory, Mail, ReceiverKind, Recipient
from orchestrator.model.notice import Notice
from orchestrator.monitoring.steps import notify
from orchestrator.monitoring.steps.exporter import Scraper
from orchestrator.monitoring.steps.notify import Notifier, keep_outcome, send, shown, trial
from orchestrator.records.documents import read_told, unheard_file

FAILED = GangView(name="g", state=GangState.FAILED, run_id="r1")
READY = GangView(name="g", state=GangState.READY, run_id="r2", service_healthy=True)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(notify, "PAUSE_S", 0.0)


def private(folder: Path, text: str, mode: int = 0o600) -> str:
    file = folder / "secret"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


@pytest.mark.parametrize("kind", [kind for kind in ReceiverKind if kind is not ReceiverKind.EMAIL])
def test_a_webhook_whose_address_is_in_a_private_file(kind: ReceiverKind, tmp_path: Path) -> None:
    with receiver() as there:
        there.answer = {"errcode": 0}
        recipient = Recipient(kind=kind, url_file=private(tmp_path, f"{there.url}/hook?key=s3cret"))
        assert send(recipient, trial()) == ""
    ((path, document, _),) = there.got
    assert path == "/hook?key=s3cret" and "Nothing has happened" in str(document)
    assert "s3cret" not in shown(recipient) + repr(recipient)


def test_a_file_that_others_may_read_is_refused_and_nothing_is_sent(tmp_path: Path) -> None:
    with receiver() as there:
        words = send(
            Recipient(kind=ReceiverKind.SLACK, url_file=private(tmp_path, f"{there.url}/s3cret", 0o644)), trial()
        )
    assert "may be read by others" in words and "s3cret" not in words and there.got == []


ODD = "\udcff \ud800 \0 \x9b2J \u202e \u3000 api_key=s3cret-value\r\n" + "x" * 300_000
"""What a log may say."""


@pytest.mark.parametrize("kind", ReceiverKind)
def test_whatever_a_node_says_arrives_without_secrets_and_controls(kind: ReceiverKind) -> None:
    notice = Notice(event=Event.FAILED, subject="g", text=ODD, fix=ODD)
    with receiver() as there, post() as (port, lines):
        there.answer = {"errcode": 0}
        mail = Mail(server="127.0.0.1", port=port, sender="a@b.c", to=("d@e.f",), tls="none")
        by_mail = kind is ReceiverKind.EMAIL
        to = Recipient(kind=kind, mail=mail if by_mail else None, url="" if by_mail else there.url)
        assert send(to, notice) == ""
        why = str(there.documents() or lines)
        assert run_hook(Hook("/bin/true"), "failed", gang="g", why=ODD) == ""
        assert run_hook(Hook(there.url), "failed", gang="g", why=ODD) == ""
    for heard in (why, str(there.documents()[-1]["why"])):
        assert "xxx" in heard and "s3cret" not in heard and len(heard) < 10_000
        assert not [
            one for one in ("\udcff", "\ud800", "\0", "\x9b", "\u202e") if one in heard or repr(one)[1:-1] in heard
        ]


def test_what_a_receiver_refuses_is_told(tmp_path: Path) -> None:
    with receiver() as there:
        there.status = 403
        assert send(Recipient(kind=ReceiverKind.SLACK, url=there.url), trial()) == "HTTP 403"
        there.status, there.answer = 200, {"errcode": 310000, "errmsg": "sign not match"}
        assert "sign not match" in send(Recipient(kind=ReceiverKind.DINGTALK, url=there.url), trial())
    assert "ConnectionRefusedError" in send(Recipient(kind=ReceiverKind.SLACK, url=there.url), trial())


def test_one_message_an_event_and_none_again_after_a_restart_of_the_guard(tmp_path: Path) -> None:
    with receiver() as there:
        recipients = [Recipient(kind=ReceiverKind.WEBHOOK, url=there.url)]
        troubles: list[str] = []
        for _ in range(2):
            with Notifier(recipients, str(tmp_path / "hosts.yml"), troubles.append) as notifier:
                notifier.look(FAILED)
                notifier.look(FAILED)
        assert [document["event"] for document in there.documents()] == ["failed"]
        with Notifier(recipients, str(tmp_path / "hosts.yml"), troubles.append) as notifier:
            notifier.look(READY)
            notifier.tell(Notice(event=Event.GIVEN_UP, subject="g", text="3 restarts"))
    assert [document["event"] for document in there.documents()] == ["failed", "restored", "given-up"]
    assert troubles == []


def test_a_recipient_hears_of_its_events_only_and_a_dead_one_is_told_of(tmp_path: Path) -> None:
    with receiver() as dead:
        gone = dead.url
    with receiver() as there:
        recipients = [
            Recipient(kind=ReceiverKind.SLACK, url=gone),
            Recipient(kind=ReceiverKind.WEBHOOK, url=there.url, events=frozenset({Event.GIVEN_UP})),
        ]
        troubles: list[str] = []
        with Notifier(recipients, str(tmp_path / "hosts.yml"), troubles.append) as notifier:
            notifier.look(FAILED)
            notifier.tell(Notice(event=Event.GIVEN_UP, subject="g", text="3 restarts"))
    assert [document["event"] for document in there.documents()] == ["given-up"]
    assert len(troubles) == 2 and "slack at 127.0.0.1 did not accept 'g: failed'" in troubles[0]


@pytest.mark.parametrize("end", [SystemExit, MemoryError, RecursionError])
def test_a_sender_that_ends_is_told_in_status_and_metrics_and_goes_on(
    end: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = Inventory(path=str(tmp_path / "hosts.yml"), gangs=())
    told: list[str] = []

    def remarks() -> tuple[str, ...]:
        return _with_unheard(Overview(views=(READY, FAILED)), inventory).views[0].remarks

    def ends(recipient: Recipient, notice: Notice) -> str:
        if recipient is bad and not told:
            told.append("once")
            raise end
        return send(recipient, notice)

    def no_screen(words: str) -> None:
        raise OSError(words)

    monkeypatch.setattr(notify, "send", ends)
    with receiver() as there:
        bad = Recipient(kind=ReceiverKind.SLACK, url=there.url)
        good = Recipient(kind=ReceiverKind.WEBHOOK, url=there.url)
        inventory = replace(inventory, notify=(bad, good))
        with Notifier([bad, good], inventory.path, no_screen) as notifier:
            notifier.tell(Notice(event=Event.GIVEN_UP, subject="g", text="3 restarts"))
        wrong = f"notifications do not reach slack at 127.0.0.1: {end.__name__} (fix: l40s-deploy notify --test)"
        assert remarks() == (wrong,)
        with Scraper(inventory, ()) as scraper:
            assert scraper.scrape().receivers == {"slack at 127.0.0.1": False, "webhook at 127.0.0.1": True}
        with Notifier([bad, good], inventory.path, no_screen) as notifier:
            notifier.tell(Notice(event=Event.GIVEN_UP, subject="g", text="3 restarts"))
    assert remarks() == () and len(there.got) == 3


def test_a_receiver_that_is_no_longer_named_is_forgotten(tmp_path: Path) -> None:
    old, new = (Recipient(kind=ReceiverKind.SLACK, url=f"http://{host}") for host in ("old", "new"))
    path = str(tmp_path / "hosts.yml")
    for one in (old, new):
        keep_outcome(path, one, "HTTP 500")
    with Notifier([new], path, print):
        assert read_told(unheard_file(path)) == {"slack at new": "HTTP 500"}


def test_receivers_that_an_inventory_names_later_are_told_from_then_on(tmp_path: Path) -> None:
    with receiver() as first, receiver() as second:
        one, other = (Recipient(kind=ReceiverKind.WEBHOOK, url=there.url) for there in (first, second))
        with Notifier([], str(tmp_path / "hosts.yml"), print) as notifier:
            notifier.look(FAILED)
            for recipients in ([one], [one, other], [other], []):
                notifier.renew(recipients)
                notifier.tell(Notice(event=Event.CHANGED, subject=f"for {len(recipients)}", text="x"))
            notifier.renew([other])
            notifier.look(FAILED)
    assert [document["subject"] for document in first.documents()] == ["for 1", "for 2"]
    titles = sorted(document["title"] for document in second.documents())
    assert titles == ["for 1: changed", "for 2: changed", "g: failed"]


def test_for_a_receiver_that_takes_none_only_so_many_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, good = (Recipient(kind=ReceiverKind.SLACK, url=f"http://{host}") for host in ("held", "good"))
    held_has_one, freed = threading.Event(), threading.Event()
    heard, troubles = queue.SimpleQueue[str](), list[str]()

    def slow(recipient: Recipient, notice: Notice) -> str:
        if recipient is held:
            held_has_one.set()
            freed.wait(60)
        else:
            heard.put(notice.subject)
        return ""

    monkeypatch.setattr(notify, "send", slow)
    monkeypatch.setattr(notify, "MOST_WAITING", 3)
    with Notifier([held, good], str(tmp_path / "hosts.yml"), troubles.append) as notifier:
        for number in range(10):
            notifier.tell(Notice(event=Event.GIVEN_UP, subject=f"g{number}", text="3 restarts"))
            assert heard.get(timeout=30) == f"g{number}"
            assert held_has_one.wait(30)
        freed.set()
    dropped = (f"g{number}: the guard gave up" for number in range(4, 10))
    assert troubles == [f"3 notifications wait for slack at held; dropped: {title}" for title in dropped]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_answer_holds_or_ends_the_others(hostile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def soon(recipient: Recipient, notice: Notice) -> str:
        return send(recipient, notice, deadline_s=0.2) if recipient is bad else send(recipient, notice)

    monkeypatch.setattr(notify, "send", soon)
    notices = [Notice(event=Event.GIVEN_UP, subject=f"g{number}", text="3 restarts") for number in range(2)]
    troubles: list[str] = []
    with talker(*HOSTILE[hostile]) as port, receiver() as there:
        bad = Recipient(kind=ReceiverKind.DINGTALK, url=f"http://127.0.0.1:{port}")
        good = Recipient(kind=ReceiverKind.WEBHOOK, url=there.url)
        with Notifier([bad, good], str(tmp_path / "hosts.yml"), troubles.append) as notifier:
            for notice in notices:
                notifier.tell(notice)
        assert [document["subject"] for document in there.documents()] == ["g0", "g1"]
    assert ["'" + notice.title + "'" in words for notice, words in zip(notices, troubles, strict=True)] == [True] * 2


@pytest.mark.parametrize(("says", "drips"), [(b"", b"2"), (b"", b"250-more\r\n"), (b"250-more\r\n" * 40_000, b"")])
def test_a_mail_server_that_does_not_come_to_an_end_is_left(says: bytes, drips: bytes) -> None:
    told: list[str] = []
    with talker(says, drips) as port:
        mail = Mail(server="127.0.0.1", port=port, sender="a@example.org", to=("b@example.org",), tls="none")
        recipient = Recipient(kind=ReceiverKind.EMAIL, mail=mail)
        sending = threading.Thread(target=lambda: told.append(send(recipient, trial(), deadline_s=0.5)), daemon=True)
        sending.start()
        sending.join(10.0)
    assert told and told[0]


class Post(socketserver.StreamRequestHandler):
    """As much SMTP (RFC 5321, AUTH PLAIN of RFC 4954) as one message needs."""

    def handle(self) -> None:
        kept: list[str] = self.server.kept  # type: ignore[attr-defined]
        self.say("220 test")
        while line := self.rfile.readline().decode().strip():
            kept.append(line)
            word = line.upper().split()[0]
            if word == "EHLO":
                self.wfile.write(b"250-test\r\n250 AUTH PLAIN\r\n")
            elif word == "DATA":
                self.say("354 go on")
                while (text := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                    kept.append(text)
                self.say("250 kept")
            elif word == "QUIT":
                self.say("221 bye")
                return
            else:
                self.say("235 welcome" if word == "AUTH" else "250 ok")

    def say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@contextmanager
def post() -> Iterator[tuple[int, list[str]]]:
    """A mail server on loopback; its port, and every line that it received."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Post) as server:
        server.kept = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], server.kept  # type: ignore[attr-defined]
        server.shutdown()


def test_mail_is_sent_by_smtp_with_the_password_out_of_its_file(tmp_path: Path) -> None:
    with post() as (port, lines):
        mail = Mail(
            server="127.0.0.1", port=port, sender="l40s@example.org", to=("ops@example.org", "b@example.org"),
            tls="none", user="l40s", password_file=private(tmp_path, "s3cret"),
        )  # fmt: skip
        recipient = Recipient(kind=ReceiverKind.EMAIL, mail=mail)
        assert send(recipient, Notice(event=Event.FAILED, subject="gang0", text="node1 TP3: killed")) == ""
    assert "Subject: [l40s-deploy] gang0: failed" in lines and "node1 TP3: killed" in lines
    assert "rcpt TO:<b@example.org>" in lines
    assert "AUTH PLAIN " + base64.b64encode(b"\0l40s\0s3cret").decode() in lines
    assert "s3cret" not in shown(recipient)


def test_a_server_without_starttls_gets_no_password(tmp_path: Path) -> None:
    with post() as (port, lines):
        mail = Mail(
            server="127.0.0.1", port=port, sender="a@example.org", to=("b@example.org",), user="l40s",
            password_file=private(tmp_path, "s3cret"),
        )  # fmt: skip
        assert "SMTPNotSupportedError" in send(Recipient(kind=ReceiverKind.EMAIL, mail=mail), trial())
    assert not any(line.startswith("AUTH") for line in lines)


def test_notify_tells_who_took_the_test_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = tmp_path / "hosts.yml"
    with receiver() as pager:
        recipients = [{"kind": "webhook", "url": pager.url}, {"kind": "webhook", "url": "http://127.0.0.1:9/"}]
        document = {
            "vars": {"l40s_notify": recipients},
            "children": {"gangs": {"children": {"gang0": {"hosts": {"node0": {"ansible_host": "127.0.0.1"}}}}}},
        }
        hosts.write_text(json.dumps({"all": document}))
        assert cli.main(["notify", "-i", str(hosts), "--test", "--json"]) == 4
        first, second = json.loads(capsys.readouterr().out)["recipients"]
        assert first["error"] is None and second["error"]
        assert len(pager.documents()) == 1
        assert cli.main(["notify", "-i", str(hosts)]) == 0
        assert "failed" in capsys.readouterr().out and len(pager.documents()) == 1


def test_a_message_that_was_not_accepted_is_tried_again_and_none_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "AGAIN_S", 0.05)
    tried: list[str] = []
    arrived = threading.Event()

    def send_late(_: Recipient, notice: Notice, **__: object) -> str:
        tried.append(notice.title)
        if len(tried) <= notify.TRIES + 1:
            return "HTTP 500"
        arrived.set()
        return ""

    monkeypatch.setattr(notify, "send", send_late)
    recipients = [Recipient(kind=ReceiverKind.SLACK, url="http://127.0.0.1:9")]
    troubles: list[str] = []
    with Notifier(recipients, str(tmp_path / "hosts.yml"), troubles.append) as notifier:
        notifier.look(FAILED)
        assert arrived.wait(20)
    assert tried == ["g: failed"] * (notify.TRIES + 2) and len(troubles) == 1
    with Notifier(recipients, str(tmp_path / "hosts.yml"), troubles.append) as again:
        again.look(FAILED)
    assert len(tried) == notify.TRIES + 2, "a guard that starts again repeats nothing"
