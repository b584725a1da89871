"""Verb `ask`: HTTP requests made from this node, since a controller need not reach what a node reaches."""

from __future__ import annotations

import http.client
from typing import Any
from urllib.parse import urlsplit

from orchestrator.node import files
from orchestrator.node.agent import secret_files
from orchestrator.node.failure import Failure
from orchestrator.node.requests import request_of
from orchestrator.protocol.verbs import AskAnswer, AskRequest, HttpAnswer, HttpRequest

LONGEST_BODY = 4 << 20


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """In the order of `asks`.

    With `gang`, each request carries the API key that is staged for that gang's engine: it never leaves the node.
    """
    asked = request_of(AskRequest, request)
    authorization = _authorization(asked)
    return AskAnswer(answers=tuple(one(ask, authorization) for ask in asked.asks)).as_json()


def _authorization(asked: AskRequest) -> str:
    if not asked.gang:
        return ""
    return secret_files.kept(files.gang_dir(files.state_dir(asked.state_dir), asked.gang)).authorization


def one(ask: HttpRequest, authorization: str) -> HttpAnswer:
    """Raises Failure for what is no HTTP URL; a refused connection is an answer."""
    parts = urlsplit(ask.url)
    if parts.scheme != "http" or not parts.hostname:
        raise Failure("bad-request", f"not an HTTP URL: {ask.url!r}", "request")
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=ask.timeout_s)
    try:
        headers = {"Content-Type": "application/json"} if ask.body is not None else {}
        if authorization:
            headers["Authorization"] = authorization
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(ask.method, path or "/", ask.body, headers)
        answered = connection.getresponse()
        return HttpAnswer(status=answered.status, body=answered.read(LONGEST_BODY).decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        return HttpAnswer(error=f"{type(error).__name__}: {error}")
    finally:
        connection.close()
