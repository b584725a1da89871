"""What a node's agent reports about its part of a run. The reference lists the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum

from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.hang import Hang, HangLook
from orchestrator.protocol.message import Message, schema
from orchestrator.protocol.planned import NodeNetwork

FORMAT = 1
SILENT_S = 10.0
"""A living agent that has written nothing for this long is stuck; a node not heard for this long is shown as silent."""


class AgentState(str, Enum):
    """Where one node's agent is."""

    STAGED = "staged"
    ARMED = "armed"
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Nothing follows any more."""
        return self in (AgentState.STOPPED, AgentState.FAILED)

    @property
    def unwanted(self) -> bool:
        """The engine is no longer wanted."""
        return self is AgentState.STOPPING or self.over

    @property
    def ends(self) -> bool:
        """It is being stopped, or nothing follows any more."""
        return self is AgentState.DRAINING or self.unwanted

    @property
    def runs(self) -> bool:
        """The engine was started, and is not being stopped."""
        return self in (AgentState.STARTING, AgentState.WARMING, AgentState.READY)


class RankState(str, Enum):
    """STOPPED: by a signal."""

    EXPECTED = "expected"
    ALIVE = "alive"
    STOPPED = "stopped"
    DEAD = "dead"


@schema(frozen=True, slots=True, kw_only=True)
class Phase(Message):
    """What the engine is doing: rendezvous, nccl, weights, kv-cache, graphs, warm-up, ready.

    step and of count inside the phase (shard 41 of 163); 0 where it has no steps. since, moved: node's epoch seconds
    when the phase began, and when its step last changed or a compiler was last seen below the engine (0: never).
    """

    name: str = ""
    step: int = 0
    of: int = 0
    since: float = 0.0
    moved: float = 0.0


@schema(frozen=True, slots=True, kw_only=True)
class Cause(Message):
    """Why a node's part of a gang ended. signature: its id in `doctor --explain`, '' where none matches."""

    node: str
    tp_rank: int | None = None
    signal: int | None = None
    exit_code: int | None = None
    signature: str = ""
    text: str
    fix: str = ""
    lines: tuple[str, ...] = ()
    at: float = 0.0
    secondary: bool = False
    """True where this node only noticed that another one had failed."""
    hang: Hang | None = None
    """Which hang it is, where it is one and its evidence was gathered."""
    pid: int = 0
    gpu: int = -1
    """The process that is meant, and its GPU, where whoever says it does not know its rank; 0 and -1 for none."""


@schema(frozen=True, slots=True, kw_only=True)
class RankReport(Message):
    """One TP rank's process. gpu: -1 for none."""

    tp_rank: int
    gpu: int
    pid: int = 0
    state: RankState = RankState.EXPECTED
    gpu_memory_bytes: int = 0


@schema(frozen=True, slots=True, kw_only=True)
class TransportLines(Message):
    """network: as planned; lines: what NCCL said, each once."""

    network: NodeNetwork = field(default_factory=NodeNetwork)
    lines: tuple[str, ...] = ()


@schema(frozen=True, slots=True, kw_only=True)
class RailChange(Message):
    """An RDMA port that NCCL has left for the other one of its card. up: the port works again, and NCCL does not use
    it before the next start; at: node's epoch seconds when it was seen down."""

    port: str
    up: bool = False
    at: float = 0.0


@schema(frozen=True, slots=True, kw_only=True)
class ToldError(Message):
    """A DeployError of a node, as a message has it."""

    kind: str
    what: str
    where: str
    fix: str = ""

    @classmethod
    def of(cls, error: DeployError) -> ToldError:
        """That error."""
        return cls(**error.as_told())


def as_one(errors: Sequence[ToldError]) -> DeployError:
    """The first of these errors, of which there is one at least, with what the others say."""
    first, *more = errors
    what = "; and ".join([first.what, *(f"{other.where}: {other.what}" for other in more)])
    return DeployError(what, where=first.where, fix=first.fix, kind=first.kind)


