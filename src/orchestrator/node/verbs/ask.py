"""Verb `ask`: HTTP requests that are made from here, since a controller need not reach what a node reaches."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from functools import partial
from typing import Any

from orchestrator.node import files
from orchestrator.node.agent import staged_run
from orchestrator.node.network import http_connection
from orchestrator.node.requests import request_of
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.verbs import AskAnswer, AskRequest, HttpAnswer, HttpRequest

LONGEST_BODY = 4 << 20
MOST_AT_ONCE = 256
"""Threads that ask at the same time."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """In the order of `asks`.

    With `gang`, each request carries the API key that is staged for that gang's engine: it never leaves the node.
    """
    asked = request_of(AskRequest, request)
    state = files.state_dir(asked.state_dir)
    authorization = ""
    if asked.gang:
        authorization = staged_run.kept_secrets(files.gang_dir(state, asked.gang)).authorization
    service = _StagedService()
    if any(ask.url.startswith("/") for ask in asked.asks):
        service = _service_of(state, asked.gang)
    one_by_one = partial(_one, authorization=authorization, service=service)
    if not asked.at_once:
        return AskAnswer(answers=tuple(map(one_by_one, asked.asks))).as_json()
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=min(len(asked.asks), MOST_AT_ONCE)) as side_by_side:
        return AskAnswer(answers=tuple(side_by_side.map(one_by_one, asked.asks))).as_json()


@dataclass(frozen=True, slots=True)
class _StagedService:
    """Where a gang serves on this node, '' for nowhere; certificate: path of the one that an https URL accepts."""

    url: str = ""
    certificate: str = ""


def _service_of(state: str, gang: str) -> _StagedService:
    """As its newest run was staged."""
    folder = files.current_run(state, gang)
    run = staged_run.staged_in(folder) if folder else None
    if run is None or run.service is None:
        return _StagedService()
    return _StagedService(run.service.url.rstrip("/"), run.secret_file(run.service.certificate))


def _one(ask: HttpRequest, authorization: str, service: _StagedService) -> HttpAnswer:
    """Raises DeployError for what is no URL of a web server; a refused connection is an answer."""
    headers = {"Content-Type": "application/json"} if ask.body is not None else {}
    if ask.authorization or authorization:
        headers["Authorization"] = ask.authorization or authorization
    url, trusted = ask.url, ""
    if ask.url.startswith("/"):
        url, trusted = f"{service.url}{ask.url}", service.certificate
        if not service.url:
            return HttpAnswer(error="nothing was started there that serves")
    try:
        status, body = http_connection.ask(
            ask.method, url, ask.body, headers, ask.timeout_s, certificate=trusted, longest=LONGEST_BODY
        )
    except (OSError, http.client.HTTPException) as error:
        return HttpAnswer(error=f"{type(error).__name__}: {error}")
    except ValueError:
        raise DeployError(f"not an HTTP URL: {ask.url!r}", where="request", fix="", kind="bad-request") from None
    return HttpAnswer(status=status, body=body.decode("utf-8", "replace"))
