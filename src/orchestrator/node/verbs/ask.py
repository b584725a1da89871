"""Verb `ask`: HTTP requests made from this node, since a controller need not reach what a node reaches."""

from __future__ import annotations

import http.client
import time
from typing import Any
from urllib.parse import urlsplit

from orchestrator.node import files
from orchestrator.node.agent import secret_files
from orchestrator.node.failure import Failure

LONGEST_BODY = 4 << 20


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"answers": [{"status", "body"} or {"error"}]}, in the order of `asks`: {method, url, body, timeout_s}.

    With `gang`, each request carries the API key that is staged for that gang's engine: it never leaves the node.
    """
    asks = request.get("asks")
    if not isinstance(asks, list) or not all(isinstance(ask, dict) for ask in asks):
        raise Failure("bad-request", "ask needs a list of requests", "request")
    authorization = _authorization(request)
    return {"answers": [_ask(ask, authorization) for ask in asks], "now": time.time()}


def _authorization(request: dict[str, Any]) -> str:
    if not request.get("gang"):
        return ""
    return secret_files.kept(files.gang_dir(files.state_dir(request), request["gang"])).authorization


def _ask(ask: dict[str, Any], authorization: str) -> dict[str, Any]:
    parts = urlsplit(str(ask.get("url")))
    if parts.scheme != "http" or not parts.hostname:
        raise Failure("bad-request", f"not an HTTP URL: {ask.get('url')!r}", "request")
    body = ask.get("body")
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=float(ask.get("timeout_s") or 5))
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if authorization:
            headers["Authorization"] = authorization
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(str(ask.get("method") or "GET"), path or "/", body, headers)
        answered = connection.getresponse()
        return {"status": answered.status, "body": answered.read(LONGEST_BODY).decode("utf-8", "replace")}
    except (OSError, http.client.HTTPException) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        connection.close()
