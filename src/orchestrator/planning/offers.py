"""Which layouts of a model fit a gang, without its facts: what `models` lists."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.engines.engine import Engine
from orchestrator.engines.registry import engine_of
from orchestrator.model.errors import InputError
from orchestrator.model.gpu_facts import L40S
from orchestrator.model.inventory import GangSpec
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.planning import engine_command as commands
from orchestrator.planning import layout, memory, named, page_cache
from orchestrator.planning.build import abilities
from orchestrator.planning.roofline import RDMA, REDUCES_A_LAYER, Network, Speeds, bytes_a_token, speeds, unsaid
from orchestrator.protocol.layout import Layout

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
    """

    degrees: layout.Degrees
    name: str
    weights: int | None
    kv_tokens: int | None
    measured: bool
    default: bool
    speeds: Speeds | None = None
    unsaid: str = ""
    sent: int = 0
    read: int = 0


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
) -> ModelOffer:
    """Every layout that the checkpoint's arithmetic and the memory allow; nothing unmeasured is ranked.

    network: how its nodes communicate, and what `nettest` measured of that
    """
    nodes, each = len(gang.nodes), gang.leader.gpus
    engine = engine_of(stack)
    able = abilities(engine)
    where = f"gang {gang.name}"
    refusal, advice = "", ""
    usual: layout.Degrees | None = None
    flags = commands.asked(engine, profile, stack, gang.leader, ())

    def tokens_of(candidate: Layout) -> int | None:
        return _kv_tokens(profile, stack, candidate, flags, gpu_total)

    try:
        named.refuse(profile, stack, (), where)
        chosen = layout.choose(
            profile,
            nodes=nodes,
            gpus_per_node=each,
            able=able,
            fits=lambda candidate: tokens_of(candidate) != 0,
            where=where,
        )
        memory.budget(profile, stack, chosen, flags=flags, gpu_total=gpu_total, where=where)
        usual = layout.degrees_of(chosen)
    except InputError as wrong:
        refusal, advice = wrong.what, wrong.fix
    fits = []
    for degrees in _degrees(profile, stack, able, nodes, each):
        candidate = layout.layout_of(degrees, nodes, each)
        tokens = tokens_of(candidate)
        if tokens != 0:
            fits.append(
                LayoutFit(
                    degrees=degrees,
                    name=named.name_of(profile, degrees),
                    weights=memory.weights_per_gpu(profile, candidate),
                    kv_tokens=tokens,
                    measured=(stack.name, str(degrees)) in profile.measured,
                    default=degrees == usual,
                    speeds=_speeds(profile, stack, candidate, gpu, network),
                    unsaid=_unsaid(profile, stack, candidate, gpu),
                    sent=bytes_a_token(profile.dimensions, candidate, whole_reduces=_whole_reduces(engine)),
                    read=page_cache.to_read(memory.checkpoint_bytes(profile), candidate),
                )
            )
    return ModelOffer(
        model=profile.name,
        gang=gang.name,
        nodes=nodes,
        gpus_per_node=each,
        stack=stack.name,
        fits=tuple(fits),
        refusal=refusal,
        instead=advice,
    )


def _speeds(profile: ModelProfile, stack: Stack, candidate: Layout, gpu: str, network: Network) -> Speeds | None:
    if stack.device != "cuda":
        return None
    whole = _whole_reduces(engine_of(stack))
    return speeds(profile, candidate, gpu, network=network, whole_reduces=whole)


def _unsaid(profile: ModelProfile, stack: Stack, candidate: Layout, gpu: str) -> str:
    return unsaid(profile, candidate, gpu) if stack.device == "cuda" else "the engine runs on CPU"


def _whole_reduces(engine: Engine) -> int:
    return engine.attention.reduces if engine.attention else REDUCES_A_LAYER


def _degrees(
    profile: ModelProfile, stack: Stack, able: layout.Abilities, nodes: int, gpus_per_node: int
) -> tuple[layout.Degrees, ...]:
    """What works: by the checkpoint's arithmetic, with attention groups a node, and with the profile's own names."""
    if named.refusal(profile, stack):
        return ()
    found = layout.working(profile, gpus=nodes * gpus_per_node, nodes=nodes, able=able)
    if stack.device == "cuda":
        found = layout.with_attention_a_node(profile, found, gpus_per_node=gpus_per_node, able=able)
    own = (
        layout.degrees_of(one)
        for one in profile.layouts
        if stack.engine_version.startswith(one.versions) and not one.flags and not one.env
    )
    return tuple(
        dict.fromkeys((*found, *(one for one in own if not layout.reasons(profile, one, nodes, gpus_per_node, able))))
    )


def _kv_tokens(
    profile: ModelProfile, stack: Stack, candidate: Layout, flags: memory.Flags, gpu_total: int
) -> int | None:
    """0 where it does not fit, None where nothing can be said (an engine on CPU)."""
    try:
        return memory.budget(profile, stack, candidate, flags=flags, gpu_total=gpu_total, where="").kv_tokens
    except InputError:
        return 0
