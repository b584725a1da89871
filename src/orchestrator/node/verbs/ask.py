"""Verb `ask`: HTTP requests made from this node, since a controller need not reach what a node reaches."""

from __future__ import annotations

import http.client
from collections.abc import Iterable
from typing import Any

from orchestrator.node import files
from orchestrator.node.agent import secret_files
from orchestrator.node.failure import Failure
from orchestrator.node.network import http_connection
from orchestrator.node.requests import request_of
from orchestrator.protocol.verbs import AskAnswer, AskRequest, GangRequest, HttpAnswer, HttpRequest

LONGEST_BODY = 4 << 20


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """In the order of `asks`.

    With `gang`, each request carries the API key that is staged for that gang's engine: it never leaves the node.
    """
    asked = request_of(AskRequest, request)
    return AskAnswer(answers=answers(asked, asked.asks)).as_json()


def answers(asked: GangRequest, asks: Iterable[HttpRequest]) -> tuple[HttpAnswer, ...]:
    """As `answer`, for any request that names a gang."""
    gang_dir = files.gang_dir(files.state_dir(asked.state_dir), asked.gang) if asked.gang else ""
    authorization = secret_files.kept(gang_dir).authorization if gang_dir else ""
    return tuple(_one(ask, authorization, gang_dir) for ask in asks)


def _one(ask: HttpRequest, authorization: str, gang_dir: str) -> HttpAnswer:
    """Raises Failure for what is no URL of a web server; a refused connection is an answer."""
    headers = {"Content-Type": "application/json"} if ask.body is not None else {}
    if authorization:
        headers["Authorization"] = authorization
    trusted = secret_files.path(gang_dir, ask.certificate)
    try:
        status, body = http_connection.ask(
            ask.method, ask.url, ask.body, headers, ask.timeout_s, certificate=trusted, longest=LONGEST_BODY
        )
    except (OSError, http.client.HTTPException) as error:
        return HttpAnswer(error=f"{type(error).__name__}: {error}")
    except ValueError:
        raise Failure("bad-request", f"not an HTTP URL: {ask.url!r}", "request") from None
    return HttpAnswer(status=status, body=body.decode("utf-8", "replace"))
