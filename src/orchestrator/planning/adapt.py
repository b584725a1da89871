"""Another layout for a gang that has fewer nodes than it should have. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from orchestrator.model.errors import InputError
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.planning import layout, named
from orchestrator.planning.layout import Abilities, Degrees


def adapted(
    profile: ModelProfile,
    stack: Stack,
    able: Abilities,
    *,
    nodes: int,
    gpus_per_node: int,
    fits: Callable[[ModelProfile, Degrees], bool],
) -> ModelProfile:
    """The profile with a layout that these nodes can have; as it was where none works, for `layout.choose` to say why.

    Its usual layout comes first, then its named layouts in its own order, then every TP x PP that the checkpoint's
    arithmetic allows, with the least pipelining first.
    fits: whether the weights of the profile with that layout leave room for a KV cache
    """
    for candidate, degrees in _candidates(profile, stack, able, nodes, gpus_per_node):
        if not layout.reasons(candidate, degrees, nodes, gpus_per_node, able) and fits(candidate, degrees):
            return candidate
    return profile


def _candidates(
    profile: ModelProfile, stack: Stack, able: Abilities, nodes: int, gpus_per_node: int
) -> Iterator[tuple[ModelProfile, Degrees]]:
    gpus = nodes * gpus_per_node
    pipeline = profile.pipeline_parallel or 1
    tensor = profile.tensor_parallel or max(1, gpus // pipeline)
    attention = profile.attention_data_parallel or 1
    yield profile, Degrees(tensor, pipeline, profile.expert_parallel or 1, attention)
    for one in profile.layouts:
        try:
            candidate = named.laid_out(profile, one.name, stack)
        except InputError:
            continue  # of another engine version
        yield candidate, layout.degrees_of(one)
    for degrees in layout.working(profile, gpus=gpus, nodes=nodes, able=able):
        candidate = replace(
            profile,
            tensor_parallel=degrees.tensor,
            pipeline_parallel=degrees.pipeline,
            expert_parallel=degrees.expert,
            attention_data_parallel=degrees.attention,
        )
        yield candidate, degrees
