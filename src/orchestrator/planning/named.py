"""What of a profile counts on these nodes: the layout, by name or by need, and whether the stack can serve it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from orchestrator.model.errors import InputError
from orchestrator.model.gpu_facts import L40S
from orchestrator.model.profile import ModelProfile, ModelRefusal, NamedLayout, Stack
from orchestrator.model.topology import Gpu
from orchestrator.planning.layout import reasons, usual, working
from orchestrator.protocol.planned import Layout
from orchestrator.topology.gpus import capability


def laid_out(profile: ModelProfile, name: str, stack: Stack) -> ModelProfile:
    """The profile with this layout's degrees, flags and environment in the place of its own.

    Raises InputError for a name that the profile does not have, and for a layout that the stack's version can't do.
    """
    chosen = next((each for each in profile.layouts if each.name == name), None)
    where = f"command line: --layout {name}"
    if chosen is None:
        known = ", ".join(each.name for each in profile.layouts)
        raise InputError(
            f"the profile {profile.name} has no layout {name!r}",
            where=where,
            fix=f"use one of: {known}" if known else "this profile names no layouts: give the degrees",
        )
    if not stack.engine_version.startswith(chosen.versions):
        raise InputError(
            f"the layout {name} needs SGLang {chosen.versions}, and the stack {stack.name} is {stack.engine_version}",
            where=where,
            fix="choose another stack with --stack, or another layout",
        )
    return _with(profile, chosen)


def _with(profile: ModelProfile, chosen: NamedLayout) -> ModelProfile:
    return replace(
        _at(profile, chosen),
        micro_batch=chosen.micro_batch,
        flags=(*profile.flags, *(("", flag, value) for flag, value in chosen.flags)),
        env=(*profile.env, *(("", variable, value) for variable, value in chosen.env)),
    )


def _at(profile: ModelProfile, degrees: NamedLayout | Layout) -> ModelProfile:
    return replace(
        profile,
        tensor_parallel=degrees.tensor_parallel,
        pipeline_parallel=degrees.pipeline_parallel,
        expert_parallel=degrees.expert_parallel,
        attention_data_parallel=degrees.attention_data_parallel,
    )


def on_one_node(profile: ModelProfile, gpus: int, stack: Stack) -> str:
    """The first layout that the profile names for exactly so many GPUs, '' for none: what a replica takes where nobody
    asked for another."""
    fitting = (
        each.name
        for each in profile.layouts
        if each.tensor_parallel * each.pipeline_parallel == gpus and stack.engine_version.startswith(each.versions)
    )
    return next(fitting, "")


def name_of(profile: ModelProfile, layout: Layout) -> str:
    """The name that the profile gives these degrees alone, without flags or environment beside them; '' for none."""
    plain = (each for each in profile.layouts if not each.flags and not each.env)
    return next((each.name for each in plain if usual(each, layout.nnodes, layout.gpus_per_node) == layout), "")


def refusal(profile: ModelProfile, stack: Stack, gpus: Iterable[Gpu] = ()) -> ModelRefusal | None:
    """Why this stack can't serve the model on these GPUs; an L40S is assumed where none is known."""
    least = min((capability(gpu) or L40S.sm for gpu in gpus), default=L40S.sm)
    return next(
        (
            each
            for each in profile.refused
            if stack.engine_version.startswith(each.versions)
            and (not each.below or (stack.device == "cuda" and least < each.below))
        ),
        None,
    )


def refuse(profile: ModelProfile, stack: Stack, gpus: Iterable[Gpu], where: str) -> None:
    """Raises InputError with the reason where this stack can't serve the model on these GPUs."""
    against = refusal(profile, stack, gpus)
    if against is not None:
        raise InputError(
            f"{profile.name} can't be served by the stack {stack.name} here: {against.reason} ({against.source})",
            where=where,
            fix=_instead(against),
        )


def _instead(against: ModelRefusal) -> str:
    """What an operator can do about a refusal."""
    if against.below and against.versions:
        return f"use GPUs of compute capability {against.below / 10:g} or newer, another stack, or another model"
    if against.below:
        return f"use GPUs of compute capability {against.below / 10:g} or newer, or another model"
    return "choose another stack with --stack, or another model"


def adapted(
    profile: ModelProfile,
    stack: Stack,
    able: frozenset[str],
    *,
    nodes: int,
    gpus_per_node: int,
    fits: Callable[[ModelProfile, Layout], bool],
) -> ModelProfile:
    """The profile with a layout that these nodes can have; as it was where none works, for `layout.refuse` to say why.

    Its usual layout comes first, then its named layouts in its own order, then every TP x PP that the checkpoint's
    arithmetic allows, with the least pipelining first.
    fits: whether the weights of the profile with that layout leave room for a KV cache
    """
    found = working(profile, nodes=nodes, gpus_per_node=gpus_per_node, able=able)
    own = (_with(profile, one) for one in profile.layouts if stack.engine_version.startswith(one.versions))
    for candidate in (profile, *own, *(_at(profile, layout) for layout in found)):
        layout = usual(candidate, nodes, gpus_per_node)
        if not reasons(candidate, layout, able) and fits(candidate, layout):
            return candidate
    return profile
