"""A plan: everything that `up` will do, computed before it does anything. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.model.finding import Finding
from orchestrator.model.profile import Canary
from orchestrator.protocol.planned import Layout, NodeNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One GPU's budget in bytes, with the arithmetic in words; None where it could not be computed.

    static_fraction: of the memory before the weights, what the engine takes for weights and KV cache
    request_table: where each request's tokens are (req_to_token), part of the reserve; None where no context length is
        known
    graphs: batch sizes whose decode is captured as CUDA graphs; None where the engine's rule is not known
    graph_bytes: what these take of the reserve, needed: what of the reserve is needed at all, by what was measured;
        None where nothing was
    least_free: the least that was seen free in a run of this very plan, by NVML; None where nothing was kept
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
    needed: int | None = None
    least_free: int | None = None
    next_fraction: float | None = None
    next_kv_tokens: int | None = None
    explanation: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What the engine runs in on a node that starts it from an image.

    program: docker or podman
    gpus:    NVML indices; inside they are numbered from 0
    rdma:    /dev/infiniband is shown inside
    shown:   directories that are inside what they are outside, each with whether the engine may write
    """

    program: str
    image: str
    gpus: tuple[int, ...] = ()
    rdma: bool = False
    shown: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """What runs on one node.

    argv and env are complete: the agent starts exactly this and adds nothing; in a container where there is one. They
    are made from what was decided, which stands beside them; nobody reads them back.
    command, flags: the words before the flags, and each flag with its values
    graph_batch: the largest batch that is captured as a CUDA graph; None where the engine chooses
    sources: for each env variable and flag, where its value comes from, so that an operator can check it
    env_public: names of variables that may be shown beside those that are documented
    gpu_uuids: of `gpus`, in their order; () where NVML was not read
    """

    gang: str
    name: str
    node_rank: int
    address: str
    command: tuple[str, ...]
    flags: tuple[tuple[str, ...], ...]
    env: tuple[tuple[str, str], ...]
    sources: tuple[tuple[str, str], ...]
    gpus: tuple[int, ...]
    tp_ranks: tuple[int, ...]
    working_dir: str
    model_path: str
    http_url: str
    network: NodeNetwork = field(default_factory=NodeNetwork)
    container: Container | None = None
    graph_batch: int | None = None
    env_public: tuple[str, ...] = ()
    gpu_uuids: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        """The complete command line."""
        return (*self.command, *(word for flag in self.flags for word in flag))


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPlan:
    """One gang's run: who leads, where it listens, how long silence may last."""

    name: str
    model: str
    stack: str
    dialect: str
    engine_version: str
    layout: Layout
    memory: Memory
    dist_init: str
    """host:port of the rendezvous."""
    service_url: str
    agent_address: str
    agent_port: int
    http_port: int
    lease_s: float
    model_bytes: int
    canary: Canary
    nodes: tuple[NodePlan, ...]
    device: str = "cuda"
    nccl_port: int | None = None
    """None where NCCL takes any."""
    api_key: str = ""
    """Fingerprint of the service's API key, '' where it asks for none; the key itself is in no plan."""


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
