"""Which layouts of a model fit a gang, without its facts: what `models` lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from orchestrator.engines.registry import engine_of
from orchestrator.model.engine_versions import holds_for
from orchestrator.model.gpu_facts import L40S, facts_of
from orchestrator.model.inventory import GangSpec
from orchestrator.model.plan import Memory
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
from orchestrator.protocol.errors import InputError
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
    offered = _Offered(
        profile=profile,
        stack=stack,
        where=f"gang {gang.name}",
        flags=commands.asked(engine_of(stack), profile, stack, gang.leader, ()),
        gpu_total=gpu_total,
        gpu=gpu,
        network=network,
        own=own,
    )
    usual = layout.usual(profile, nodes, each)
    against = offered.refusal(usual)
    return ModelOffer(
        model=profile.name,
        gang=gang.name,
        nodes=nodes,
        gpus_per_node=each,
        stack=stack.name,
        fits=offered.fits(_works(profile, stack, offered.able, nodes, each), None if against else usual),
        refusal=against.what if against else "",
        instead=against.fix if against else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offered:
    """A model by a stack on the GPUs of a gang, in any layout. flags: that decide about memory; the rest is as in
    `offer`."""

    profile: ModelProfile
    stack: Stack
    where: str
    flags: memory.Flags
    gpu_total: int
    gpu: str
    network: Network
    own: Sequence[OwnPoint]

    @property
    def able(self) -> frozenset[str]:
        """What the engine can do."""
        return layout.abilities(engine_of(self.stack))

    def budget(self, candidate: Layout) -> Memory:
        """Raises InputError where it does not fit."""
        return memory.budget(
            self.profile,
            self.stack,
            candidate,
            flags=self.flags,
            nvlink=bool((known := facts_of(self.gpu)) and known.nvlink),
            gpu_total=self.gpu_total,
            where=self.where,
        )

    def tokens(self, candidate: Layout) -> int | None:
        """0 where it does not fit, None where nothing can be said (an engine on CPU)."""
        try:
            return self.budget(candidate).kv_tokens
        except InputError:
            return 0

    def refusal(self, usual: Layout) -> InputError | None:
        """Why the layout that `plan` would take does not work, and what does."""
        try:
            layout.refuse_model(self.profile, self.stack, (), self.where)
            layout.refuse(self.profile, usual, self.able, fits=self._fits, where=self.where)
            self.budget(usual)
        except InputError as wrong:
            return wrong
        return None

    def fits(self, candidates: Iterable[Layout], default: Layout | None) -> tuple[LayoutFit, ...]:
        """Those for which there is memory, as far as that can be told. default: what `plan` takes"""
        tokens = ((candidate, self.tokens(candidate)) for candidate in candidates)
        return tuple(self.fit(candidate, kv, default=candidate == default) for candidate, kv in tokens if kv != 0)

    def _fits(self, candidate: Layout) -> bool:
        return self.tokens(candidate) != 0

    def fit(self, candidate: Layout, tokens: int | None, *, default: bool) -> LayoutFit:
        """What is known of a layout. tokens: as `tokens` tells; default: `plan` would take it."""
        profile, attention = self.profile, engine_of(self.stack).attention
        reduces = attention.reduces if attention else REDUCES_A_LAYER
        why = unsaid(profile, candidate, self.gpu) if self.stack.device == "cuda" else "the engine runs on CPU"
        calculated = partial(speeds, network=self.network, whole_reduces=reduces, own=self.own)
        return LayoutFit(
            layout=candidate,
            name=layout.name_of(profile, candidate),
            weights=memory.weights_per_gpu(profile, candidate),
            kv_tokens=tokens,
            measured=(self.stack.name, str(candidate)) in profile.measured,
            default=default,
            speeds=None if why else calculated(profile, candidate, self.gpu),
            unsaid=why,
            sent=bytes_a_token(profile.dimensions, candidate, whole_reduces=reduces),
            read=page_cache.to_read(memory.checkpoint_bytes(profile), candidate),
        )


def _works(profile: ModelProfile, stack: Stack, able: frozenset[str], nodes: int, each: int) -> tuple[Layout, ...]:
    """By the checkpoint's arithmetic, with attention groups a node, and with the profile's own names."""
    if layout.refusal(profile, stack):
        return ()
    by_arithmetic = layout.working(profile, nodes=nodes, gpus_per_node=each, able=able)
    if stack.device == "cuda":
        by_arithmetic = layout.with_attention_a_node(profile, by_arithmetic, able)
    own = (
        layout.usual(named, nodes, each)
        for named in profile.layouts
        if holds_for(named.versions, engine_of(stack).version) and not named.flags and not named.env
    )
    return tuple(dict.fromkeys((*by_arithmetic, *(named for named in own if not layout.reasons(profile, named, able)))))
