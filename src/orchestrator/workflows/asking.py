"""Verbs whose answers several workflows read: the lock's, and HTTP requests made from a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.model.errors import NodeError
from orchestrator.protocol.verbs import AskAnswer, LockAnswer
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session
from orchestrator.workflows.deadlines import ANSWER_S


def ask_lock(session: Session, request: Mapping[str, Any]) -> dict[str, Any]:
    """{"held", "mine", "begun"}. Raises as `ask` does: an answer of other types is that node's failure."""
    return ask(session, "lock", request, LockAnswer, deadline_s=ANSWER_S).as_json()


def ask_http(session: Session, request: Mapping[str, Any], *, deadline_s: float) -> list[Mapping[str, Any]]:
    """{"status", "body"} or {"error"} for each of the request's `asks`. Raises as `ask` does."""
    told = ask(session, "ask", request, AskAnswer, deadline_s=deadline_s).answers
    if len(told) != len(request["asks"]):
        raise NodeError(
            f"it answered {len(told)} of {len(request['asks'])} HTTP requests",
            where=session.spec.name,
            fix="run the command again; if it persists, check the disk and the memory of that node",
        )
    return [{"error": one.error} if one.error else {"status": one.status, "body": one.body} for one in told]
