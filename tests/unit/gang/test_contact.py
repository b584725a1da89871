"""A dead node, a dead link, a stuck agent and a dead sshd, distinguished by two connections to a node."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from orchestrator.gang.contact import Contact, contact, sentence
from orchestrator.model.errors import DeployError, Unreachable
from orchestrator.protocol.report import AgentState, Report

REFUSED = Unreachable("connection refused", where="b", fix="look")


def fellow(name: str, alive: bool = True, **links: str) -> tuple[str, Report]:
    return name, Report(run_id="r", gang="g", node=name, node_rank=0, state=AgentState.READY, alive=alive, links=links)


TABLE: list[tuple[str, DeployError | None, bool, Mapping[str, Report], str]] = [
    ("all is well", None, False, dict([fellow("a", b="heard")]), ""),
    ("nobody else is there", None, False, {}, ""),
    ("only SSH has failed", REFUSED, False, dict([fellow("a", b="heard", c="heard")]), "ssh"),
    ("the node is dead", REFUSED, False, dict([fellow("a", b="silent")]), "node"),
    ("it missed two words", REFUSED, False, dict([fellow("a", b="quiet")]), "node"),
    ("it is quiet and answers", None, False, dict([fellow("a", b="quiet")]), ""),
    ("its connection broke", REFUSED, False, dict([fellow("a", b="lost")]), "node"),
    ("the leader is dead", REFUSED, False, dict([fellow("c", b="silent"), fellow("d", b="lost")]), "node"),
    ("one of them hears it", REFUSED, False, dict([fellow("c", b="silent"), fellow("d", b="heard")]), "ssh"),
    ("it had ended before", REFUSED, False, dict([fellow("a", b="ended")]), "unknown"),
    ("no run was there", REFUSED, False, {}, "unknown"),
    ("the fellow's agent is dead", REFUSED, False, dict([fellow("a", alive=False, b="heard")]), "unknown"),
    ("the link is cut", None, False, dict([fellow("a", b="silent")]), "link"),
    ("the agent is stuck", None, True, dict([fellow("a", b="silent")]), "agent"),
]


@pytest.mark.parametrize(("error", "stuck", "current", "word"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE])
def test_which_way_is_broken(error: DeployError | None, stuck: bool, current: Mapping[str, Report], word: str) -> None:
    found = contact("b", error, current, stuck=stuck)
    assert found.value == word
    said = sentence("b", found, error, current)
    assert bool(said) == bool(word)
    if error is not None:
        assert "connection refused" in said


def test_the_sentences_say_what_is_broken_and_who_knows() -> None:
    current = dict([fellow("a", b="heard")])
    said = sentence("b", Contact.SSH, REFUSED, current)
    assert said == (
        "b can't be reached by SSH (connection refused), but a still hears its agent: only SSH has failed, "
        "the gang is intact"
    )
    heard = dict([fellow("a", b="heard"), fellow("c", b="heard")])
    assert "but a, c still hear its agent" in sentence("b", Contact.SSH, REFUSED, heard)
    silent = dict([fellow("a", b="silent"), fellow("c", b="silent")])
    assert "and a, c do not hear its agent either" in sentence("b", Contact.NODE, REFUSED, silent)
    assert "but a, c do not hear its agent" in sentence("b", Contact.LINK, None, silent)
