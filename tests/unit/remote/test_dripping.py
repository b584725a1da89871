"""A node that drips: bytes that keep coming lengthen no limit, and every verb's answer has one."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.fuzz import answers
from tests.support.commands import history, why
from tests.support.hostile import talker
from tests.support.waiting import slack
from tests.unit.remote.conftest import Sshd

from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.node.dispatch import VERBS, streams
from orchestrator.protocol.errors import Unreachable
from orchestrator.remote import node_app
from orchestrator.remote.app_archive import App
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.local import LocalSession
from orchestrator.remote.session import CommandResult
from orchestrator.remote.ssh_session import SshSession, open_session

HERE = NodeSpec(name="here", gang="g", node_rank=0, reach=Reach(host="here", connection="local"))
DRIPS = "while :; do printf x; sleep 0.05; done"
DRIPS_ERRORS = "while :; do printf x >&2; sleep 0.05; done"
DRIPS_LINES = "while :; do echo; sleep 0.05; done"
Either = LocalSession | SshSession


@pytest.fixture(params=["local", "ssh"])
def session(request: pytest.FixtureRequest) -> Iterator[Either]:
    if request.param == "local":
        opened: Either = LocalSession(HERE)
    else:
        sshd: Sshd = request.getfixturevalue("sshd")
        opened = open_session(sshd.spec(), deadline_s=20)
    yield opened
    opened.close()


WAYS: dict[str, Callable[[Either, str], object]] = {
    "run": lambda session, drip: session.run(drip, deadline_s=0.5),
    "stream": lambda session, drip: list(session.stream(drip, deadline_s=0.5)),
    "line after line": lambda session, drip: list(session.stream(f"echo; {drip}", deadline_s=None, quiet_s=0.5)),
    "conversation": lambda session, drip: session.converse(drip).ask(b"x", deadline_s=0.5, wanted=lambda _: False),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("drip", [DRIPS, DRIPS_ERRORS])
def test_no_way_to_ask_waits_for_what_drips(session: Either, way: str, drip: str) -> None:
    start = time.monotonic()
    with pytest.raises(Unreachable, match=r"did not end within 0.5 s|said nothing for 0.5 s"):
        WAYS[way](session, drip)
    assert time.monotonic() - start < 10 * slack()


@pytest.mark.parametrize("way", ["run", "stream", "conversation"])
def test_lines_that_drip_end_at_the_deadline_of_all(session: Either, way: str) -> None:
    with pytest.raises(Unreachable, match=r"did not end within 0.5 s"):
        WAYS[way](session, DRIPS_LINES)


def test_a_stream_may_last_while_its_lines_come(session: Either) -> None:
    slowly = "for i in 1 2 3 4 5 6; do sleep 0.3; echo $i; done"
    assert len(list(session.stream(slowly, deadline_s=None, quiet_s=0.29 + slack()))) == 6


NO_SERVERS: dict[str, tuple[bytes, bytes]] = {
    "silent": (b"", b""),
    "a version that drips": (b"", b"S"),
    "lines before it that drip": (b"", b"hello\r\n"),
    "a key exchange that drips": (b"SSH-2.0-x\r\n", b"\0"),
    "noise after the version": (b"SSH-2.0-x\r\n" + bytes(range(256)) * 300, b""),
    "a packet of 2 GiB": (b"SSH-2.0-x\r\n\x7f\xff\xff\xff" + b"a" * 100, b"a"),
    "a line without an end": (b"A" * 3_000_000, b"A"),
    "lines without an end": (b"x\r\n" * 300_000, b"x\r\n"),
}


@pytest.mark.parametrize("kind", NO_SERVERS)
def test_a_login_ends_in_time_whatever_answers_on_that_port(kind: str) -> None:
    told: list[str] = []

    def login(port: int) -> None:
        spec = NodeSpec(name="n", gang="g", node_rank=0, reach=Reach(host="127.0.0.1", port=port, user="u"))
        try:
            open_session(spec, deadline_s=1).close()
        except Unreachable as failure:
            told.append(failure.what)

    with talker(*NO_SERVERS[kind]) as port:
        logging_in = threading.Thread(target=login, args=(port,), daemon=True)
        logging_in.start()
        logging_in.join(10 * slack())
    assert len(told) == 1 and "127.0.0.1" in told[0], told


@dataclass(eq=False)
class Limits(answers.Node):
    """A session that writes down by when it is to have an answer."""

    asked: Any = None

    def run(self, command: Any, *, stdin: bytes = b"", deadline_s: float, become: bool | None = None) -> CommandResult:
        self.asked.append((str(command), deadline_s))
        return super().run(command, stdin=stdin, deadline_s=deadline_s, become=become)

    def stream(
        self, command: Any, *, stdin: bytes = b"", deadline_s: float | None, quiet_s: float | None = None
    ) -> Iterator[bytes]:
        self.asked.append((str(command), deadline_s or quiet_s))
        return super().stream(command, stdin=stdin, deadline_s=deadline_s, quiet_s=quiet_s)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_asked_with_a_limit(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all its lines together, or of the next one; `logs -f` alone has none."""
    every, asked = answers.every_verb(), list[tuple[str, float | None]]()
    sound = {name: one.sound for name, one in every.items()}
    monkeypatch.setattr("orchestrator.remote.fleet.connect", lambda spec, _: Limits(spec, sound, asked=asked))
    with Fleet(answers._nodes()) as fleet:
        every[verb].play(fleet)
    limits = [limit for command, limit in asked if (found := answers._ASKED.search(command)) and found[1] == verb]
    assert limits and all(limits), (verb, streams(verb), limits)


def test_one_time_covers_every_try_of_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose application ends just before its time, again and again."""
    monkeypatch.setattr(node_app, "application", lambda: App(b"x", "0" * 64))
    given: list[float] = []

    class Ending(LocalSession):
        def converse(self, command: Any) -> Any:
            return self

        def ask(self, line: bytes, *, deadline_s: float, wanted: object = None) -> None:
            given.append(deadline_s)
            time.sleep(deadline_s * 0.9)

        def run(self, command: Any, **known: Any) -> CommandResult:
            given.append(known["deadline_s"])
            return CommandResult(1, b"", b"")

    with pytest.raises(Exception, match="no answer"):
        node_app.call(Ending(HERE), "report", answers.ASKED, deadline_s=0.5)
    assert given[0] <= 0.5 and given[1] <= 0.06


def test_why_waits_for_a_dripping_node_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many gangs and questions there are: what its first answer owed is not waited for again."""
    nodes = answers._nodes()
    tries: list[str] = []
    sound = {name: one.sound for name, one in answers.every_verb().items()}
    together = threading.Lock()

    class Dripping(answers.Node):
        def run(self, command: Any, **_: Any) -> CommandResult:
            with together:
                tries.append(self.spec.name)
            raise Unreachable("did not end within 15 s", where=self.spec.name, fix="look")

    def opener(spec: NodeSpec, _: float) -> Any:
        kind = Dripping if spec.name == answers.ODD else answers.Node
        return kind(spec, sound)

    monkeypatch.setattr("orchestrator.remote.fleet.connect", opener)
    inventory = Inventory(path="inventory.yml", gangs=(GangSpec(name="gang0", nodes=nodes),))
    for way in (functools.partial(why, events=True), history):
        tries.clear()
        (account,) = way(inventory)
        assert account.failures.keys() == {answers.ODD}
        assert tries == [answers.ODD]
