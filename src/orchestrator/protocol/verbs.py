"""The gang's verbs: what the controller asks a node's application, and its answers. docs/agent.md has the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.protocol.report import AgentState
from orchestrator.protocol.shape import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Because(Message):
    """A failure that the controller saw and no agent can have seen: why a run is ended."""

    node: str = ""
    text: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAnswer(Message):
    """folder: of the run, on the node."""

    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAnswer(Message):
    """Of `arm` and `go`: the agent's state afterwards."""

    state: AgentState


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAnswer(Message):
    """state: the agent's afterwards, or absent where nothing was ever staged."""

    state: str
    alive: bool = False
    left_behind: tuple[int, ...] = ()
    """Process ids that would not end."""
    held: tuple[str, ...] = ()
    """GPUs whose memory did not become free, and who holds it, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAnswer(Message):
    """now: node's epoch seconds; reports: one a gang, each read on its own; seen: a mark that changes with them."""

    now: float
    state_dir: str = ""
    reports: tuple[Any, ...] = ()
    seen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryAnswer(Message):
    """reports: one a kept run; events: of the run that was asked for, oldest first; audit: who worked on the gang."""

    now: float
    reports: tuple[Any, ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    audit: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcerptAnswer(Message):
    """Lines of the log; marked: the place of the one that was looked for, -1 where the log does not have it."""

    found: bool = False
    lines: tuple[str, ...] = ()
    marked: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedAnswer(Message):
    """request: the staging request without its key, secrets and script."""

    request: Any
    launch_script: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder(Message):
    """Who holds a lock; None where a lock does not say. age_s: since the last renewal, by the node's clock."""

    token: str
    who: str | None = None
    host: str | None = None
    pid: int | None = None
    start: int | None = None
    boot: str | None = None
    pid_namespace: str | None = None
    command: str | None = None
    since: float | None = None
    why: str | None = None
    age_s: float = 0.0
    stale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LockAnswer(Message):
    """begun: what the holder, or one that was killed, has begun and not finished."""

    held: LockHolder | None = None
    mine: bool = False
    begun: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer(Message):
    """error: why there is no status; '' where there is one."""

    status: int = 0
    body: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAnswer(Message):
    """In the order of the requests."""

    answers: tuple[HttpAnswer, ...]


ANSWERS: Mapping[str, type[Message]] = {
    "stage": StageAnswer,
    "arm": StateAnswer,
    "go": StateAnswer,
    "stop": StopAnswer,
    "report": ReportAnswer,
    "history": HistoryAnswer,
    "excerpt": ExcerptAnswer,
    "staged": StagedAnswer,
    "lock": LockAnswer,
    "ask": AskAnswer,
}
"""By verb."""
