"""`tuning pull` and `tuning push`: configs from one node into a pack, from a pack onto all nodes, and back off them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from orchestrator.doctor.steps.look import look
from orchestrator.engines.registry import engine_of
from orchestrator.engines.tuned_wanted import device_name, triton_folder
from orchestrator.loading.stacks import load_stack, stack_names
from orchestrator.model.chosen import chosen_gangs, chosen_nodes
from orchestrator.model.deadlines import TUNE_S
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import Inventory, NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.model.profile import Stack
from orchestrator.planning.host import venv
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.jobs import TuneAnswer, TuneRequest
from orchestrator.protocol.looks import Holdings
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session
from orchestrator.tuning.pack import INTERPRETED, Pack, pack_of, part_name
from orchestrator.tuning.steps.packs import load_pack, save_pack
from orchestrator.tuning.steps.tuning import ASSUMED_GPU, ask_holdings, gpu_of, kits_of, moe_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningPullResult:
    """left: (part, why) of files that are unusable and were left out"""

    node: str
    pack: Pack
    left: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningPushResult(TuneAnswer):
    """What was done on one node. remarks: what an operator should know"""

    remarks: tuple[str, ...] = ()


def pull(
    inventory: Inventory, out: Path, *, node: str | None = None, model: str | None = None, stack_name: str | None = None
) -> TuningPullResult:
    """Make a pack of what one node has. Raises InputError if there is nothing, Unreachable and NodeError as usual.

    node: None for the first one; model: only what it looks for, None for all of the GPU's
    """
    spec = next(iter(chosen_nodes(inventory.nodes, [node] if node else [], "--from").values()))
    asked = stack_name or _named(inventory, [spec]) or _only_by_option()
    stack = load_stack(asked)
    with Fleet([spec]) as fleet:
        snapshot = look(fleet, [spec]).all()[spec.name]
        gpu = gpu_of(snapshot) or ASSUMED_GPU
        seen = ask_holdings(fleet, [spec.name], stack, {spec.name: gpu})
    for failure in seen.failures.values():
        raise failure
    held = seen.holdings[spec.name]
    if not held.root:
        raise InputError(
            f"no engine is installed in {venv(spec, stack.name)}",
            where=spec.name,
            fix="choose the installed stack with --stack, another node with --from, or run `l40s-deploy prepare`",
        )
    rules, own = engine_of(stack).tuned, moe_directory(spec, stack)
    pack, left = pack_of(held, rules, dialect=stack.dialect, device=device_name(gpu), moe_directory=own)
    if model:
        wanted = _taken(inventory, PlanRequest(model=model, stack=asked), stack, spec, held, gpu)
        pack = replace(pack, texts={part: text for part, text in pack.texts.items() if part in wanted})
        left = tuple((part, flaw) for part, flaw in left if part in wanted)
    if not pack.texts:
        raise InputError(
            f"it has no usable config for {gpu}" + (f" that {model} looks for" if model else ""),
            where=f"{spec.name}: {held.root}",
            fix="run `l40s-deploy tuning status --model NAME` to see which files are needed, and where",
        )
    save_pack(out, pack)
    return TuningPullResult(node=spec.name, pack=pack, left=tuple((part, flaw.text) for part, flaw in left))


def push(
    inventory: Inventory,
    file: Path | None,
    *,
    stack_name: str | None = None,
    gangs: tuple[str, ...] = (),
    check: bool = False,
) -> PerNode[TuningPushResult]:
    """Install a pack on every node, or remove it. Nothing is written before every node has agreed to accept it.

    file: the pack; None undoes what was installed; check: report what would be done
    Raises InputError for a pack that can't be used, and the first failure of a node that can't accept it.
    """
    specs = {node.name: node for gang in chosen_gangs(inventory, gangs) for node in gang.machines}
    pack = load_pack(file) if file else None
    stack = load_stack(stack_name or _named(inventory, specs.values()) or _for(pack))
    if pack and stack.dialect != pack.dialect:
        raise InputError(
            f"the pack is for {pack.dialect}, but the stack {stack.name} is {stack.dialect}",
            where=str(file),
            fix="choose the matching stack with --stack, or another pack",
        )
    if pack and pack.made == INTERPRETED and stack.device == "cuda":
        raise InputError(
            "this pack was made without a GPU, by Triton's interpreter: its times say nothing",
            where=str(file),
            fix="make one on the nodes' GPUs with `l40s-deploy tuning run`",
        )
    with Fleet(specs.values()) as fleet:
        if pack:
            _refuse_other_gpus(fleet, specs, pack, str(file))
        would = fleet.on_every(lambda session: _put(session, stack, pack, check=True))
        would.all()
        return would if check else fleet.on_every(lambda session: _put(session, stack, pack, check=False))


def _put(session: Session, stack: Stack, pack: Pack | None, *, check: bool) -> TuningPushResult:
    spec = session.spec
    own = moe_directory(spec, stack)
    request = TuneRequest(venv=venv(spec, stack.name), check=check, remove=pack is None)
    if pack:
        files = pack.places(engine_of(stack).tuned, own)
        request = replace(request, files=files, engine_version=pack.engine_version)
    said = ask(session, "tune", request, TuneAnswer, deadline_s=TUNE_S)
    remarks = []
    triton = said.triton
    others = [folder for folder in pack.tritons() if triton and folder != triton_folder(triton)] if pack else []
    if others:
        remarks.append(
            f"runs Triton {triton} and uses MoE configs for {', '.join(others)} only as a fallback, which may be slower"
        )
    done = {each.name: getattr(said, each.name) for each in fields(said)}
    return TuningPushResult(**done, remarks=tuple(remarks))


def _refuse_other_gpus(fleet: Fleet, specs: Mapping[str, NodeSpec], pack: Pack, where: str) -> None:
    """A config under another GPU's name is never looked for; one under this name that is another's can't run."""
    for name, snapshot in look(fleet, specs.values()).all().items():
        gpu = gpu_of(snapshot)
        if gpu and device_name(gpu) != pack.device:
            raise InputError(
                f"the pack is for {pack.device}, but {name} has {gpu}: its engine would never load these files",
                where=where,
                fix="tune on that GPU model, or choose other gangs with --gang",
            )


