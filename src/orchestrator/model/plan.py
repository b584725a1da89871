"""A plan: everything that `up` will do, computed before it does anything. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.model.finding import Finding
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.staging import NodePlan

Seconds = tuple[float, float]
"""At least and at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One GPU's budget in bytes, with the arithmetic in words; None where it could not be computed.

    static_fraction: of the memory before the weights, what the engine takes for weights and KV cache
    request_table: where each request's tokens are (req_to_token), part of the reserve; None where no context length is
        known
    graphs: batch sizes whose decode is captured as CUDA graphs; None where the engine's rule is not known
    graph_bytes: what these take of the reserve, needed: what of the reserve is needed at all, by what was measured;
        None where nothing was
    capture_s, compile_s: seconds that these take of a start, and more of the first one; None where nothing was measured
    least_free: the least that was seen free in a run of this very plan, by NVML; None where nothing was kept
    requests: of 2,048 tokens each, that run at once in the whole gang by KV tokens and flags; None where not known
    next_fraction: a static fraction that would leave just that, and next_kv_tokens; None where the reserve has no more
    """

    gpu_total: int | None = None
    weights: int | None = None
    kv_bytes_per_token: int | None = None
    static_fraction: float | None = None
    kv_tokens: int | None = None
    reserve: int | None = None
    request_table: int | None = None
    graphs: tuple[int, ...] | None = None
    graph_bytes: int | None = None
    capture_s: Seconds | None = None
    compile_s: Seconds | None = None
    needed: int | None = None
    least_free: int | None = None
    next_fraction: float | None = None
    next_kv_tokens: int | None = None
    requests: int | None = None
    explanation: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEstimate:
    """How long each phase of a start takes, calculated, in order.

    first: with nothing cached; again: with the weight files in RAM as far as they fit, and all kernels compiled
    """

    first: Mapping[str, Seconds]
    again: Mapping[str, Seconds]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPlan:
    """One gang's run: its nodes' parts, in node-rank order, and what is decided for all of them and staged on none."""

    name: str
    dialect: str
    engine_version: str
    layout: Layout
    memory: Memory
    dist_init: str
    """host:port of the rendezvous."""
    http_port: int
    nccl_port: int | None = None
    """None where NCCL takes any."""
    model_bytes: int
    start: StartEstimate | None = None
    """None where no such engine was measured."""
    nodes: tuple[NodePlan, ...]

    @property
    def leader(self) -> NodePlan:
        """The part of the node that serves; model, stack, device, lease and key are the same in all parts."""
        return self.nodes[0]

    @property
    def model(self) -> str:
        """The model profile's name."""
        return self.leader.model

    @property
    def stack(self) -> str:
        """The stack's name."""
        return self.leader.stack

    @property
    def service_url(self) -> str:
        """Where the gang serves."""
        return self.leader.http_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All gangs of one deployment.

    plan_id:      short digest of what runs where; the same inputs give the same id
    facts_digest: digest of the facts that the plan rests on; `up --plan` refuses when they changed
    facts:        (node, name, value) of each of these facts, so that a refusal can say which changed
    """

    plan_id: str
    facts_digest: str
    facts: tuple[tuple[str, str, str], ...]
    gangs: tuple[GangPlan, ...]
    findings: tuple[Finding, ...] = ()
    accepted: tuple[Finding, ...] = ()
    """Findings that the operator has set aside by name."""
