"""`tuning status`: which tuned kernel configs a model will look for, and what each node has of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchestrator.engines.engine import moe_root
from orchestrator.engines.registry import engine_of
from orchestrator.engines.tuned_validity import Holding, judged
from orchestrator.engines.tuned_wanted import Wanted, device_name, wanted_files
from orchestrator.loading.profiles import load_profile, load_stack, stack_names
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import TUNED_S
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.model.per_node import PerNode
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.model.snapshot import Snapshot
from orchestrator.planning import layout as layouts
from orchestrator.planning.engine_command import asked
from orchestrator.planning.host import venv
from orchestrator.planning.layout import laid_out
from orchestrator.planning.steps.look import look
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import DeployError, InputError
from orchestrator.protocol.looks import Holdings, TunedFolders, TunedRequest
from orchestrator.protocol.planned import Layout
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session
from orchestrator.topology.build import build

ASSUMED_GPU = "NVIDIA L40S"
REFERENCE = GangSpec(
    name="reference",
    nodes=tuple(
        NodeSpec(name=f"node{rank}", gang="reference", node_rank=rank, reach=Reach(host=f"node{rank}"))
        for rank in range(4)
    ),
)
"""What is assumed where no cluster is named: four nodes with eight L40S each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """One gang by one stack: what its engine looks for, and what its nodes have.

    gpu, triton:  what names and places were made from, and where these two come from
    compiled:     the engine is asked to compile its model, and then looks up no config for the compiled layers
    refusal:      why there is no layout, and so no name; None where there is one
    rows:         by node name, for every wanted file in its order
    holdings:     what each node said; failures: nodes that did not
    """

    gang: str
    stack: Stack
    layout: Layout | None = None
    gpu: str
    gpu_source: str
    triton: str
    triton_source: str
    wanted: tuple[Wanted, ...] = ()
    compiled: bool = False
    refusal: DeployError | None = None
    rows: Mapping[str, tuple[Holding, ...]] = field(default_factory=dict)
    holdings: Mapping[str, Holdings]
    failures: Mapping[str, DeployError]

    @property
    def harms(self) -> bool:
        """Whether some node has a config with which its engine would fail or answer wrongly."""
        return any(holding.harms for rows in self.rows.values() for holding in rows)


def tuning_status(inventory: Inventory | None, request: PlanRequest, *, offline: bool = False) -> tuple[Kit, ...]:
    """Every gang by every stack that was asked for; nodes that don't answer are among the failures.

    inventory: None for the reference cluster, of which nobody is asked; request.stack: None for every one for GPUs
    offline: ask no node
    Raises InputError for a model, stack or gang that does not exist, and where no stack allows the layout.
    """
    profile = load_profile(request.model)
    gangs = chosen_gangs(inventory, request.gangs) if inventory else (REFERENCE,)
    stacks = _stacks(request.stack)
    nobody: PerNode[Holdings] = PerNode({}, {})
    ask = inventory is not None and not offline
    gpus, holdings = _asked(gangs, stacks) if ask else ({}, [nobody] * len(stacks))
    kits = [
        kit_of(gang, stack, profile, request, gpus, held)
        for gang in gangs
        for stack, held in zip(stacks, holdings, strict=True)
    ]
    if all(kit.refusal for kit in kits):
        raise next(kit.refusal for kit in kits if kit.refusal)
    return tuple(kits)


def _stacks(asked: str | None) -> tuple[Stack, ...]:
    if asked:
        return (load_stack(asked),)
    every = map(load_stack, stack_names())
    return tuple(stack for stack in every if stack.device == "cuda" and engine_of(stack).product == "SGLang")


def _asked(gangs: Sequence[GangSpec], stacks: Sequence[Stack]) -> tuple[dict[str, str], list[PerNode[Holdings]]]:
    """GPU by node, and what each node has by each stack."""
    specs = [node for gang in gangs for node in gang.nodes]
    with Fleet(specs) as fleet:
        looked = look(fleet, specs)
        gpus = {name: gpu for name, snapshot in looked.values.items() if (gpu := gpu_of(snapshot))}
        holdings = [ask_holdings(fleet, looked.values, stack, gpus) for stack in stacks]
    return gpus, [PerNode(held.values, {**looked.failures, **held.failures}) for held in holdings]


def gpu_of(snapshot: Snapshot) -> str:
    """The GPUs' name by NVML, '' where it was not read or they differ."""
    names = {gpu.name for gpu in build(snapshot).gpus if gpu.name}
    return names.pop() if len(names) == 1 else ""


def ask_holdings(fleet: Fleet, names: Iterable[str], stack: Stack, gpus: Mapping[str, str]) -> PerNode[Holdings]:
    """What the named nodes have of tuned configs for their GPU, below the stack's environment. gpus: names by node"""
    rules = engine_of(stack).tuned

    def ask(session: Session) -> Holdings:
        spec = session.spec
        folders = TunedFolders(
            moe=moe_root(rules, moe_directory(spec, stack)),
            by_triton=rules.by_triton,
            linear=rules.linear,
            device=device_name(gpus.get(spec.name, ASSUMED_GPU)),
        )
        request = TunedRequest(venv=venv(spec, stack.name), folders=folders)
        return node_app.ask(session, "tuned", request, Holdings, deadline_s=TUNED_S)

    return fleet.on_every(ask, only=set(names))


