"""`tuning pull` and `tuning push`: configs from one node into a pack, from a pack onto all nodes, and back off them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from orchestrator.doctor.steps.look import look
from orchestrator.engines.registry import engine_of
from orchestrator.engines.tuned_wanted import device_name, triton_folder
from orchestrator.loading.profiles import load_profile
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
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session
from orchestrator.tuning.pack import INTERPRETED, Pack, pack_of, part_name
from orchestrator.tuning.steps.packs import load_pack, save_pack
from orchestrator.tuning.steps.tuning import ASSUMED_GPU, ask_holdings, gpu_of, kit_of, moe_directory


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
    stack = _stack(inventory, [spec], stack_name)
    with Fleet([spec]) as fleet:
        gpu = gpu_of(look(fleet, [spec]).all()[spec.name]) or ASSUMED_GPU
        found = ask_holdings(fleet, [spec.name], stack, {spec.name: gpu})
    held = found.all()[spec.name]
    if not held.root:
        raise InputError(
            f"no engine is installed in {venv(spec, stack.name)}",
            where=spec.name,
            fix="choose the installed stack with --stack, another node with --from, or run `l40s-deploy prepare`",
        )
    rules, own = engine_of(stack).tuned, moe_directory(spec, stack)
    pack, left = pack_of(held, rules, dialect=stack.dialect, device=device_name(gpu), moe_directory=own)
    if model:
        (gang,) = chosen_gangs(inventory, (spec.gang,))
        kit = kit_of(gang, stack, load_profile(model), PlanRequest(model=model), {spec.name: gpu}, found)
        if kit.refusal:
            raise kit.refusal
        taken = {part_name(row.folder, row.name, rules, own) for row in kit.rows[spec.name] if row.name}
        pack = replace(pack, texts={part: text for part, text in pack.texts.items() if part in taken})
        left = tuple((part, flaw) for part, flaw in left if part in taken)
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
    stack = _stack(inventory, specs.values(), stack_name, pack)
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
    request = TuneRequest(venv=venv(spec, stack.name), check=check, remove=pack is None)
    if pack:
        files = pack.places(engine_of(stack).tuned, moe_directory(spec, stack))
        request = replace(request, files=files, engine_version=pack.engine_version)
    said = ask(session, "tune", request, TuneAnswer, deadline_s=TUNE_S)
    triton = said.triton
    others = [folder for folder in pack.tritons() if triton and folder != triton_folder(triton)] if pack else []
    remark = (
        f"runs Triton {triton} and uses MoE configs for {', '.join(others)} only as a fallback, which may be slower"
    )
    done = {each.name: getattr(said, each.name) for each in fields(said)}
    return TuningPushResult(**done, remarks=(remark,) if others else ())


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


def _stack(inventory: Inventory, specs: Iterable[NodeSpec], asked: str | None, pack: Pack | None = None) -> Stack:
    """The one that was asked for, else the nodes' own, else the shipped one for GPUs that the pack was made for.

    Raises InputError where the inventory names several, or nobody names one.
    """
    if asked:
        return load_stack(asked)
    named = {node.stack for node in specs if node.stack}
    if len(named) > 1:
        raise InputError(
            "the nodes use different stacks: " + ", ".join(sorted(named)),
            where=f"{inventory.path}: l40s_stack",
            fix="choose one with --gang or --stack",
        )
    if named:
        return load_stack(named.pop())
    for stack in map(load_stack, stack_names() if pack else ()):
        if (
            pack
            and stack.device == "cuda"
            and (stack.dialect, stack.engine_version) == (pack.dialect, pack.engine_version)
        ):
            return stack
    raise InputError(
        "no stack was given, and the inventory has no l40s_stack", where="command line", fix="--stack NAME"
    )


def pulled_json(pulled: TuningPullResult, out: Path) -> dict[str, Any]:
    """The document of `tuning pull --json`."""
    return {
        "pack": str(out),
        "node": pulled.node,
        **pulled.pack.about,
        "files": sorted(pulled.pack.texts),
        "left": [{"file": part, "why": why} for part, why in pulled.left],
    }


def push_json(done: PerNode[TuningPushResult], names: Sequence[str]) -> dict[str, Any]:
    """The document of `tuning push --json`."""
    nodes = []
    for name in names:
        if put := done.values.get(name):
            told = put.as_json()
            told.pop("triton")
            nodes.append({"name": name, **told, "error": None})
        elif failure := done.failures.get(name):
            nodes.append({"name": name, "error": failure.as_json()})
    return {"nodes": nodes}
