"""`stack check`: the kernels that a plan will run, on one GPU of each node while the gang is down."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.engines.registry import engine_of
from orchestrator.gang.steps.locks import GangLock, fence
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.up_operation import UpOperation
from orchestrator.jobs.messages import JobOrder
from orchestrator.jobs.run import follow, in_its_place, in_place_of, planned_requests, refuse_running
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.loading.resources import template
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import KERNEL_S, KERNELS_S
from orchestrator.model.gpu_facts import SHARED_MEMORY, facts_of
from orchestrator.model.inventory import GangSpec
from orchestrator.model.per_node import lost_first
from orchestrator.model.topology import Gpu, Topology
from orchestrator.node.engine.gpus import IDLE_BYTES
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import DeployError, NodeError, VerificationDiffers
from orchestrator.protocol.staging import StagingRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session
from orchestrator.tuning.kernels import (
    KernelResult,
    KernelVerdict,
    gravest,
    gravest_of,
    judged,
    kernels_of,
    wrong_words,
)
from orchestrator.tuning.messages import KernelLine, KernelsOrder
from orchestrator.tuning.steps.tuning import ASSUMED_GPU

PROGRAM, HELPER = "kernels.py", "tune.py"
Progress = Callable[[str, int, int], None]
"""(node, kernels judged, of)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedGang:
    """nodes: results by node; lost: nodes that dropped out; real: on GPUs, not in Triton's interpreter"""

    gang: str
    stack: str
    real: bool
    nodes: Mapping[str, tuple[KernelResult, ...]]
    lost: Mapping[str, DeployError]

    @property
    def verdict(self) -> KernelVerdict:
        """The gravest."""
        return gravest(result for results in self.nodes.values() for result in results)


def run_now(
    operation: Operation, plan: PlanRequest, progress: Progress, *, command: str, timeout_s: float
) -> tuple[CheckedGang, ...]:
    """Check gang after gang, each in the place of its engine. timeout_s: for a gang

    Raises InputError where a gang runs, and LockHeld.
    """
    fleet = operation.fleet

    def check_gang(gang: GangSpec) -> CheckedGang:
        fix = f"l40s-deploy down {gang.name}, or check before its next start: `up --check-kernels`"
        refuse_running(fleet, gang, why="its kernels can't be checked beside its engine", fix=fix)
        with GangLock(fleet, gang, command):
            asked = replace(plan, gangs=(gang.name,))
            planned, requests = planned_requests(operation, gang, asked, run_id="kernels")
            return check(fleet, gang, requests, planned.topologies, asked.model, progress, timeout_s=timeout_s)

    return tuple(map(check_gang, chosen_gangs(operation.inventory, plan.gangs)))


def check(
    fleet: Fleet,
    gang: GangSpec,
    requests: Mapping[str, StagingRequest],
    topologies: Mapping[str, Topology],
    model: str,
    progress: Progress,
    *,
    timeout_s: float = KERNELS_S,
    spared: bool = False,
) -> CheckedGang:
    """On the first GPU of every node. requests: as the engine would be staged, by node; spared: an engine of the gang
    may run on others"""
    first, fenced = requests[gang.leader.name], fence(fleet, gang.name)
    stack = load_stack(first.stack)
    orders = {name: _order(request, topologies.get(name), model) for name, request in requests.items()}
    lines_of: dict[str, list[KernelLine]] = {name: [] for name in requests}

    def check_on(session: Session) -> None:
        name = session.spec.name
        request, order, lines = requests[name], orders[name], lines_of[name]

        def take(line: KernelLine) -> None:
            if line.kernel >= 0:
                lines.append(line)
                progress(name, len({answered.kernel for answered in lines if answered.verdict}), len(order.cases))

        follow(
            session, gang.name, replace(_job(gang, request, order, timeout_s), spared=spared), KernelLine, take, fenced
        )

    lost = fleet.on_every(check_on, only=list(requests)).failures
    causes = engine_of(stack).watched.causes
    nodes = {
        name: judged(orders[name].cases, lines, causes, limit=orders[name].shared)
        for name, lines in lines_of.items()
        if name not in lost or lines
    }
    return CheckedGang(gang=gang.name, stack=stack.name, real=first.device == "cuda", nodes=nodes, lost=lost)


