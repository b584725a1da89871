"""Which layouts of a model fit a gang, without its facts: what `models` lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.engines.registry import engine_of
from orchestrator.model.errors import InputError
from orchestrator.model.gpu_facts import L40S, facts_of
from orchestrator.model.inventory import GangSpec
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.planning import engine_command as commands
from orchestrator.planning import layout, memory, page_cache
from orchestrator.planning.roofline import (
    RDMA,
    REDUCES_A_LAYER,
    Network,
    OwnPoint,
    Speeds,
    bytes_a_token,
    speeds,
    unsaid,
)
from orchestrator.protocol.planned import Layout

L40S_BYTES = L40S.nvml_mib << 20
"""What NVML says a 48 GB L40S has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFit:
    """One layout that works and fits.

    name:      what the profile calls it, '' for nothing
    weights:   bytes on the fullest GPU
    kv_tokens: of each attention group; None for an engine on CPU
    default:   what `plan` takes where nobody pins anything
    speeds:    calculated; None where nothing can be said; unsaid: why
    sent:      bytes that the nodes send to each other for a generated token, calculated
    read:      bytes of weight files that one node reads at a start
    here:      tokens a second by requests at once, as `sweep` measured them on these nodes
    """

    layout: Layout
    name: str
    weights: int | None
    kv_tokens: int | None
    measured: bool
    default: bool
    speeds: Speeds | None = None
    unsaid: str = ""
    sent: int = 0
    read: int = 0
    here: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOffer:
    """A model on a gang by a stack.

    refusal, instead: why the layout that `plan` would take does not work, and what does; '' where it works
    """

    model: str
    gang: str
    nodes: int
    gpus_per_node: int
    stack: str
    fits: tuple[LayoutFit, ...]
    refusal: str = ""
    instead: str = ""


def offer(
    profile: ModelProfile,
    stack: Stack,
    gang: GangSpec,
    *,
    gpu_total: int = L40S_BYTES,
    gpu: str = L40S.name,
    network: Network = RDMA,
    own: Sequence[OwnPoint] = (),
) -> ModelOffer:
    """Every layout that the checkpoint's arithmetic and the memory allow; nothing unmeasured is ranked.

    network: how its nodes communicate, and what `nettest` measured of that; own: what `sweep` measured of the model
    """
    nodes, each = len(gang.nodes), gang.leader.gpus
    engine = engine_of(stack)
    able, where = layout.abilities(engine), f"gang {gang.name}"
    flags = commands.asked(engine, profile, stack, gang.leader, ())
    nvlink = bool((known := facts_of(gpu)) and known.nvlink)
    reduces = engine.attention.reduces if engine.attention else REDUCES_A_LAYER

    def tokens_of(candidate: Layout) -> int | None:
        """0 where it does not fit, None where nothing can be said (an engine on CPU)."""
        try:
            return memory.budget(
                profile, stack, candidate, flags=flags, nvlink=nvlink, gpu_total=gpu_total, where=where
            ).kv_tokens
        except InputError:
            return 0

    def fit_of(candidate: Layout, tokens: int | None) -> LayoutFit:
        why = unsaid(profile, candidate, gpu) if stack.device == "cuda" else "the engine runs on CPU"
        return LayoutFit(
            layout=candidate,
            name=layout.name_of(profile, candidate),
            weights=memory.weights_per_gpu(profile, candidate),
            kv_tokens=tokens,
            measured=(stack.name, str(candidate)) in profile.measured,
            default=candidate == usual and not refusal,
            speeds=None if why else speeds(profile, candidate, gpu, network=network, whole_reduces=reduces, own=own),
            unsaid=why,
            sent=bytes_a_token(profile.dimensions, candidate, whole_reduces=reduces),
            read=page_cache.to_read(memory.checkpoint_bytes(profile), candidate),
        )

    usual, refusal, advice = layout.usual(profile, nodes, each), "", ""
    try:
        layout.refuse_model(profile, stack, (), where)
        layout.refuse(profile, usual, able, fits=lambda candidate: tokens_of(candidate) != 0, where=where)
        memory.budget(profile, stack, usual, flags=flags, nvlink=nvlink, gpu_total=gpu_total, where=where)
    except InputError as wrong:
        refusal, advice = wrong.what, wrong.fix
    fits = ((candidate, tokens_of(candidate)) for candidate in _works(profile, stack, able, nodes, each))
    return ModelOffer(
        model=profile.name,
        gang=gang.name,
        nodes=nodes,
        gpus_per_node=each,
        stack=stack.name,
        fits=tuple(fit_of(candidate, tokens) for candidate, tokens in fits if tokens != 0),
        refusal=refusal,
        instead=advice,
    )


def _works(profile: ModelProfile, stack: Stack, able: frozenset[str], nodes: int, each: int) -> tuple[Layout, ...]:
    """By the checkpoint's arithmetic, with attention groups a node, and with the profile's own names."""
    if layout.refusal(profile, stack):
        return ()
    found = layout.working(profile, nodes=nodes, gpus_per_node=each, able=able)
    if stack.device == "cuda":
        found = layout.with_attention_a_node(profile, found, able)
    own = (
        layout.usual(one, nodes, each)
        for one in profile.layouts
        if engine_of(stack).version.startswith(one.versions) and not one.flags and not one.env
    )
    return tuple(dict.fromkeys((*found, *(one for one in own if not layout.reasons(profile, one, able)))))