def _taken(
    inventory: Inventory, request: PlanRequest, stack: Stack, spec: NodeSpec, held: Holdings, gpu: str
) -> set[str]:
    """Parts that this model's engine takes on this node."""
    (kit,) = kits_of(inventory, replace(request, gangs=(spec.gang,)), {spec.name: held}, gpu)
    if kit.refusal:
        raise kit.refusal
    rules, own = engine_of(stack).tuned, moe_directory(spec, stack)
    return {part_name(row.folder, row.name, rules, own) for row in kit.rows[spec.name] if row.name}


def _named(inventory: Inventory, specs: Any) -> str:
    """The stack that the inventory names, '' where it names none. Raises InputError where it names several."""
    named = {node.stack for node in specs if node.stack}
    if len(named) > 1:
        raise InputError(
            "the nodes use different stacks: " + ", ".join(sorted(named)),
            where=f"{inventory.path}: l40s_stack",
            fix="choose one with --gang or --stack",
        )
    return next(iter(named), "")


def _for(pack: Pack | None) -> str:
    """The shipped stack for GPUs that a pack was made for."""
    if pack is not None:
        for stack in map(load_stack, stack_names()):
            if stack.device == "cuda" and (stack.dialect, stack.engine_version) == (pack.dialect, pack.engine_version):
                return stack.name
    return _only_by_option()


def _only_by_option() -> str:
    raise InputError(
        "no stack was given, and the inventory has no l40s_stack", where="command line", fix="--stack NAME"
    )


def pulled_json(pulled: TuningPullResult, out: Path) -> dict[str, Any]:
    """The document of `tuning pull --json`."""
    pack = pulled.pack
    return {
        "pack": str(out),
        "node": pulled.node,
        "dialect": pack.dialect,
        "engine_version": pack.engine_version,
        "device": pack.device,
        "triton": pack.triton,
        "files": sorted(pack.texts),
        "left": [{"file": part, "why": why} for part, why in pulled.left],
    }


def push_json(done: PerNode[TuningPushResult], names: Sequence[str]) -> dict[str, Any]:
    """The document of `tuning push --json`."""
    return {"nodes": [_node_json(name, done) for name in names if name in done.values or name in done.failures]}


def _node_json(name: str, done: PerNode[TuningPushResult]) -> dict[str, Any]:
    failure, put = done.failures.get(name), done.values.get(name)
    error = failure.as_json() if failure else None
    if put is None:
        return {"name": name, "error": error}
    told = put.as_json()
    return {
        "name": name,
        **{key: told[key] for key in ("written", "unchanged", "restored", "removed", "left", "remarks")},
        "error": error,
    }
