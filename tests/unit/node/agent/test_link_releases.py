"""The leader link between two releases: the one in tests/recorded, made-up ones, and this one."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.linked_run import linked_run
from tests.support.recorded_release import APPLICATION
from tests.support.waiting import until

from orchestrator import __version__
from orchestrator.node.agent.run import Run
from orchestrator.node.network import wire
from orchestrator.node.network.link import Hub, Spoke
from orchestrator.node.network.link_events import MessageReceived
from orchestrator.protocol.link import FORMAT, Challenge, Hello, Pulse, Stop, from_leader, from_member
from orchestrator.protocol.message import side
from orchestrator.protocol.report import AgentState

KEY = b"k" * 32
OLD = """
import json, sys, time
from orchestrator.node.link import Hub, Joined, Said, Spoke
from orchestrator.node.run import Run
run = Run(folder="/nowhere", run_id="r1", gang="g", node=sys.argv[1], node_rank="ab".index(sys.argv[1]), nnodes=2,
          members=("a", "b"), leader_address="127.0.0.1", leader_port=int(sys.argv[2]))
ours = Hub(run, b"k" * 32) if run.leads else Spoke(run, b"k" * 32, "a")
if run.leads:
    ours.listen()
end = time.monotonic() + 30
while time.monotonic() < end:
    for event in ours.step(time.monotonic()):
        if isinstance(event, Joined):
            ours.send({"type": "pulse", "state": "armed"} if run.leads else {"type": "stop", "now": True})
        if isinstance(event, Said):
            print(json.dumps(event.message), flush=True)
            ours.close()
            sys.exit()
    time.sleep(0.01)
"""
"""One side of the link by release 0.1.0: it sends one message, prints the first that it receives, and ends."""


@pytest.fixture
def run() -> Run:
    return linked_run("b")


@contextlib.contextmanager
def old(node: str, run: Run) -> Iterator[subprocess.Popen[bytes]]:
    program = f"import sys; sys.path.insert(0, {str(APPLICATION)!r})\n{OLD}"
    command = [sys.executable, "-EsS", "-c", program, node, str(run.leader.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(ours: Hub | Spoke) -> list[MessageReceived]:
    """The first message from the other side."""
    found: list[MessageReceived] = []

    def step() -> bool:
        found.extend(event for event in ours.step(time.monotonic()) if isinstance(event, MessageReceived))
        return bool(found)

    until(step, 20.0, "a message")
    return found


def told(process: subprocess.Popen[bytes]) -> Any:
    out, _ = process.communicate(timeout=20)
    return json.loads(out)


@pytest.mark.processes
def test_a_member_of_the_release_before_talks_to_a_leader_of_this_one(run: Run) -> None:
    hub = Hub(run, KEY)
    hub.listen()
    with old("b", run) as process:
        (said,) = heard(hub)
        assert from_member(said.message) == Stop(now=True)
        hub.send(Pulse(state=AgentState.ARMED))
        assert told(process) == {"type": "pulse", "state": "armed"}
    hub.close()


@pytest.mark.processes
def test_a_leader_of_the_release_before_talks_to_a_member_of_this_one(run: Run) -> None:
    spoke = Spoke(run, KEY, "a")
    with old("a", run) as process:
        (said,) = heard(spoke)
        assert from_leader(said.message) == Pulse(state=AgentState.ARMED)
        spoke.send(Stop(now=True))
        assert told(process) == {"type": "stop", "now": True}
    spoke.close()


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
