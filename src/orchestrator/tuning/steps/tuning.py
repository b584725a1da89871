"""`tuning status`: which tuned kernel configs a model will look for, and what each node has of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.doctor.steps.look import look
from orchestrator.engines.engine import Lookup, moe_root
from orchestrator.engines.registry import engine_of
from orchestrator.engines.tuned_validity import Holding, judged
from orchestrator.engines.tuned_wanted import Wanted, device_name, wanted_files
from orchestrator.loading.profiles import load_profile
from orchestrator.loading.stacks import load_stack, stack_names
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import TUNED_S
from orchestrator.model.errors import DeployError, InputError
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.model.snapshot import Snapshot
from orchestrator.planning import layout as layouts
from orchestrator.planning.engine_command import asked
from orchestrator.planning.host import venv
from orchestrator.planning.named import laid_out
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.layout import Layout
from orchestrator.protocol.looks import Holdings, TunedFolders, TunedRequest
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
    layout: Layout | None
    gpu: str
    gpu_source: str
    triton: str
    triton_source: str
    wanted: tuple[Wanted, ...] = ()
    compiled: bool = False
    refusal: DeployError | None = None
    rows: Mapping[str, tuple[Holding, ...]]
    holdings: Mapping[str, Holdings]
    failures: Mapping[str, DeployError]


def tuning_status(inventory: Inventory | None, request: PlanRequest, *, offline: bool = False) -> tuple[Kit, ...]:
    """Every gang by every stack that was asked for; nodes that don't answer are among the failures.

    inventory: None for the reference cluster, of which nobody is asked; request.stack: None for every one for GPUs
    offline: ask no node
    Raises InputError for a model, stack or gang that does not exist, and where no stack allows the layout.
    """
    profile = load_profile(request.model)
    gangs = chosen_gangs(inventory, request.gangs) if inventory else (REFERENCE,)
    stacks = _stacks(request.stack)
    if inventory is None or offline:
        kits = [_kit(gang, stack, profile, request, TunedHoldings({}, {}, {})) for gang in gangs for stack in stacks]
    else:
        kits = _asked(gangs, stacks, profile, request)
    if all(kit.refusal for kit in kits):
        raise next(kit.refusal for kit in kits if kit.refusal)
    return tuple(kits)


def kits_of(inventory: Inventory, request: PlanRequest, holdings: Mapping[str, Holdings], gpu: str) -> tuple[Kit, ...]:
    """The same of what nodes have said already. gpu: their GPUs' name"""
    profile = load_profile(request.model)
    seen = TunedHoldings(dict.fromkeys(holdings, gpu), holdings, {})
    return tuple(
        _kit(gang, stack, profile, request, seen)
        for gang in chosen_gangs(inventory, request.gangs)
        for stack in _stacks(request.stack)
    )


@dataclass(frozen=True, slots=True)
class TunedHoldings:
    """What nodes said: GPU names, holdings, failures."""

    gpus: Mapping[str, str]
    holdings: Mapping[str, Holdings]
    failures: Mapping[str, DeployError]


def _stacks(asked: str | None) -> tuple[Stack, ...]:
    if asked:
        return (load_stack(asked),)
    every = map(load_stack, stack_names())
    return tuple(stack for stack in every if stack.device == "cuda" and engine_of(stack).product == "SGLang")


def _asked(
    gangs: Sequence[GangSpec], stacks: Sequence[Stack], profile: ModelProfile, request: PlanRequest
) -> list[Kit]:
    specs = [node for gang in gangs for node in gang.nodes]
    with Fleet(specs) as fleet:
        looked = look(fleet, specs)
        gpus = {name: gpu for name, snapshot in looked.values.items() if (gpu := gpu_of(snapshot))}
        kits = []
        for stack in stacks:
            held = ask_holdings(fleet, looked.values, stack, gpus)
            seen = TunedHoldings(gpus, held.holdings, {**looked.failures, **held.failures})
            kits += [_kit(gang, stack, profile, request, seen) for gang in gangs]
    return sorted(kits, key=lambda kit: [gang.name for gang in gangs].index(kit.gang))


def gpu_of(snapshot: Snapshot) -> str:
    """The GPUs' name by NVML, '' where it was not read or they differ."""
    names = {gpu.name for gpu in build(snapshot).gpus if gpu.name}
    return names.pop() if len(names) == 1 else ""


def ask_holdings(fleet: Fleet, names: Iterable[str], stack: Stack, gpus: Mapping[str, str]) -> TunedHoldings:
    """What the named nodes have of tuned configs for their GPU, below the stack's environment."""
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

    asked = fleet.on_every(ask, only=set(names))
    return TunedHoldings(gpus, asked.values, asked.failures)


def moe_directory(spec: NodeSpec, stack: Stack) -> str:
    """The value that the engine's variable for MoE configs will have on a node, '' if it is not set."""
    variable = engine_of(stack).tuned.variable
    return {**dict(stack.env), **dict(spec.overrides.env)}.get(variable, "") if variable else ""


