"""What is compared: layouts that fit, times the settings that vary, the most promising first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from orchestrator.engines.registry import engine_of
from orchestrator.engines.settings import DEFAULTS, SETTINGS, setting_flags
from orchestrator.model.inventory import GangSpec
from orchestrator.model.measured import Candidate, CandidateResult, CandidateState
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.planning import drafts
from orchestrator.planning.layout import abilities, reasons, short, usual
from orchestrator.planning.offers import LayoutFit
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout

ATTENTION = "attn-dp"
"""The one name of `--vary` that is a degree of the layout."""
VARIED = (ATTENTION, *SETTINGS)
USUAL = 6
"""Candidates where nobody says which: what is measured overnight, at half an hour each and more."""
USUAL_LAYOUTS = 4
USUAL_VARIATIONS = (("kv", "fp8"), ("draft", "mtp"), ("prefill-graphs", "off"), ("chunk", "4096"), ("graphs", "off"))
"""Of the most promising layout, where layouts alone are fewer than that."""

Settings = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptModel:
    """A checkpoint that is measured. file: of its profile where it was named by that, else ''; fits: the layouts that
    fit the gang"""

    file: str = ""
    profile: ModelProfile
    stack: Stack
    fits: tuple[LayoutFit, ...]


@dataclass(frozen=True, slots=True)
class Variation:
    """One `--vary NAME=VALUE,VALUE`."""

    name: str
    values: tuple[str, ...]


def variation_of(text: str) -> Variation:
    """Raises ValueError for a text that is none."""
    name, equals, rest = text.partition("=")
    values = tuple(dict.fromkeys(value.strip() for value in rest.split(",")))
    if not equals or not all(values):
        raise ValueError(f"found {text!r}, wanted NAME=VALUE,VALUE, as kv=auto,fp8")
    if name not in VARIED:
        raise ValueError(f"found {name!r}, wanted one of {', '.join(VARIED)}")
    if name == ATTENTION and not all(value.isdecimal() and int(value) for value in values):
        raise ValueError(f"found {rest!r}, wanted numbers of attention groups, as {ATTENTION}=1,4")
    return Variation(name, values)


def candidates_of(
    models: Sequence[SweptModel],
    gang: GangSpec,
    layouts: Sequence[Mapping[str, Any]],
    vary: Sequence[Variation],
    loads: Sequence[int],
) -> tuple[CandidateResult, ...]:
    """The candidates in the order in which they are measured, then those that are refused by arithmetic alone.

    layouts: as `--layout` says them, () for those that fit; loads: requests at once, for the order
    Raises InputError for the name of a layout that no model has.
    """
    made: list[CandidateResult] = []
    for model in models:
        bases = list(_asked(model, models, gang, layouts)) if layouts else _fitting(model, vary)
        made += _crossed(model, bases, vary, several=len(models) > 1)
    ordered = in_order(_distinct(made), loads)
    if vary or layouts or len(models) > 1:
        return ordered
    return _usual(models[0], ordered)


def in_order(results: Iterable[CandidateResult], loads: Sequence[int]) -> tuple[CandidateResult, ...]:
    """The most promising first, by the calculated speeds at these loads; of equals, and where nothing can be
    calculated, as they stand. Those that are refused come last."""
    results = tuple(results)
    top = {load: max((_expected(result, load) for result in results), default=0.0) for load in loads}

    def promise(result: CandidateResult) -> tuple[bool, float]:
        shares = [_expected(result, load) / top[load] for load in loads if top[load]]
        return result.state is CandidateState.REFUSED, -round(sum(shares), 6)

    return tuple(sorted(results, key=promise))


def _expected(result: CandidateResult, load: int) -> float:
    """Calculated for this load, or for the next one that is."""
    known = result.candidate.expected
    near = min((int(key) for key in known if int(key) >= load), default=max(map(int, known), default=None))
    return known[str(near)] if near is not None else 0.0


def _distinct(results: Iterable[CandidateResult]) -> Iterable[CandidateResult]:
    return {result.candidate.id: result for result in reversed(list(results))}.values().__reversed__()


@dataclass(frozen=True, slots=True)
class _Base:
    """A layout, what the profile calls it, and what is calculated for it."""

    layout: Layout
    named: str
    expected: Mapping[str, float]


def _fitting(model: SweptModel, vary: Sequence[Variation]) -> list[_Base]:
    """Every layout that fits; where attention's groups vary, those without any."""
    plain = any(each.name == ATTENTION for each in vary)
    fits = sorted(model.fits, key=lambda fit: not fit.default)
    return [_base(fit) for fit in fits if not plain or fit.layout.attention_data_parallel == 1]


def _base(fit: LayoutFit) -> _Base:
    speeds = fit.speeds.tokens_per_s if fit.speeds is not None else {}
    return _Base(fit.layout, "", {str(requests): tokens for requests, tokens in speeds.items()})


