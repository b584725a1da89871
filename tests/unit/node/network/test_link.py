"""The leader link: which nodes and releases are admitted, which are not, and the meaning of a closed connection."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.support.gang import linked_run
from tests.support.waiting import until

from orchestrator import __version__
from orchestrator.node.agent.membership import Event, LinkClosed, LinkOpened, Message, MessageReceived
from orchestrator.node.agent.staged_run import Run
from orchestrator.node.network import wire
from orchestrator.node.network.link import MOST_STRANGERS, Hub, Spoke
from orchestrator.protocol.link import FORMAT, Challenge, Ended, Go, Hello, Stop
from orchestrator.protocol.message import side as compared
from orchestrator.protocol.report import AgentState

KEY = b"k" * 32


@pytest.fixture
def run() -> Run:
    return linked_run("b")


@pytest.fixture
def hub(run: Run) -> Iterator[Hub]:
    made = Hub(run, KEY)
    made.listen()
    yield made
    made.close()


@pytest.fixture
def spoke(run: Run) -> Iterator[Spoke]:
    made = Spoke(run, KEY, "a")
    yield made
    made.close()


def turn(*sides: Hub | Spoke, until: Any) -> list[Event]:
    """Let both sides step until a condition of the events is true."""
    events: list[Event] = []
    end = time.monotonic() + 5.0
    while not until(events):
        assert time.monotonic() < end, events
        for side in sides:
            events += side.step(time.monotonic())
        time.sleep(0.005)
    return events


def joined_twice(events: list[Event]) -> bool:
    return sum(isinstance(event, LinkOpened) for event in events) == 2


def test_both_sides_prove_the_key_and_talk(hub: Hub, spoke: Spoke) -> None:
    turn(hub, spoke, until=joined_twice)
    hub.send(Go())
    spoke.send(Stop(now=True))
    events = turn(hub, spoke, until=lambda events: len(events) == 2)
    assert MessageReceived("a", Go().as_json()) in events
    assert MessageReceived("b", Stop(now=True).as_json()) in events
    spoke.close()
    (left,) = turn(hub, until=lambda events: events)
    assert isinstance(left, LinkClosed) and left.broken


@pytest.mark.parametrize(("node", "key"), [("b", b"x" * 32), ("stranger", KEY)], ids=["another key", "no member"])
def test_who_proves_nothing_does_not_get_in(run: Run, hub: Hub, node: str, key: bytes) -> None:
    spoke = Spoke(replace(run, node=node), key, "a")
    events = turn(hub, spoke, until=lambda _: spoke.trouble)
    assert events == [] and hub.joined == frozenset()
    spoke.close()


def test_a_leader_without_the_key_is_not_obeyed(run: Run, spoke: Spoke) -> None:
    false = Hub(run, b"x" * 32)
    false.listen()
    false._admit = _welcome  # type: ignore[method-assign]
    events = turn(false, spoke, until=lambda _: "does not have the run's key" in spoke.trouble)
    assert not spoke.joined
    assert not any(isinstance(event, LinkOpened) and event.node == "a" for event in events)
    false.close()


def _welcome(stranger: Any, message: Message) -> str:
    stranger.wire.send({"type": "welcome", "proof": "00" * 32})
    return str(message["node"])


def test_a_silent_stranger_is_dropped(hub: Hub, run: Run) -> None:
    with socket.create_connection((run.leader.address, run.leader.port)) as stranger:
        stranger.settimeout(5)
        hub.step(time.monotonic())
        assert json.loads(stranger.recv(4096))["type"] == "challenge"
        hub.step(time.monotonic() + 6)
        assert stranger.recv(4096) == b""


JUNK = {
    "empty": b"\n",
    "blank": b" \n",
    "http": b"GET / HTTP/1.1\r\n",
    "long": b"x" * 1100,
    "endless": b"x" * 300_000,
    "bytes": b"\x00\xff" * 50 + b"\n",
    "no-type": b'{"type": 7}\n',
    "no-object": b"[1]\n",
    "nested": b"[" * 200_000 + b"\n",
    "surrogate-proof": b'{"type": "hello", "node": "b", "nonce": "n", "proof": "\\ud800"}\n',
    "surrogate-nonce": b'{"type": "hello", "node": "b", "nonce": "\\ud800", "proof": "00"}\n',
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_junk_gets_nobody_in_and_breaks_nothing(hub: Hub, run: Run, junk: bytes) -> None:
    with socket.create_connection((run.leader.address, run.leader.port)) as stranger:
        stranger.sendall(junk)
        assert closed(stranger, hub)
    assert hub.joined == frozenset()


def closed(stranger: socket.socket, hub: Hub) -> bool:
    """The hub has closed this connection, within a few of its steps."""
    stranger.settimeout(0.01)
    for _ in range(20):
        assert hub.step(time.monotonic()) == []
        with contextlib.suppress(TimeoutError):
            while told(stranger) != b"closed":
                pass
            return True
    return False


def told(stranger: socket.socket) -> bytes:
    """The data received, or that the connection is closed."""
    try:
        return stranger.recv(4096) or b"closed"
    except ConnectionError:
        return b"closed"


def test_of_a_strangers_flood_one_line_is_read(hub: Hub, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    monkeypatch.setattr(wire, "_understood", read.append)
    with socket.create_connection((run.leader.address, run.leader.port)) as stranger:
        stranger.sendall(b"\n" * 200_000)
        assert closed(stranger, hub)
    assert read == [b""]


def test_one_address_has_few_connections_and_a_member_gets_in_however_many_wait(
    run: Run, hub: Hub, spoke: Spoke
) -> None:
    crowd = []
    for number in range(120):
        source = (f"127.0.1.{1 + number // 10}", 0)
        crowd.append(socket.create_connection((run.leader.address, run.leader.port), timeout=5, source_address=source))
        hub.step(time.monotonic())
    turn(hub, until=lambda _: len(hub._strangers) == MOST_STRANGERS)
    assert all(sum(other.address == one.address for other in hub._strangers) <= 8 for one in hub._strangers)
    now = time.monotonic()
    events: list[Event] = []
    while not joined_twice(events):  # long before the crowd is dropped for its silence
        assert time.monotonic() - now < 4.0
        events += [*hub.step(now), *spoke.step(time.monotonic())]
    for one in crowd:
        one.close()


def test_a_members_flood_is_handed_over_in_portions(hub: Hub, spoke: Spoke) -> None:
    turn(hub, spoke, until=joined_twice)
    for number in range(5000):
        spoke.send(Ended(state=AgentState.STOPPED, left_behind=(number,)))
    seen: list[Event] = []
    while len(seen) < 5000:
        portion = hub.step(time.monotonic())
        assert len(portion) <= wire.MOST_LINES
        seen += portion
        spoke.step(time.monotonic())
    assert [event.message["left_behind"][0] for event in seen if isinstance(event, MessageReceived)] == list(
        range(5000)
    )


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EPROTO, errno.EHOSTUNREACH])
def test_a_connection_that_can_not_be_accepted_ends_nothing(hub: Hub, number: int) -> None:
    class Refusing:
        def accept(self) -> None:
            raise OSError(number, os.strerror(number))

    listener, hub._listener = hub._listener, Refusing()  # type: ignore[assignment]
    assert hub.step(time.monotonic()) == []
    hub._listener = listener


def test_a_port_is_called_closed_when_it_refused_twice_a_second_apart(run: Run, spoke: Spoke) -> None:
    assert [refusals(spoke, at) for at in (100.0, 100.5, 100.9, 101.1)] == [False, False, False, True]
    hub = Hub(run, KEY)
    hub.listen()
    assert not refusals(spoke, 101.5)
    assert spoke.reached
    hub.close()


def refusals(spoke: Spoke, at: float) -> bool:
    """Whether the port counts as closed after one more attempt."""
    for _ in range(2):
        spoke.step(at)
    return spoke.refused


def test_the_leader_is_waited_for(run: Run, spoke: Spoke) -> None:
    turn(spoke, until=lambda _: spoke.trouble == "ECONNREFUSED")
    assert not spoke.refused
    hub = Hub(run, KEY)
    hub.listen()
    turn(hub, spoke, until=joined_twice)
    hub.close()
    (left,) = turn(spoke, until=lambda events: events)
    assert isinstance(left, LinkClosed) and left.broken


def test_a_member_says_which_side_is_older(run: Run, spoke: Spoke) -> None:
    words = f"is l40s-deploy 7.1.0, newer than this one ({__version__}): their link formats differ (2 and 1)"
    challenge = Challenge(format=2, nonce="n", release="7.1.0").as_json() | {"colour": "a later release's"}
    with socket.create_server((run.leader.address, run.leader.port)) as leader:
        until(lambda: spoke.step(time.monotonic()) == [] and spoke.reached, 5.0, "a connection")
        connection, _ = leader.accept()
        with connection:
            connection.sendall(json.dumps(challenge).encode() + b"\n")
            until(lambda: spoke.step(time.monotonic()) == [] and spoke.trouble, 5.0, "its words")
    assert (spoke.misfit, spoke.trouble) == (words, f"it {words}")


@pytest.mark.parametrize(("format", "joins"), [(FORMAT, True), (FORMAT + 1, False), (FORMAT - 1, False)])
def test_a_member_that_can_not_be_followed_does_not_get_in(run: Run, hub: Hub, format: int, joins: bool) -> None:
    with socket.create_connection((run.leader.address, run.leader.port)) as member:
        member.settimeout(5)
        hub.step(time.monotonic())
        nonce = json.loads(member.recv(4096))["nonce"]
        proof = wire.proof(KEY, "member", run.run_id, "b", nonce, "m")
        hello = Hello(format=format, node="b", run_id=run.run_id, nonce="m", proof=proof, release="7.1.0")
        member.sendall(json.dumps(hello.as_json()).encode() + b"\n")
        until(lambda: hub.step(time.monotonic()) or not hub._strangers, 5.0, "its answer")
        assert hub.joined == (frozenset({"b"}) if joins else frozenset())
        assert (b"welcome" in member.recv(4096)) is joins


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        ("0.3.0", "0.2.0", "l40s-deploy 0.3.0, newer than this one (0.2.0)"),
        ("0.1.0", "0.2.0", "l40s-deploy 0.1.0, older than this one (0.2.0)"),
        ("", "0.2.0", "of another release than this one (0.2.0)"),
        ("0.2.0", "0.2.0", "of another release than this one (0.2.0)"),
        ("9" * 500, "0.2.0", f"l40s-deploy {'9' * 40}, newer than this one (0.2.0)"),
    ],
)
def test_releases_in_words(theirs: str, ours: str, words: str) -> None:
    assert compared(theirs, ours) == words