def moe_directory(spec: NodeSpec, stack: Stack) -> str:
    """The value that the engine's variable for MoE configs will have on a node, '' if it is not set."""
    variable = engine_of(stack).tuned.variable
    return {**dict(stack.env), **dict(spec.overrides.env)}.get(variable, "") if variable else ""


def _gpu(nodes: Iterable[str], gpus: Mapping[str, str]) -> tuple[str, str]:
    """The first node's that is known, and who said it."""
    read = next((name for name in nodes if name in gpus), None)
    return (gpus[read], f"NVML on {read}") if read else (ASSUMED_GPU, "assumed: no node reported its GPUs")


def kit_of(
    gang: GangSpec,
    stack: Stack,
    profile: ModelProfile,
    request: PlanRequest,
    gpus: Mapping[str, str],
    answers: PerNode[Holdings],
) -> Kit:
    """One gang by one stack, of what its nodes (and others) have said. gpus: names by node"""
    rules = engine_of(stack).tuned
    mine = {node.name: node for node in gang.nodes}
    holdings = {name: held for name, held in answers.values.items() if name in mine}
    gpu, gpu_source = _gpu(mine, gpus)
    triton, triton_source = _triton(stack, holdings)
    kit = Kit(
        gang=gang.name,
        stack=stack,
        gpu=gpu,
        gpu_source=gpu_source,
        triton=triton,
        triton_source=triton_source,
        holdings=holdings,
        failures={name: failure for name, failure in answers.failures.items() if name in mine},
    )
    try:
        profile, chosen = _laid_out(gang, stack, profile, request)
    except InputError as refusal:
        return replace(kit, refusal=refusal)

    def wanted(spec: NodeSpec, gpu: str, triton: str) -> tuple[Wanted, ...]:
        own = moe_directory(spec, stack)
        return wanted_files(profile, chosen, rules, gpu=gpu, triton=triton, moe_directory=own)

    rows = {}
    for name, held in holdings.items():
        if held.root:  # its own GPU, Triton and directory may differ from its peers'
            own = wanted(mine[name], gpus.get(name, gpu), held.versions.get("triton", stack.triton_version))
            rows[name] = tuple(judged(file, rules, held) for file in own)
    flags = asked(engine_of(stack), profile, stack, gang.leader, ())
    compiled = rules.skips_compiled and "--enable-torch-compile" in flags
    return replace(kit, layout=chosen, wanted=wanted(gang.leader, gpu, triton), rows=rows, compiled=compiled)


def _laid_out(gang: GangSpec, stack: Stack, profile: ModelProfile, request: PlanRequest) -> tuple[ModelProfile, Layout]:
    """The profile with what was asked for, and the layout. Raises InputError where the engine can't run it."""
    profile = laid_out(profile, request.layout, stack) if request.layout else profile
    chosen = layouts.usual(replace(profile, **layouts.pins(request)), len(gang.nodes), gang.leader.gpus)
    where = f"gang {gang.name}, stack {stack.name}"
    layouts.refuse(profile, chosen, layouts.abilities(engine_of(stack)), where=where)
    return profile, chosen


def _triton(stack: Stack, holdings: Mapping[str, Holdings]) -> tuple[str, str]:
    tritons = [(held.versions.get("triton", ""), f"installed on {name}") for name, held in holdings.items()]
    tritons.append((stack.triton_version, f"stack {stack.name}"))
    return next(((version, place) for version, place in tritons if version), ("", "not known"))


def status_json(model: str, kits: Sequence[Kit]) -> dict[str, Any]:
    """The document of `tuning status --json`."""
    return {"model": model, "stacks": [_kit_json(kit) for kit in kits]}


def _kit_json(kit: Kit) -> dict[str, Any]:
    names = ("gpu", "gpu_source", "triton", "triton_source")
    return {
        "name": kit.stack.name,
        "gang": kit.gang,
        "engine_version": kit.stack.engine_version,
        "layout": str(kit.layout) if kit.layout else None,
        **{name: getattr(kit, name) for name in names},
        "refusal": kit.refusal.as_json() if kit.refusal else None,
        "files": [
            {
                "kernel": file.kernel,
                "part": file.part,
                "shape": dict(file.shape),
                "name": file.name,
                "folder": file.folder,
                "optional": file.optional,
                "nodes": {name: asdict(rows[place]) for name, rows in kit.rows.items()},
            }
            for place, file in enumerate(kit.wanted)
        ],
        "nodes": [
            {
                "name": name,
                "installed": bool(held.root),
                "root": held.root,
                "packages": dict(held.versions),
                "absent": list(held.absent),
                "errors": dict(held.errors),
            }
            for name, held in kit.holdings.items()
        ],
        "failures": [{"name": name, **failure.as_json()} for name, failure in kit.failures.items()],
    }
