"""A node with an endless answer: only that node fails, within a memory limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.model.errors import NodeError
from orchestrator.remote import session
from orchestrator.remote.ssh_session import SshConversation, SshSession, open_session

from .conftest import Sshd

MOST = 1 << 20
pytestmark = pytest.mark.processes


@pytest.fixture
def node(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshSession]:
    monkeypatch.setattr(session, "MOST_OUTPUT", MOST)
    opened = open_session(sshd.spec(), deadline_s=20)
    yield opened
    opened.close()


@pytest.mark.parametrize("stream", ["", ">&2"])
def test_a_command_that_writes_without_an_end_is_the_nodes_failure(node: SshSession, stream: str) -> None:
    with pytest.raises(NodeError, match="wrote more than 1 MB"):
        node.run(f"exec cat /dev/zero {stream}", deadline_s=60)
    assert node.run("echo still there", deadline_s=20).out == b"still there\n"


def test_a_line_without_an_end_is_the_nodes_failure(node: SshSession) -> None:
    talk = SshConversation(node, "read line; exec tr '\\0' x < /dev/zero")
    with pytest.raises(NodeError, match="wrote more than 1 MB"):
        talk.ask(b"report", deadline_s=60)
    assert node.run("echo still there", deadline_s=20).out == b"still there\n"


def test_two_answers_at_once_are_told_one_after_the_other(node: SshSession) -> None:
    talk = SshConversation(node, "read line; echo one; echo two; read line; echo three; read line")
    answers = [talk.ask(b"x", deadline_s=20) for _ in range(3)]
    assert answers == [b"one", b"two", b"three"]
