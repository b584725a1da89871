"""Programs that run on a gang's nodes, in the engine's place or beside it (jobs/on_node/job.py).

Beside it they measure: requests of others would be measured with ours, and change the batch that ours are in.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from orchestrator.engines.registry import load_paths
from orchestrator.engines.serving import finished_requests
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.router.draining import requests_left
from orchestrator.gang.steps.staging import staging_requests
from orchestrator.gang.steps.status.reports import refuse_elsewhere, request_keys, see
from orchestrator.gang.view import GangView
from orchestrator.jobs.messages import RESULTS, JobLine, JobOrder, JobRequest
from orchestrator.loading.resources import template
from orchestrator.model.advice import start_with_a_model
from orchestrator.model.deadlines import ANSWER_S, KILL_S
from orchestrator.model.inventory import GangSpec
from orchestrator.planning.steps.plan import PlanRequest, PlanResult, launch_scripts, make_plan
from orchestrator.protocol.errors import Disturbed, InputError, NodeError
from orchestrator.protocol.message import Message
from orchestrator.protocol.staging import Ports, StagingRequest, Watch
from orchestrator.protocol.verbs import AskRequest, HttpAnswer, HttpRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import StreamLimit, ask_http, messages
from orchestrator.remote.session import Session

L = TypeVar("L", bound=JobLine)
NO_PORTS = Ports()
_ORDER = "order.json"
_LACKS = re.compile(r"No module named '?([A-Za-z_][A-Za-z0-9_]*)")


def refuse_running(fleet: Fleet, gang: GangSpec, *, why: str, fix: str) -> None:
    """Raises InputError where an engine of the gang runs, and the failure of a node that does not answer."""
    (view,) = see(fleet, [gang])
    for node in view.unreachable:
        if node.error is not None:
            raise node.error
    if view.running:
        raise InputError(f"it is {view.state.value}: {why}", where=f"gang {gang.name}", fix=fix)


def planned_requests(
    operation: Operation, gang: GangSpec, asked: PlanRequest, *, run_id: str
) -> tuple[PlanResult, Mapping[str, StagingRequest]]:
    """A plan for one gang, and by node what would be staged for it."""
    planned = make_plan(operation.inventory, asked, operation.fleet)
    plan = planned.plan
    return planned, staging_requests(gang, plan.gangs[0], launch_scripts(plan), plan_id=plan.plan_id, run_id=run_id)


def in_place_of(engine: StagingRequest, *, ports: Ports = NO_PORTS) -> StagingRequest:
    """The engine's user, rights and environment, without what only an engine needs. ports: that must be free."""
    return replace(engine, secrets=None, canary=None, watch=Watch(), launch_script="", key="", ports=ports)


def in_its_place(
    name: str, noun: str, engine: StagingRequest, said: Message, *, deadline_s: float, beside: str, too_long: str
) -> JobOrder:
    """The order to run the template of this name; said: what it reads."""
    return JobOrder(
        word=name.removesuffix(".py"),
        noun=noun,
        run=engine,
        files={name: template(name), _ORDER: json.dumps(said.as_json())},
        command=(name, RESULTS, _ORDER),
        deadline_s=deadline_s,
        beside=beside,
        too_long=too_long,
    )


def follow(
    session: Session, gang: str, order: JobOrder, kind: type[L], take: Callable[[L], bool | None], token: str = ""
) -> None:
    """Run it on one node. take: is given each line, and says whether that is enough; the node then ends the program.

    Raises NodeError where a program in the engine's place ended without a word of its own, or the node's application
    without its end.
    """
    node, announced = session.spec.name, False
    request = JobRequest(**request_keys(session.spec, gang), token=token, order=order)
    limit = StreamLimit(total_s=order.deadline_s + KILL_S)
    with closing(messages(session, "job", request, kind, limit)) as lines:
        for line in lines:
            if order.run is not None and line.ended > 0 and not announced:
                raise _never_began(order.run, order, node, line)
            if take(line) or line.ended >= 0:
                return
            announced = announced or line != kind(log=line.log)
    raise NodeError(
        f"its part of the {order.noun} ended without a result",
        where=node,
        fix="run the same command again; if it persists, check the memory of that node",
    )


def _never_began(run: StagingRequest, order: JobOrder, node: str, line: JobLine) -> NodeError:
    place = f"{node}: {run.container.image if run.container else run.venv_python}"
    if (lacks := _LACKS.search(line.what)) is not None:
        what = f"the stack's environment has no {lacks[1]}: {line.what}"
        return NodeError(what, where=place, fix=f"install the stack {run.stack} with `l40s-deploy prepare`")
    what = f"the {order.noun} exited with status {line.ended}: {line.what}"
    return NodeError(what, where=place, fix="l40s-deploy doctor")


QUIET_S = 5.0
LOOK_S = 0.2
WARMING, PROBE_S = 2, 4.0
"""Requests that a client sends before it measures, at most, and how often an agent or a router may probe the engine by
generating a token (an agent does every 5 s): SGLang does not count those of /health_generate (io_struct.py,
log_metrics), but may count others."""


def serving_view(fleet: Fleet, gang: GangSpec, *, why: str) -> GangView:
    """A gang that serves. Raises InputError for any other; RunsElsewhere where it has another name there, or place.

    why: what is in vain then
    """
    (view,) = see(fleet, [gang])
    if not view.serves:
        refuse_elsewhere([view])
        raise InputError(
            f"it is {view.state.value} and serves no requests, so {why}",
            where=f"gang {gang.name}",
            fix=f"check `l40s-deploy status`; {start_with_a_model(gang.name)}",
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


def disturbed(gang: GangSpec, what: str) -> Disturbed:
    """A run that others' requests have slowed down."""
    return Disturbed(
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
    request = AskRequest(**request_keys(leader, gang.name), asks=asks)
    answered = fleet.on_every(lambda session: ask_http(session, request, deadline_s=ANSWER_S), only=[leader.name])
    return answered.all()[leader.name]