def _asked(
    model: SweptModel, models: Sequence[SweptModel], gang: GangSpec, layouts: Iterable[Mapping[str, Any]]
) -> Iterator[_Base]:
    """What --layout chooses; a name that another of the models has is left out."""
    known = {fit.layout: _base(fit).expected for fit in model.fits}
    for asked in layouts:
        name = str(asked.get("layout", ""))
        if not name:
            layout = _of_degrees(gang, asked)
        elif (mine := _named(model.profile, name, gang)) is not None:
            layout = mine
        elif any(_named(other.profile, name, gang) for other in models):
            continue
        else:
            names = ", ".join(each.name for each in model.profile.layouts)
            raise InputError(
                f"no layout is called {name!r}",
                where="command line: --layout",
                fix=f"one of: {names}" if names else "this profile names no layouts: give the degrees, as pp4,tp8",
            )
        yield _Base(layout, name, known.get(layout, {}))


def _named(profile: ModelProfile, name: str, gang: GangSpec) -> Layout | None:
    mine = next((each for each in profile.layouts if each.name == name), None)
    return usual(mine, len(gang.nodes), gang.leader.gpus) if mine is not None else None


def _of_degrees(gang: GangSpec, asked: Mapping[str, Any]) -> Layout:
    gpus, stages = len(gang.nodes) * gang.leader.gpus, int(asked.get("pp", 1))
    return Layout(
        tensor_parallel=int(asked.get("tp", max(1, gpus // stages))),
        pipeline_parallel=stages,
        expert_parallel=int(asked.get("ep", 1)),
        attention_data_parallel=int(asked.get("attn_dp", 1)),
        nnodes=len(gang.nodes),
        gpus_per_node=gang.leader.gpus,
    )


def _crossed(
    model: SweptModel, bases: Sequence[_Base], vary: Sequence[Variation], *, several: bool
) -> Iterator[CandidateResult]:
    """Each layout with each combination of values."""
    for base in bases:
        for values in product(*(each.values for each in vary)):
            settings = tuple(zip((each.name for each in vary), values, strict=True))
            yield _candidate(model, base, settings, several=several)


def _candidate(model: SweptModel, base: _Base, settings: Settings, *, several: bool) -> CandidateResult:
    """What a setting's name says of the plan's own choice is left out, so that it is the same candidate."""
    chosen = dict(settings)
    layout = base.layout
    if ATTENTION in chosen:
        layout = replace(layout, attention_data_parallel=int(chosen.pop(ATTENTION)))
    chosen = {name: value for name, value in chosen.items() if value != DEFAULTS.get(name)}
    words = [f"{model.profile.name}:{short(layout)}" if several else short(layout)]
    if base.named:
        words[0] += f"({base.named})"
    bare = Candidate(
        id="+".join([*words, *(f"{name}={value}" for name, value in chosen.items())]),
        model=model.profile.name,
        file=model.file,
        layout=layout,
        named=base.named,
        settings=chosen,
        expected=base.expected if layout == base.layout else {},
    )
    try:
        args = _args(model, bare)
    except InputError as against:
        return CandidateResult(candidate=bare, state=CandidateState.REFUSED, cause=f"{against.what}; {against.fix}")
    if cause := _against(model, bare, base):
        return CandidateResult(candidate=bare, state=CandidateState.REFUSED, cause=cause)
    return CandidateResult(candidate=replace(bare, args=args))


def _args(model: SweptModel, candidate: Candidate) -> tuple[str, ...]:
    engine = engine_of(model.stack)
    return tuple(word for name, value in candidate.settings.items() for word in setting_flags(engine, name, value))


def _against(model: SweptModel, candidate: Candidate, base: _Base) -> str:
    """Why it can't be, as far as the checkpoint and the engine's version say; the plan says the rest."""
    if base.named and candidate.layout != base.layout:
        return f"the layout {base.named} has its own attention groups; name its degrees instead"
    against = reasons(model.profile, candidate.layout, abilities(engine_of(model.stack)))
    if "draft" in candidate.settings:
        against += filter(None, [drafts.lacking(model.profile) or drafts.unproven(model.profile)])
        against += drafts.against_layout(engine_of(model.stack), candidate.layout, {})
    return "; ".join(against)


def _usual(model: SweptModel, ordered: Sequence[CandidateResult]) -> tuple[CandidateResult, ...]:
    """A few layouts, then variations of the most promising one; an engine on CPU has none of these."""
    layouts = ordered[:USUAL_LAYOUTS]
    if not layouts or model.stack.device != "cuda":
        return tuple(ordered[:USUAL])
    first = layouts[0].candidate
    base = _Base(first.layout, first.named, first.expected)
    varied = (_candidate(model, base, (pair,), several=False) for pair in USUAL_VARIATIONS)
    possible = [result for result in varied if result.state is not CandidateState.REFUSED]
    return tuple([*layouts, *possible][:USUAL])
