"""The candidates of a sweep, with a plan each: what fits the nodes, and what an earlier call has measured of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.bench.text import NAME, Dataset
from orchestrator.doctor.steps.doctor import refuse
from orchestrator.doctor.steps.plan_findings import examined
from orchestrator.engines.registry import engine_of
from orchestrator.gang.steps.operation import Operation, connected
from orchestrator.gang.steps.up_operation import UpRequest
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.measured import CandidateResult, CandidateState, SweepLoad, SweepRecord
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.model.topology import Gpu
from orchestrator.planning.memory import checkpoint_bytes
from orchestrator.planning.offers import L40S_BYTES, offer
from orchestrator.planning.page_cache import SLOW_DISK, to_read
from orchestrator.planning.steps.look import look
from orchestrator.planning.steps.measured import own_points, request_of
from orchestrator.planning.steps.models import network_of
from orchestrator.planning.steps.plan import chosen_stack, make_plan
from orchestrator.protocol.errors import FindingsError, InputError, VerificationDiffers
from orchestrator.records.documents import last_start
from orchestrator.records.nettests import addresses_of
from orchestrator.records.sweeps import kept_sweep
from orchestrator.remote.fleet import Fleet
from orchestrator.sweep.budget import expected_s, within
from orchestrator.sweep.candidates import SweptModel, Variation, candidates_of
from orchestrator.sweep.next_step import merged
from orchestrator.topology.build import build

READY_S = 180.0
"""From the last weight to ready where no start of the model is recorded: graphs, warm-up, canary."""
REFUSALS = (InputError, FindingsError, VerificationDiffers)
"""What says that a plan can't be; everything else says that it could not be made now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What to measure.

    models:    names or files of profiles, the first one gives the sweep its name
    layouts:   as `--layout` says them
    dataset:   None for our own text
    budget_s:  None for no limit
    keep_best: end with the fastest candidate
    replaces:  stop what serves
    network:   try NCCL's settings first; None: while a candidate waits
    again:     forget what earlier calls have measured
    timeout_s: for each start and each run of the benchmark
    """

    models: tuple[str, ...]
    stack: str | None
    layouts: tuple[Mapping[str, Any], ...]
    vary: tuple[Variation, ...]
    requests: tuple[int, ...]
    input: int
    output: int
    dataset: Dataset | None
    budget_s: float | None
    keep_best: bool
    replaces: bool
    again: bool
    network: bool | None
    accept: tuple[str, ...]
    timeout_s: float
    command: str


@dataclass(frozen=True, slots=True)
class PlannedSweep:
    """A sweep that can begin, or go on. seconds: how long each candidate will take, by its id"""

    record: SweepRecord
    seconds: Mapping[str, float]


def alone(inventory: Inventory, gang: GangSpec) -> Inventory:
    """The inventory with this gang only, and no router: while it is measured, no client reaches it."""
    return replace(inventory, gangs=(gang,), router=None)


def planned(inventory: Inventory, gang: GangSpec, options: SweepOptions) -> PlannedSweep:
    """Look at the nodes, and plan every candidate. Changes nothing.

    Raises InputError where nothing can be measured, and the failure of the first node that can't be read.
    """
    with connected(alone(inventory, gang)) as operation:
        models = _models(operation.fleet, gang, options)
        empty = _record(gang, models[0], options)
        before = kept_sweep(empty)
        candidates = candidates_of(models, gang, options.layouts, options.vary, options.requests)
        made = tuple(_with_plan(operation, gang, empty, candidate, options) for candidate in candidates)
    if options.again and before is not None:
        before = _forgotten(before)
    results = merged(made, before)
    if not any(result.waits or result.state is CandidateState.MEASURED for result in results):
        raise _nothing(gang, results)
    seconds = _seconds(gang, models, results, empty)
    record = replace(before or empty, results=within(results, [*seconds.values()], options.budget_s))
    return PlannedSweep(record, seconds)


def _models(fleet: Fleet, gang: GangSpec, options: SweepOptions) -> tuple[SweptModel, ...]:
    snapshots = look(fleet, gang.nodes).all()
    gpus = [gpu for snapshot in snapshots.values() for gpu in build(snapshot).gpus]
    return tuple(_model(gang, name, options.stack, gpus) for name in options.models)


def _model(gang: GangSpec, name: str, stack_name: str | None, gpus: Sequence[Gpu]) -> SweptModel:
    profile = load_profile(name)
    stack = load_stack(chosen_stack((gang,), profile, stack_name, gpus).name)
    _refuse_unmeasured(gang, stack)
    offered = offer(
        profile,
        stack,
        gang,
        gpu_total=min((gpu.memory_total for gpu in gpus if gpu.memory_total), default=L40S_BYTES),
        gpu=next((gpu.name for gpu in gpus if gpu.name), ""),
        network=network_of(gang, stack.name, profile),
        own=own_points(gang, profile.name, stack.name),
    )
    file = str(Path(name).resolve()) if name.endswith((".yml", ".yaml")) else ""
    return SweptModel(file=file, profile=profile, stack=stack, fits=offered.fits)


def _refuse_unmeasured(gang: GangSpec, stack: Stack) -> None:
    engine = engine_of(stack)
    if "serving" not in engine.bench:
        raise InputError(
            f"`bench` can't measure {engine.product}, so there is nothing to compare",
            where=f"gang {gang.name}: stack {stack.name}",
            fix="choose a stack with SGLang: --stack NAME (`l40s-deploy models` lists them)",
        )


def _record(gang: GangSpec, model: SweptModel, options: SweepOptions) -> SweepRecord:
    dataset = options.dataset.name if options.dataset is not None else NAME
    return SweepRecord(
        gang=gang.name,
        addresses=tuple(addresses_of(gang.nodes)),
        model=model.profile.name,
        stack=model.stack.name,
        load=SweepLoad(requests=options.requests, input=options.input, output=options.output, dataset=dataset),
    )


def _with_plan(
    operation: Operation,
    gang: GangSpec,
    record: SweepRecord,
    result: CandidateResult,
    options: SweepOptions,
) -> CandidateResult:
    """With the id of its plan and the KV cache that it has, or why there is none. What `up` would refuse for while
    nothing runs is refused here, before anything is stopped."""
    if not result.waits:
        return result
    try:
        made = make_plan(operation.inventory, up_request(record, result, options).plan, operation.fleet)
        refuse(examined(made, (gang,), accept=options.accept).findings)
    except REFUSALS as against:
        return replace(result, state=CandidateState.REFUSED, cause=against.what)
    return replace(result, plan_id=made.plan.plan_id, kv_tokens=made.plan.gangs[0].memory.kv_tokens)


def up_request(record: SweepRecord, result: CandidateResult, options: SweepOptions) -> UpRequest:
    """What `up` is asked for to start a candidate: nothing that somebody else has started is taken down for it. A stack
    that was named by its file is asked for by that."""
    return UpRequest(
        plan=request_of(result.candidate, record.gang, options.stack or record.stack),
        command=options.command,
        timeout_s=options.timeout_s,
        accept=options.accept,
    )


def _forgotten(record: SweepRecord) -> SweepRecord:
    return replace(record, results=(), trials=())


def _nothing(gang: GangSpec, results: Sequence[CandidateResult]) -> InputError:
    causes = "; ".join(f"{result.candidate.id}: {result.cause}" for result in results[:3])
    return InputError(
        f"no candidate can be measured: {causes or 'no layout fits'}",
        where=f"gang {gang.name}",
        fix="see what fits with `l40s-deploy models`, or measure what failed before once more with --again",
    )


def _seconds(
    gang: GangSpec, models: Sequence[SweptModel], results: Sequence[CandidateResult], record: SweepRecord
) -> dict[str, float]:
    profiles = {model.profile.name: model.profile for model in models}
    values = {}
    for result in results:
        profile = profiles.get(result.candidate.model, models[0].profile)
        start_s = _start_s(gang, profile, record.stack, result)
        values[result.candidate.id] = expected_s(result, record.load, start_s, results)
    return values


def _start_s(gang: GangSpec, profile: ModelProfile, stack: str, result: CandidateResult) -> float:
    """As the last start on these nodes took, else as long as a slow disk reads the weights."""
    before = last_start(gang.name, profile.name, stack)
    if before:
        return max(before.values())
    return READY_S + to_read(checkpoint_bytes(profile), result.candidate.layout) / SLOW_DISK