def _kit(
    gang: GangSpec,
    stack: Stack,
    profile: ModelProfile,
    request: PlanRequest,
    seen: TunedHoldings,
) -> Kit:
    rules = engine_of(stack).tuned
    mine = {node.name: node for node in gang.nodes}
    holdings = {name: held for name, held in seen.holdings.items() if name in mine}
    gpu, gpu_source = _gpu(mine, seen.gpus)
    triton, triton_source = _triton(stack, holdings)
    kit = Kit(
        gang=gang.name,
        stack=stack,
        layout=None,
        gpu=gpu,
        gpu_source=gpu_source,
        triton=triton,
        triton_source=triton_source,
        rows={},
        holdings=holdings,
        failures={name: failure for name, failure in seen.failures.items() if name in mine},
    )
    try:
        profile = laid_out(profile, request.layout, stack) if request.layout else profile
        chosen = _layout(gang, profile, stack, request)
    except InputError as refusal:
        return replace(kit, refusal=refusal)
    own = {name: moe_directory(spec, stack) for name, spec in mine.items()}
    wanted = wanted_files(profile, chosen, rules, gpu=gpu, triton=triton, moe_directory=own[gang.leader.name])
    rows = {
        name: _rows(profile, chosen, rules, seen.gpus.get(name, gpu), held, stack, own[name])
        for name, held in holdings.items()
        if held.root
    }
    compiled = rules.skips_compiled and "--enable-torch-compile" in asked(
        engine_of(stack), profile, stack, gang.leader, ()
    )
    return replace(kit, layout=chosen, wanted=wanted, rows=rows, compiled=compiled)


def _rows(
    profile: ModelProfile, chosen: Layout, rules: Lookup, gpu: str, held: Holdings, stack: Stack, own: str
) -> tuple[Holding, ...]:
    """By the node's own GPU, Triton and directory: they may differ from its peers'."""
    triton = held.versions.get("triton", stack.triton_version)
    wanted = wanted_files(profile, chosen, rules, gpu=gpu, triton=triton, moe_directory=own)
    return tuple(judged(one, rules, held) for one in wanted)


def _gpu(mine: Mapping[str, NodeSpec], gpus: Mapping[str, str]) -> tuple[str, str]:
    for name in mine:
        if name in gpus:
            return gpus[name], f"NVML on {name}"
    return ASSUMED_GPU, "assumed: no node reported its GPUs"


def _triton(stack: Stack, holdings: Mapping[str, Holdings]) -> tuple[str, str]:
    for name, held in holdings.items():
        if version := held.versions.get("triton"):
            return version, f"installed on {name}"
    return stack.triton_version, f"stack {stack.name}" if stack.triton_version else "not known"


def _layout(gang: GangSpec, profile: ModelProfile, stack: Stack, request: PlanRequest) -> Layout:
    layout = layouts.usual(
        profile,
        len(gang.nodes),
        gang.leader.gpus,
        tensor=request.tp,
        pipeline=request.pp,
        expert=request.ep,
        attention=request.attn_dp,
    )
    layouts.refuse(profile, layout, layouts.abilities(engine_of(stack)), where=f"gang {gang.name}, stack {stack.name}")
    return layout


def status_json(model: str, kits: Sequence[Kit]) -> dict[str, Any]:
    """The document of `tuning status --json`."""
    return {"model": model, "stacks": [_kit_json(kit) for kit in kits]}


def _kit_json(kit: Kit) -> dict[str, Any]:
    refusal = kit.refusal
    return {
        "name": kit.stack.name,
        "gang": kit.gang,
        "engine_version": kit.stack.engine_version,
        "layout": str(kit.layout) if kit.layout else None,
        "gpu": kit.gpu,
        "gpu_source": kit.gpu_source,
        "triton": kit.triton,
        "triton_source": kit.triton_source,
        "refusal": refusal.as_json() if refusal else None,
        "files": [
            {
                "kernel": one.kernel,
                "part": one.part,
                "shape": dict(one.shape),
                "name": one.name,
                "folder": one.folder,
                "optional": one.optional,
                "nodes": {name: _holding_json(rows[place]) for name, rows in kit.rows.items()},
            }
            for place, one in enumerate(kit.wanted)
        ],
        "nodes": [
            {"name": name, "installed": bool(held.root), "root": held.root, "packages": dict(held.versions),
             "absent": list(held.absent), "errors": dict(held.errors)}
            for name, held in kit.holdings.items()
        ],
        "failures": [
            {"name": name, **failure.as_json()}
            for name, failure in kit.failures.items()
        ],
    }  # fmt: skip


def _holding_json(holding: Holding) -> dict[str, Any]:
    return {
        "state": holding.state.value,
        "folder": holding.folder,
        "name": holding.name,
        "sha256": holding.sha256,
        "flaws": [{"severity": flaw.severity.value, "text": flaw.text} for flaw in holding.flaws],
    }
