"""The leader link between two releases: made-up ones, and this one."""

from __future__ import annotations

import json
import socket
import time

import pytest
from tests.support.gang import linked_run
from tests.support.waiting import until

from orchestrator import __version__
from orchestrator.node.agent.run import Run
from orchestrator.node.network import wire
from orchestrator.node.network.link import Hub, Spoke
from orchestrator.protocol.link import FORMAT, Challenge, Hello
from orchestrator.protocol.message import side

KEY = b"k" * 32


@pytest.fixture
def run() -> Run:
    return linked_run("b")


@pytest.mark.parametrize(
    ("format", "release", "words"),
    [
        (2, "7.1.0", f"is l40s-deploy 7.1.0, newer than this one ({__version__}): their link formats differ (2 and 1)"),
        (0, "0.0.1", f"is l40s-deploy 0.0.1, older than this one ({__version__}): their link formats differ (0 and 1)"),
        (3, "", f"is of another release than this one ({__version__}): their link formats differ (3 and 1)"),
    ],
    ids=["newer", "older", "unknown"],
)
def test_a_member_says_which_side_is_older(run: Run, format: int, release: str, words: str) -> None:
    challenge = Challenge(format=format, nonce="n", release=release).as_json() | {"colour": "a later release's"}
    spoke = Spoke(run, KEY, "a")
    with socket.create_server((run.leader.address, run.leader.port)) as leader:
        until(lambda: spoke.step(time.monotonic()) == [] and spoke.reached, 5.0, "a connection")
        connection, _ = leader.accept()
        with connection:
            connection.sendall(json.dumps(challenge).encode() + b"\n")
            until(lambda: spoke.step(time.monotonic()) == [] and spoke.trouble, 5.0, "its words")
    assert (spoke.misfit, spoke.trouble) == (words, f"it {words}")
    spoke.close()


@pytest.mark.parametrize(("format", "joins"), [(FORMAT, True), (FORMAT + 1, False), (FORMAT - 1, False)])
def test_a_member_that_can_not_be_followed_does_not_get_in(run: Run, format: int, joins: bool) -> None:
    hub = Hub(run, KEY)
    hub.listen()
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
    hub.close()


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
    assert side(theirs, ours) == words
