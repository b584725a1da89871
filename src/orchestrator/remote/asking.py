"""Verbs whose answers several steps read: the lock's, what was staged, and HTTP requests made from a node."""

from __future__ import annotations

from orchestrator.model.deadlines import ANSWER_S
from orchestrator.model.errors import NodeError
from orchestrator.protocol.verbs import (
    AskAnswer,
    AskRequest,
    GangRequest,
    HttpAnswer,
    LockAnswer,
    LockRequest,
    StagedAnswer,
)
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session


def ask_lock(session: Session, request: LockRequest) -> LockAnswer:
    """Raises as `ask` does: an answer of other types is that node's failure."""
    return ask(session, "lock", request, LockAnswer, deadline_s=ANSWER_S)


def ask_staged(session: Session, request: GangRequest) -> StagedAnswer:
    """Raises like `ask`: NodeRefusal of the kind `no-run` if nothing was ever staged."""
    return ask(session, "staged", request, StagedAnswer, deadline_s=ANSWER_S)


def ask_http(session: Session, request: AskRequest, *, deadline_s: float) -> tuple[HttpAnswer, ...]:
    """One answer for each of the request's `asks`. Raises as `ask` does."""
    answers = ask(session, "ask", request, AskAnswer, deadline_s=deadline_s).answers
    if len(answers) != len(request.asks):
        raise NodeError(
            f"it answered {len(answers)} of {len(request.asks)} HTTP requests",
            where=session.spec.name,
            fix="run the command again; if it persists, check the disk and the memory of that node",
        )
    return answers
