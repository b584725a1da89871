"""Everything that one scrape saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.engines.router import Worker
from orchestrator.gang.view import GangView
from orchestrator.model.errors import DeployError
from orchestrator.model.inventory import GangSpec
from orchestrator.protocol.figures import FiguresAnswer
from orchestrator.protocol.report import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class GangFailure:
    """The newest failure of a gang. at: our epoch seconds."""

    cause: Cause
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known of a gang's earlier runs. restarts: by why the run before ended; phases: seconds of each phase of
    the last start."""

    restarts: Mapping[str, int] = field(default_factory=dict)
    failure: GangFailure | None = None
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSeen:
    """workers: None where the router did not list them."""

    node: str
    workers: tuple[Worker, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCheck:
    """What doctor found at its last check. at: our epoch seconds; findings: (id, severity, node), each as often as it
    was found."""

    at: float
    findings: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMeasurements:
    """Documents that `bench` and `nettest` keep: the newest of each load, and of each gang."""

    benches: Sequence[Mapping[str, Any]] = ()
    nettests: Sequence[Mapping[str, Any]] = ()


NOTHING_PAST = Past()
NOTHING_MEASURED = KeptMeasurements()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """nodes: what each node of the gangs answered, or why it did not; views: the gangs in the order of `gangs`.

    past: by gang; seconds: how long the asking took; version: ours
    """

    version: str
    gangs: tuple[GangSpec, ...]
    views: tuple[GangView, ...]
    nodes: Mapping[str, FiguresAnswer | DeployError]
    past: Mapping[str, Past] = field(default_factory=dict)
    router: RouterSeen | None = None
    looked: LastCheck | None = None
    measured: KeptMeasurements = NOTHING_MEASURED
    seconds: float = 0.0
