"""`--for N`: the best plan for so many requests at once, as `sweep` measured it, else as it is calculated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from orchestrator.engines.registry import engine_of
from orchestrator.engines.settings import setting_flags
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.model.inventory import GangSpec
from orchestrator.model.measured import Candidate, CandidateResult, SweepRecord, best, nearest_load, speed
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.planning import engine_command, memory
from orchestrator.planning.layout import usual
from orchestrator.planning.offers import LayoutFit
from orchestrator.planning.steps.measured import measured_in, request_of
from orchestrator.planning.steps.models import offer_here
from orchestrator.planning.steps.plan import PlanRequest, chosen_stack
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout
from orchestrator.records.sweeps import sweeps_of

MOST_CAPTURED = 128
"""Requests: graphs for so many were measured (tests/slice), for more their memory is not known."""


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """What is to be planned for a number of requests at once, and why, in words."""

    request: PlanRequest
    why: str


def choice_for(gangs: Sequence[GangSpec], asked: PlanRequest, requests: int) -> LoadChoice:
    """The best measured candidate for so many requests at once, as it was measured; else the layout whose calculated
    speed is the highest, with CUDA graphs for so many, which that speed rests on; else what `plan` takes.

    asked: without a layout, which is what is looked for; gangs: those that it is for

    Raises InputError where the request names a layout.
    """
    if asked.saved or asked.layout or any((asked.tp, asked.pp, asked.ep, asked.attn_dp)):
        raise InputError(
            "--for was combined with a layout, which it chooses",
            where="command line",
            fix="leave out one of them",
        )
    profile = load_profile(asked.model)
    for gang in gangs:
        results = _comparable(gang, profile.name, load_stack(asked.stack).name if asked.stack else None)
        load = nearest_load(results, requests)
        if load is not None and (winner := best(results, load)) is not None:
            return _measured(asked, gang, winner, load)
    return _calculated(gangs[0], asked, requests)


def _comparable(gang: GangSpec, model: str, stack: str | None) -> list[CandidateResult]:
    """What was measured by the stack and with the prompts and answers of the newest sweep (None: any stack): tokens a
    second of others say nothing beside these."""
    records = [record for record in sweeps_of(gang, model) if stack in (None, record.stack)]
    measured = [record for record in records if measured_in(record, model)]
    if not measured:
        return []
    newest = _case(measured[0])
    return [result for record in measured if _case(record) == newest for result in measured_in(record, model)]


def _case(record: SweepRecord) -> tuple[str, int, int, str]:
    load = record.load
    return record.stack, load.input, load.output, load.dataset


def _measured(asked: PlanRequest, gang: GangSpec, winner: CandidateResult, load: int) -> LoadChoice:
    stack = next(record.stack for record in sweeps_of(gang, winner.candidate.model) if winner in record.results)
    made = request_of(winner.candidate, gang.name, asked.stack or stack)
    request = replace(made, gangs=asked.gangs, without=asked.without, replicas=asked.replicas)
    request = replace(request, model=asked.model, extra_args=(*made.extra_args, *asked.extra_args))
    why = f"{winner.candidate.id}, measured here: {speed(winner, load):.1f} tokens/s at {load} requests, the most"
    return LoadChoice(request, f"{why} of what `sweep` has measured on {gang.name}")


def _calculated(gang: GangSpec, asked: PlanRequest, requests: int) -> LoadChoice:
    profile = load_profile(asked.model)
    stack = load_stack(chosen_stack((gang,), profile, asked.stack).name)
    offered = offer_here(profile, stack, gang)
    known = [fit for fit in offered.fits if fit.speeds is not None]
    sweep = f"`l40s-deploy sweep --model {asked.model}` measures"
    if not known:
        why = f"nothing is measured here, and nothing can be calculated: the plan's own choice; {sweep}"
        return LoadChoice(asked, why)
    fastest = max(known, key=lambda fit: _calculated_speed(fit, requests))
    layout = fastest.layout
    why = f"{layout}, calculated, not measured here: {_calculated_speed(fastest, requests):.0f} tokens/s; {sweep}"
    graphs = _graphs_for(gang, asked, profile, stack, layout, requests)
    if graphs:
        why = f"{why}; with {' '.join(graphs)}, as that speed is for steps in a CUDA graph"
        asked = replace(asked, extra_args=(*graphs, *asked.extra_args))
    if layout == usual(profile, len(gang.nodes), gang.leader.gpus):
        return LoadChoice(asked, why)
    bare = Candidate(id="", model=profile.name, layout=layout)
    made = request_of(bare, gang.name, stack.name)
    return LoadChoice(replace(asked, tp=made.tp, pp=made.pp, ep=made.ep, attn_dp=made.attn_dp), why)


def _graphs_for(
    gang: GangSpec, asked: PlanRequest, profile: ModelProfile, stack: Stack, layout: Layout, requests: int
) -> list[str]:
    """The flag that has graphs captured for so many requests, each batch's share of them, where profile, inventory and
    command line say fewer; [] where they say as many or nothing, and on CPU."""
    engine = engine_of(stack)
    flags = engine_command.asked(engine, profile, stack, gang.leader, asked.extra_args)
    values = flags.get(engine.names.cuda_graph_max_bs, flags.get(engine.names.cuda_graph_sizes, ()))
    typed = [int(value) for value in values if value.isdecimal()]
    step = engine.graph_step(memory.asked_of(profile, layout, flags, None))
    wanted = _rounded_up(min(ceil(requests / layout.shares), MOST_CAPTURED), step)
    if stack.device != "cuda" or not typed or wanted <= max(typed):
        return []
    return [*setting_flags(engine, "graphs", str(wanted))]


def _rounded_up(size: int, step: int) -> int:
    return ceil(size / step) * step


def _calculated_speed(fit: LayoutFit, requests: int) -> float:
    known = fit.speeds.tokens_per_s if fit.speeds is not None else {}
    near = min((load for load in known if load >= requests), default=max(known, default=0))
    return known.get(near, 0.0)
