"""What a node agent says about its part of a gang, and what all of them together mean.

The agent writes JSON; `from_json` reads it with tolerance, since agents and controllers of different
versions must understand each other enough to report and to stop: unknown keys are passed over, missing
ones take their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class AgentState(str, Enum):
    """Where one node's agent is. ABSENT is the controller's word for no agent at all."""

    ABSENT = "absent"
    STAGED = "staged"
    ARMED = "armed"
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class GangState(str, Enum):
    """Where a gang is, derived from all its nodes' reports; stored nowhere."""

    ABSENT = "absent"
    STAGED = "staged"
    ARMED = "armed"
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    STOPPING = "stopping"
    RESTARTING = "restarting"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What the engine is doing: rendezvous, nccl, weights, kv-cache, graphs, warm-up, ready.

    step and of count inside the phase (shard 41 of 163); 0 where it has no steps. since, moved: node's epoch seconds
    when the phase began and when its step last changed (0: never).
    """

    name: str = ""
    step: int = 0
    of: int = 0
    since: float = 0.0
    moved: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a gang ended: what failed first. signature: id in the catalogue of engines/, '' when unmatched."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """One TP rank's process. state: expected, alive, stopped (by a signal), dead."""

    tp_rank: int
    gpu: int
    pid: int = 0
    state: str = "expected"
    gpu_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TransportLines:
    """planned: NCCL's environment by name; lines: what it said, each once (docs/agent.md)."""

    planned: tuple[tuple[str, str], ...] = ()
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One agent's whole report.

    updated_at: node's epoch seconds of the last write; now: node's epoch seconds when it was read,
                so that `now - updated_at` needs no common clock
    alive:      the agent's process exists (a report of a dead agent is history, not state)
    """

    run_id: str
    gang: str
    node: str
    node_rank: int
    state: AgentState
    phase: Phase = Phase()
    model: str = ""
    stack: str = ""
    plan_id: str = ""
    agent_version: str = ""
    alive: bool = True
    started_at: float = 0.0
    updated_at: float = 0.0
    now: float = 0.0
    engine_pid: int = 0
    ranks: tuple[RankReport, ...] = ()
    service_url: str = ""
    service_healthy: bool | None = None
    """None where this node does not serve HTTP for the gang."""
    service_checked_at: float = 0.0
    service_state: str = ""
    """well, slow or hung, by the leader's generation probes (docs/agent.md); '' before ready and on other nodes."""
    service_detail: str = ""
    trouble: Cause | None = None
    """What is wrong with a gang that still runs: a hung engine."""
    transport: TransportLines | None = None
    """What NCCL said of it once the gang was ready."""
    canary_text: str | None = None
    cause: Cause | None = None
    """Why this node's part ended."""
    verdict: Cause | None = None
    """Why the gang ended: the first cause in the order in which the leader's agent heard of them."""
    silent: tuple[str, ...] = ()
    """Nodes of the gang that this agent has not heard from for longer than it should."""
    remarks: tuple[str, ...] = ()
    """What the agent's checks found and did not refuse."""
    left_behind: tuple[int, ...] = ()
    """Process ids that would not end."""
    held: tuple[str, ...] = ()
    """GPUs whose memory was not free after the end, with who holds it, in words."""
    links: tuple[tuple[str, str], ...] = ()
    """(node, word) for each agent that this one should hear: heard, silent, lost, or ended in good order."""
    rebooted: bool = False
    """The agent is gone because the machine has booted since."""
    allowed_s: tuple[tuple[str, float], ...] = ()
    """(phase, seconds) that a healthy start of this model may take on slow hardware."""
    barrier_s: float = 0.0
    """How long the engine lets loaded ranks wait for the others before it gives up; 0 where it does not."""

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> NodeReport:
        """Read an agent's JSON (docs/agent.md); raises ValueError where it is no report at all."""
        try:
            phase = raw.get("phase") or {}
            return cls(
                run_id=str(raw["run_id"]),
                gang=str(raw["gang"]),
                node=str(raw["node"]),
                node_rank=int(raw["node_rank"]),
                state=AgentState(raw["state"]),
                phase=_known(Phase, phase),
                cause=_cause(raw.get("cause")),
                verdict=_cause(raw.get("verdict")),
                trouble=_cause(raw.get("trouble")),
                ranks=tuple(_known(RankReport, rank) for rank in raw.get("ranks") or ()),
                silent=tuple(str(name) for name in raw.get("silent") or ()),
                remarks=tuple(str(remark) for remark in raw.get("remarks") or ()),
                left_behind=tuple(int(pid) for pid in raw.get("left_behind") or ()),
                held=tuple(str(words) for words in raw.get("held") or ()),
                links=tuple((str(node), str(word)) for node, word in (raw.get("links") or {}).items()),
                allowed_s=tuple((str(name), float(value)) for name, value in (raw.get("allowed_s") or {}).items()),
                transport=_transport(raw.get("transport")),
                **{key: raw[key] for key in _PLAIN_KEYS if key in raw},
            )
        except (KeyError, TypeError, AttributeError) as wrong:
            raise ValueError(f"not an agent's report: {wrong!r}") from wrong


_PLAIN_KEYS = (
    "model", "stack", "plan_id", "agent_version", "alive", "started_at", "updated_at", "now",
    "engine_pid", "service_url", "service_healthy", "service_checked_at",
    "service_state", "service_detail", "canary_text", "rebooted", "barrier_s",
)  # fmt: skip


def _known(kind: type[Any], raw: Mapping[str, Any]) -> Any:
    fields = kind.__dataclass_fields__
    return kind(**{key: value for key, value in raw.items() if key in fields})


def _cause(raw: Mapping[str, Any] | None) -> Cause | None:
    if raw is None:
        return None
    return Cause(
        **{key: value for key, value in raw.items() if key in Cause.__dataclass_fields__ and key != "lines"},
        lines=tuple(str(line) for line in raw.get("lines") or ()),
    )


def _transport(raw: Mapping[str, Any] | None) -> TransportLines | None:
    if not raw:
        return None
    planned = dict(raw.get("planned") or {})
    return TransportLines(
        planned=tuple((str(name), str(value)) for name, value in planned.items()),
        lines=tuple(str(line) for line in raw.get("lines") or ()),
    )
