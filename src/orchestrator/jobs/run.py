"""Programs that run on a gang's nodes, in the engine's place or beside it (jobs/on_node/job.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from orchestrator.gang.steps.staging import staging_requests
from orchestrator.gang.steps.status.reports import see, where
from orchestrator.jobs.messages import RESULTS, JobLine, JobOrder, JobRequest
from orchestrator.loading.resources import template
from orchestrator.model.errors import InputError, NodeError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.planning.steps.plan import PlanRequest, PlanResult, launch_scripts, make_plan
from orchestrator.protocol.message import Message
from orchestrator.protocol.staging import Ports, StagingRequest, Watch
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import messages
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
    inventory: Inventory, fleet: Fleet, gang: GangSpec, asked: PlanRequest, *, run_id: str
) -> tuple[PlanResult, Mapping[str, StagingRequest]]:
    """A plan for one gang, and by node what would be staged for it."""
    planned = make_plan(inventory, asked, fleet)
    plan = planned.plan
    requests = staging_requests(gang, plan.gangs[0], launch_scripts(plan), plan_id=plan.plan_id, run_id=run_id, key="")
    return planned, requests


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
    node, told = session.spec.name, False
    request = JobRequest(**where(session.spec, gang), token=token, order=order)
    with closing(messages(session, "job", request, kind)) as lines:
        for line in lines:
            if order.run is not None and line.ended > 0 and not told:
                raise _never_began(order.run, order, node, line)
            if take(line) or line.ended >= 0:
                return
            told = told or line != kind(log=line.log)
    raise NodeError(f"its part of the {order.noun} ended without a result", where=node,
                    fix="run the same command again; if it persists, check the memory of that node")  # fmt: skip


def _never_began(run: StagingRequest, order: JobOrder, node: str, line: JobLine) -> NodeError:
    place = f"{node}: {run.container.image if run.container else run.venv_python}"
    if (lacks := _LACKS.search(line.what)) is not None:
        what = f"the stack's environment has no {lacks[1]}: {line.what}"
        return NodeError(what, where=place, fix=f"install the stack {run.stack} with `l40s-deploy prepare`")
    what = f"the {order.noun} exited with status {line.ended}: {line.what}"
    return NodeError(what, where=place, fix="l40s-deploy doctor")
