"""Whether an engine has requests of others: they would be measured with ours, and change the batch that ours are in."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from orchestrator.engines.registry import load_paths
from orchestrator.engines.serving import finished_requests
from orchestrator.gang.steps.router.routing import requests_left
from orchestrator.gang.steps.status.reports import see, where
from orchestrator.gang.view import GangView
from orchestrator.model.deadlines import ANSWER_S
from orchestrator.model.errors import InputError, NodeError
from orchestrator.model.inventory import GangSpec
from orchestrator.protocol.verbs import AskRequest, HttpAnswer, HttpRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask_http

QUIET_S = 5.0
LOOK_S = 0.2
WARMING, PROBE_S = 2, 4.0
"""Requests that a client sends before it measures, at most, and how often an agent or a router may probe the engine by
generating a token (an agent does every 5 s): SGLang does not count those of /health_generate (io_struct.py,
log_metrics), but may count others."""


def serving_view(fleet: Fleet, gang: GangSpec, *, why: str) -> GangView:
    """A gang that serves. Raises InputError for any other. why: what is in vain then"""
    (view,) = see(fleet, [gang])
    if not view.serves:
        raise InputError(
            f"it is {view.state.value} and serves no requests, so {why}",
            where=f"gang {gang.name}",
            fix=f"check `l40s-deploy status`; start it with `l40s-deploy up --model NAME --gang {gang.name}`",
        )
    return view


def refuse_busy(fleet: Fleet, gang: GangSpec, url: str, *, why: str) -> None:
    """Raise InputError where the engine is never idle for a while. One that does not tell is believed.

    why: what is wrong with other requests. The agent's own probe counts as a request while it runs, so that one look is
    not enough.
    """
    until = time.monotonic() + QUIET_S
    while running := _running(fleet, gang, url):
        if time.monotonic() > until:
            raise InputError(
                f"it was never idle for {QUIET_S:.0f} s ({running} requests now), and {why}",
                where=f"gang {gang.name}",
                fix="wait until it is idle, or remove the gang from its router first",
            )
        time.sleep(LOOK_S)


@contextlib.contextmanager
def alone(fleet: Fleet, gang: GangSpec, url: str, *, ours: int, why: str) -> Iterator[None]:
    """A run of `ours` requests. At its end, raise NodeError where the engine has answered more than these and what
    probes may have asked, and InputError where it is not idle."""
    before, began = _finished(fleet, gang, url), time.monotonic()
    yield
    after, seconds = _finished(fleet, gang, url), time.monotonic() - began
    if before is not None and after is not None and after - before - ours > WARMING + seconds / PROBE_S:
        raise disturbed(gang, f"the engine answered {after - before} requests, and {ours} of them were ours")
    refuse_busy(fleet, gang, url, why=f"{why}: the figures are discarded")


def _finished(fleet: Fleet, gang: GangSpec, url: str) -> int | None:
    """Requests that the engine has answered since it started; None where it keeps no count."""
    counts = (finished_requests(answer.body) for answer in _asked(fleet, gang, url) if answer.ok)
    return next((count for count in counts if count is not None), None)


def disturbed(gang: GangSpec, what: str) -> NodeError:
    """A run that others' requests have slowed down."""
    return NodeError(
        f"requests of others ran during the measurement: {what}; the figures are discarded",
        where=f"gang {gang.name}",
        fix="remove the gang from its router or stop its clients, then run `l40s-deploy bench` again",
    )


def _running(fleet: Fleet, gang: GangSpec, url: str) -> int:
    """Requests that the engine has now, by its own word."""
    return requests_left(_asked(fleet, gang, url)) or 0


def _asked(fleet: Fleet, gang: GangSpec, url: str) -> Sequence[HttpAnswer]:
    leader = gang.leader
    asks = tuple(HttpRequest(url=f"{url}{path}") for path in load_paths())
    request = AskRequest(**where(leader, gang.name), asks=asks)
    answered = fleet.on_every(lambda session: ask_http(session, request, deadline_s=ANSWER_S), only=[leader.name])
    return answered.all()[leader.name]
