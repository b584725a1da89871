"""The machine that the router runs on: its agent's gang of one node, and HTTP requests made there.

Our own machine needs to reach SSH only, so the router is asked on its host.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.model.inventory import GangSpec, RouterSpec
from orchestrator.protocol.verbs import AskRequest, HttpAnswer, HttpRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.workflows.asking import ask_http

GANG = "router"
"""Its name among the gangs on its host."""


def router_gang(spec: RouterSpec) -> GangSpec:
    """The router as a gang of one node."""
    return GangSpec(name=GANG, nodes=(replace(spec.node, gang=GANG),))


def router_ask(spec: RouterSpec, method: str, path: str, body: object = None, *, timeout_s: float) -> HttpRequest:
    """A request to the router's own interface as the verb `ask` takes it."""
    host = spec.node.http_host
    local = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
    url = f"http://[{local}]:{spec.port}{path}" if ":" in local else f"http://{local}:{spec.port}{path}"
    text = None if body is None else json.dumps(body)
    return HttpRequest(method=method, url=url, body=text, timeout_s=timeout_s)


def ask_from(fleet: Fleet, node: str, asks: Sequence[HttpRequest]) -> tuple[HttpAnswer, ...]:
    """HTTP requests made on a node. Raises what the node's answer raises; a refused connection is an answer."""
    deadline_s = sum(ask.timeout_s for ask in asks) + 10.0
    told = fleet.on_every(
        lambda session: ask_http(session, AskRequest(asks=tuple(asks)), deadline_s=deadline_s), only=[node]
    )
    return told.all()[node]