def _job(gang: GangSpec, request: StagingRequest, order: KernelsOrder, timeout_s: float) -> JobOrder:
    """The program in the engine's place, on the node's first GPU."""
    job = in_its_place(
        PROGRAM,
        "check of kernels",
        replace(in_place_of(request), gpus=request.gpus[:1], tp_ranks=request.tp_ranks[:1]),
        order,
        deadline_s=timeout_s,
        beside=f"stop it with `l40s-deploy down {gang.name}`",
        too_long="allow more time with --timeout; if it persists, check the GPU with `l40s-deploy doctor`",
    )
    return replace(job, files={**job.files, HELPER: template(HELPER)})


def _order(request: StagingRequest, topology: Topology | None, model: str) -> KernelsOrder:
    """Without a GPU, as for the one that is assumed."""
    gpus = [gpu for gpu in topology.gpus if gpu.index in request.gpus[:1]] if topology is not None else []
    if gpus:
        name = gpus[0].name
    else:
        name = "" if request.device == "cuda" else ASSUMED_GPU
    facts = facts_of(name)
    sm = (gpus[0].sm if gpus else 0) or (facts.sm if facts is not None else 0)
    if request.layout is None:
        raise NodeError("it was planned without a layout", where=request.node, fix="name the model: --model NAME")
    stack, shared = load_stack(request.stack), SHARED_MEMORY.get(sm, 0)
    return KernelsOrder(
        device=request.device,
        sm=sm if shared else 0,
        shared=shared,
        case_s=KERNEL_S,
        cases=kernels_of(load_profile(model), request.layout, engine_of(stack).tuned, gpu=name or ASSUMED_GPU),
    )


def on_idle_gpus(
    requests: Mapping[str, StagingRequest], topologies: Mapping[str, Topology]
) -> dict[str, StagingRequest]:
    """The same of the nodes with a GPU that nobody uses, for that GPU: what serves there loses neither memory nor time
    to it. Without GPUs, of all."""
    idle = {name: _idle(topologies[name]) for name in requests if name in topologies}
    return {
        name: replace(request, gpus=(gpu.index,), gpu_uuids=(gpu.uuid,)) if gpu is not None else request
        for name, request in requests.items()
        if (gpu := idle.get(name)) is not None or request.device != "cuda"
    }


def _idle(topology: Topology) -> Gpu | None:
    there = (gpu for gpu in topology.gpus if gpu.index >= 0 and not (gpu.lost or gpu.processes))
    return next((gpu for gpu in there if gpu.memory_total and gpu.memory_used < IDLE_BYTES), None)


def checked_before(operation: UpOperation, gang: GangSpec, requests: Mapping[str, StagingRequest]) -> None:
    """`up --check-kernels`, between *armed* and *go*: no rank starts where one of the plan's kernels is wrong."""
    operation.watcher.step(gang.name, "trying the plan's kernels in the engine's place")
    model = operation.request.plan.model or next(iter(requests.values())).model
    done = check(operation.fleet, gang, requests, operation.topologies, model, lambda *_: None)
    if done.lost:
        raise lost_first(done.lost)
    what, fix = wrong_words(done.nodes)
    if what:
        raise VerificationDiffers(f"no rank was started: {what}", where=f"gang {gang.name}", fix=fix)
    results = [result for results_of_node in done.nodes.values() for result in results_of_node]
    unknown = sum(result.verdict is KernelVerdict.NOT_RUN for result in results)
    all_of_them = f"`l40s-deploy stack check --model {shlex.quote(model)}` says why"
    more = f"; {unknown} of {len(results)} were not run: {all_of_them}" if unknown else ""
    operation.watcher.step(gang.name, f"{len(results) - unknown} kernels are right{more}")


def check_json(checked: Sequence[CheckedGang]) -> dict[str, Any]:
    """The document of `stack check --json`."""
    return {
        "verdict": gravest_of(gang.verdict for gang in checked).value,
        "nodes": [
            {
                "name": name,
                "gang": gang.gang,
                "stack": gang.stack,
                "stand_in": not gang.real,
                "kernels": [result.as_json() for result in results],
            }
            for gang in checked
            for name, results in gang.nodes.items()
        ],
        "lost": {name: failure.as_json() for gang in checked for name, failure in gang.lost.items()},
    }
