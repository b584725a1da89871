"""What a verb would change of what runs, by what the nodes say: `plan --diff`, and `--dry-run`, which is refused in the
words of the verb itself. Takes no lock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.staging import staged_request, staging_requests
from orchestrator.gang.steps.status.reports import refuse_elsewhere, request_keys, see
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.model.plan import GangPlan, Plan
from orchestrator.planning.plan_file import GangDiff, changes
from orchestrator.planning.steps.plan import PlanRequest, launch_scripts, make_plan
from orchestrator.protocol.errors import WithoutFiles
from orchestrator.protocol.staging import StagingRequest
from orchestrator.protocol.verbs import GangRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import NodeRefusal, ask_staged
from orchestrator.remote.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRehearsal:
    """What would be done to one gang, as text; then: the plan that it would run afterwards, '' for none."""

    gang: str
    state: str
    plan_id: str
    then: str
    what: str


def would_stop(fleet: Fleet, specs: Sequence[GangSpec], *, now: bool) -> tuple[GangRehearsal, ...]:
    """Nodes that do not answer are named; they hold nothing up, as they do not hold `down` up."""
    views = see(fleet, specs)
    refuse_elsewhere(views, to_end=True)
    return tuple(would(view, "", _stopping(spec, view, now)) for spec, view in zip(specs, views, strict=True))


def _stopping(spec: GangSpec, view: GangView, now: bool) -> str:
    unknown = {node.name for node in view.nodes if isinstance(node.error, WithoutFiles)}
    lost = {node.name for node in view.unreachable} - unknown
    silent = f"; {', '.join(sorted(lost))} can't be reached" if lost else ""
    if not (view.running or unknown):
        return f"nothing is running{silent}"
    asked = ", ".join(node.name for node in spec.nodes if node.name not in lost)
    return f"would be stopped on {asked}, {'at once' if now else 'once its running requests have ended'}{silent}"


def would(view: GangView, then: str, what: str) -> GangRehearsal:
    """Of one gang as it is. then: the plan that it would run afterwards, '' for none."""
    return GangRehearsal(gang=view.name, state=view.state.value, plan_id=view.plan_id, then=then, what=what)


def plan_and_diff(operation: Operation, request: PlanRequest) -> tuple[Plan, tuple[GangDiff, ...]]:
    """The plan, and what it would change. Raises RunsElsewhere where a gang runs under another name or in another
    place, rather than that nothing was ever started."""
    gangs = chosen_gangs(operation.inventory, request.gangs)
    views = operation.look(gangs)
    refuse_elsewhere(views)
    plan = make_plan(operation.inventory, request, operation.fleet).plan
    return plan, compare(operation.fleet, gangs, plan, views, without=request.without)


def compare(
    fleet: Fleet,
    gangs: Sequence[GangSpec],
    plan: Plan,
    views: Iterable[GangView],
    *,
    without: Collection[str] = (),
) -> tuple[GangDiff, ...]:
    """One difference per gang. views: of these gangs. without: nodes that are left out on purpose.

    Raises the failure of the first node that does not report what was staged."""
    scripts = launch_scripts(plan)
    plans = {gang.name: gang for gang in plan.gangs}
    states = {view.name: view.state.value for view in views}
    diffs = (_compare(fleet, gang, plans[gang.name], plan.plan_id, scripts, states[gang.name]) for gang in gangs)
    return tuple(replace(diff, left=tuple(name for name in diff.left if name not in without)) for diff in diffs)


def _compare(
    fleet: Fleet, gang: GangSpec, plan: GangPlan, plan_id: str, scripts: dict[str, str], state: str
) -> GangDiff:
    was = _staged(fleet, gang.nodes)
    will = staging_requests(gang, plan, scripts, plan_id=plan_id)
    running = next((request.plan_id for request in was.values()), "")
    differences = changes(was, will, {node.name: node.env_public for node in plan.nodes}) if was else ()
    members = dict.fromkeys(name for request in was.values() for name in request.members)
    left = tuple(name for name in members if name not in {node.name for node in gang.machines})
    return GangDiff(name=gang.name, state=state, running=running, changes=differences, left=left)


def _staged(fleet: Fleet, nodes: Iterable[NodeSpec]) -> Mapping[str, StagingRequest]:
    """What was last staged on each node; a node where nothing was ever staged is left out."""

    def read_back(session: Session) -> StagingRequest | None:
        try:
            answer = ask_staged(session, GangRequest(**request_keys(session.spec)))
        except NodeRefusal as refusal:
            if refusal.kind == "no-run":
                return None
            raise
        return staged_request(session.spec, session.spec.gang, answer)

    answers = fleet.on_every(read_back, only={node.name for node in nodes}).all()
    return {name: request for name, request in answers.items() if request is not None}


def diff_json(plan: Plan, diffs: Sequence[GangDiff]) -> dict[str, Any]:
    """The document of `plan --diff --json`."""
    return {
        "plan_id": plan.plan_id,
        "gangs": [
            {
                "name": gang.name,
                "state": gang.state,
                "running_plan_id": gang.running,
                "restart": gang.restart,
                "left_inventory": list(gang.left),
                "changes": [asdict(change) for change in gang.changes],
            }
            for gang in diffs
        ],
    }