@schema(frozen=True, slots=True, kw_only=True)
class Report(Message):
    """One agent's complete report.

    updated_at: node's epoch seconds of the last write; now: node's epoch seconds when it was read,
                so that `now - updated_at` needs no common clock
    alive:      the agent's process exists (a report of a dead agent is history, not state)
    """

    format: int = FORMAT
    run_id: str
    gang: str
    node: str
    node_rank: int
    nnodes: int = 0
    members: tuple[str, ...] = ()
    """Node names of the run in node-rank order; () where an older release wrote it."""
    state: AgentState
    phase: Phase = Phase()
    model: str = ""
    served: tuple[str, ...] = ()
    """Names that the engine answers to, as they were staged; () where an older release wrote it."""
    stack: str = ""
    plan_id: str = ""
    agent_version: str = ""
    started_at: float = 0.0
    updated_at: float = 0.0
    engine_pid: int = 0
    ranks: tuple[RankReport, ...] = ()
    service_url: str = ""
    certificate: str = ""
    """PEM text of the certificate that clients are shown; '' for none, and in reports of older releases."""
    serves_at: str = ""
    """ADDRESS:PORT of the gang's service, as this node's part of the plan has it; '' in reports of older releases."""
    request_limit: int | None = None
    """Most requests that may wait in the gang; of a router: most that it lets in at once. None: no limit, or an older
    release wrote it."""
    runs_at_once: int | None = None
    """Requests of usual length that the gang runs at once, by its plan. None: not known, or of an older release."""
    service_healthy: bool | None = None
    """None where this node does not serve HTTP for the gang."""
    service_checked_at: float = 0.0
    service_latency_s: float = 0.0
    """How long the last probe took; once ready it generates a token where the engine has such a probe."""
    service_state: str = ""
    """well, slow or hung, by the leader's generation probes; '' before ready and on other nodes."""
    service_detail: str = ""
    trouble: Cause | None = None
    """What is wrong with a gang that still runs: a hung engine."""
    looks_until: float = 0.0
    """By when what is known of a hang will have been gathered here, node's epoch seconds; 0 while nothing is."""
    hang: HangLook | None = None
    """What was gathered at this run's newest hang."""
    canary_text: str | None = None
    cause: Cause | None = None
    """Why this node's part ended."""
    verdict: Cause | None = None
    """Why the gang ended: the first cause in the order in which the leader's agent heard of them."""
    began: Mapping[str, float] = field(default_factory=dict)
    """When each phase of the engine's start began here, in seconds since started_at."""
    checked: bool = False
    """The node's own checks have passed."""
    refusals: tuple[ToldError, ...] = ()
    """What the checks before a start found against it."""
    remarks: tuple[str, ...] = ()
    """What the agent's checks found and did not refuse."""
    proved: tuple[str, ...] = ()
    """What the plan asks for and the engine's log shows to be in use."""
    silent: tuple[str, ...] = ()
    """Nodes of the gang that this agent has not heard from for longer than it should."""
    links: Mapping[str, str] = field(default_factory=dict)
    """For each agent that this one should hear: heard, silent, lost, or ended."""
    rails: tuple[RailChange, ...] = ()
    """RDMA ports that NCCL has left behind in this run."""
    moved: int = 0
    """Connections that NCCL has moved to another port of their card."""
    least_free_bytes: int | None = None
    """The least that was seen free on any of the node's GPUs since the engine started, by NVML every two seconds; None
    where that was not read, and in reports of older releases."""
    left_behind: tuple[int, ...] = ()
    """Process ids that would not end."""
    held: tuple[str, ...] = ()
    """GPUs whose memory was not free after the end, and what holds it, as text."""
    boot_id: str = ""
    clock: tuple[float, ...] = ()
    """Epoch and monotonic seconds of one moment: what `now` is counted from, whatever steps the wall clock makes."""
    allowed_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each phase of a healthy start of this model may take on slow hardware."""
    barrier_s: float = 0.0
    """How long the engine lets loaded ranks wait for the others before it gives up; 0 where it does not."""
    alive: bool = True
    now: float = 0.0
    transport: TransportLines | None = None
    """What NCCL said of its transport once the gang was ready."""
    rebooted: bool = False
    """The agent is gone because the machine has booted since."""
    disk_full: bool = False
    """Its disk has no room: an agent that is gone could not record its end."""
    ordered: bool = False
    """The agent is gone, and a person has ended this run on this node, for no failure."""

    @property
    def word(self) -> str:
        """The agent's state, or silent or dead where that is not its state any more."""
        if self.alive:
            return "silent" if self.now - self.updated_at > SILENT_S else self.state.value
        return self.state.value if self.state.over or self.state is AgentState.STAGED else "dead"
