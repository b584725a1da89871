"""`stack check`: the kernels that a plan will run, on one GPU of each node while the gang is down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.engines.registry import engine_of
from orchestrator.gang.steps.locks import GangLock, fence
from orchestrator.jobs.run import follow, in_its_place, in_place_of, planned_requests, refuse_running
from orchestrator.loading.profiles import load_profile
from orchestrator.loading.resources import template
from orchestrator.loading.stacks import load_stack
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import KERNEL_S, KERNELS_S
from orchestrator.model.errors import DeployError, NodeError
from orchestrator.model.gpu_facts import SHARED_MEMORY, facts_of
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.topology import Topology
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.staging import StagingRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session
from orchestrator.tuning.kernels import KernelResult, KernelVerdict, gravest, judged, kernels_of
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
        return gravest(one for results in self.nodes.values() for one in results)


def run_now(
    inventory: Inventory, plan: PlanRequest, progress: Progress, *, command: str, timeout_s: float
) -> tuple[CheckedGang, ...]:
    """Check gang after gang, each in the place of its engine. timeout_s: for a gang

    Raises InputError where a gang runs, and LockHeld.
    """
    gangs = chosen_gangs(inventory, plan.gangs)

    def one(gang: GangSpec) -> CheckedGang:
        fix = f"l40s-deploy down {gang.name}, or check before its next start: `up --check-kernels`"
        refuse_running(fleet, gang, why="its kernels can't be checked beside its engine", fix=fix)
        with GangLock(fleet, gang, command):
            asked = replace(plan, gangs=(gang.name,))
            planned, requests = planned_requests(inventory, fleet, gang, asked, run_id="kernels")
            return check(fleet, gang, requests, planned.topologies, asked.model, progress, timeout_s=timeout_s)

    with Fleet([node for gang in gangs for node in gang.nodes]) as fleet:
        return tuple(map(one, gangs))


def check(
    fleet: Fleet,
    gang: GangSpec,
    requests: Mapping[str, StagingRequest],
    topologies: Mapping[str, Topology],
    model: str,
    progress: Progress,
    *,
    timeout_s: float = KERNELS_S,
) -> CheckedGang:
    """On the first GPU of every node. requests: as the engine would be staged, by node"""
    first = requests[gang.leader.name]
    stack, fenced = load_stack(first.stack), fence(fleet, gang.name)
    heard = {name: _KernelAnswers(name, _order(request, topologies.get(name), model), progress)
             for name, request in requests.items()}  # fmt: skip

    def one(session: Session) -> None:
        mine = heard[session.spec.name]
        request = requests[session.spec.name]
        job = in_its_place(
            PROGRAM,
            "check of kernels",
            replace(in_place_of(request), gpus=request.gpus[:1], tp_ranks=request.tp_ranks[:1]),
            mine.order,
            deadline_s=timeout_s,
            beside=f"stop it with `l40s-deploy down {gang.name}`",
            too_long="allow more time with --timeout; if it persists, check the GPU with `l40s-deploy doctor`",
        )
        job = replace(job, files={**job.files, HELPER: template(HELPER)})
        follow(session, gang.name, job, KernelLine, mine.take, fenced)

    done = fleet.on_every(one, only=list(requests))
    causes = engine_of(stack).causes
    return CheckedGang(
        gang=gang.name,
        stack=stack.name,
        real=first.device == "cuda",
        nodes={name: judged(one.order.cases, one.lines, causes, limit=one.order.shared)
               for name, one in heard.items() if name not in done.failures or one.lines},
        lost=done.failures,
    )  # fmt: skip


def _order(request: StagingRequest, topology: Topology | None, model: str) -> KernelsOrder:
    """Without a GPU, as for the one that is assumed."""
    gpus = [gpu for gpu in topology.gpus if gpu.index in request.gpus[:1]] if topology is not None else []
    name = gpus[0].name if gpus else ASSUMED_GPU if request.device != "cuda" else ""
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


@dataclass
class _KernelAnswers:
    """What one node has said."""

    node: str
    order: KernelsOrder
    progress: Progress
    lines: list[KernelLine] = field(default_factory=list)

    def take(self, line: KernelLine) -> bool:
        """One line; there is never enough."""
        if line.kernel >= 0:
            self.lines.append(line)
            self.progress(self.node, len({one.kernel for one in self.lines if one.verdict}), len(self.order.cases))
        return False


def check_json(found: Sequence[CheckedGang]) -> dict[str, Any]:
    """The document of `stack check --json`."""
    return {
        "verdict": gravest(one for gang in found for results in gang.nodes.values() for one in results).value,
        "nodes": [
            {
                "name": name,
                "gang": gang.gang,
                "stack": gang.stack,
                "stand_in": not gang.real,
                "kernels": [one.as_json() for one in results],
            }
            for gang in found
            for name, results in gang.nodes.items()
        ],
        "lost": {name: failure.as_json() for gang in found for name, failure in gang.lost.items()},
    }
