"""Invalid answers of a node count as that node's failure, beside the others' answers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.reference_cluster import gang

from orchestrator.model.errors import NodeError
from orchestrator.protocol.verbs import AskRequest, HttpAnswer, HttpRequest, LockRequest
from orchestrator.remote import asking, node_app

ODD: tuple[Any, ...] = (
    None, [], "yes", 7, {}, {"answers": None}, {"answers": [None]}, {"answers": [{"status": "200"}]}, {"answers": []},
    {"answers": [{"status": 200, "body": 5}]}, {"answers": [{"status": 200}] * 2},
)  # fmt: skip


def answering(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(node_app, "call", lambda *_, **__: answer)


class Here:
    """A session that is never used."""

    spec = gang().leader


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_an_odd_answer_to_an_http_request_is_the_nodes_failure(monkeypatch: pytest.MonkeyPatch, odd: Any) -> None:
    answering(monkeypatch, odd)
    with pytest.raises(NodeError) as failure:
        asking.ask_http(Here(), AskRequest(asks=(HttpRequest(url="http://x"),)), deadline_s=1.0)  # type: ignore[arg-type]
    assert failure.value.where == "node0"


@pytest.mark.parametrize(
    "odd",
    [None, [], "yes", {"mine": "no"}, {"mine": None}, {"held": "anna"}, {"held": {"token": "t", "age_s": "long ago"}},
     {"held": {"token": ["t"]}}, {"held": {"token": "t", "pid": "1"}}],
    ids=repr,
)  # fmt: skip
def test_an_odd_answer_about_a_lock_is_the_nodes_failure(monkeypatch: pytest.MonkeyPatch, odd: Any) -> None:
    answering(monkeypatch, odd)
    with pytest.raises(NodeError) as failure:
        asking.ask_lock(Here(), LockRequest(op="show"))  # type: ignore[arg-type]
    assert failure.value.where == "node0"


def test_a_right_answer_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"answers": [{"status": 200, "body": "ok"}, {"error": "refused"}], "now": 1.5})
    asked = asking.ask_http(Here(), AskRequest(asks=(HttpRequest(url="http://x"),) * 2), deadline_s=1.0)  # type: ignore[arg-type]
    assert asked == (HttpAnswer(status=200, body="ok"), HttpAnswer(error="refused"))
    answering(monkeypatch, {"held": {"token": "t", "who": "anna", "age_s": 3}, "mine": False})
    held = asking.ask_lock(Here(), LockRequest(op="show")).held  # type: ignore[arg-type]
    assert held is not None and held.who == "anna"
