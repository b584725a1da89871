"""Everything that one scrape saw, and what it says of a gang's earlier runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.doctor.rules.support.catalogue import UNKNOWN_CAUSE
from orchestrator.engines.serving import Worker
from orchestrator.gang.history import PastRun
from orchestrator.gang.view import GangView
from orchestrator.model.errors import DeployError
from orchestrator.model.inventory import GangSpec
from orchestrator.protocol.gauges import FiguresAnswer
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
    receivers: Mapping[str, bool] = field(default_factory=dict)
    """Of notifications: whether the last one arrived, by what may be shown of each."""
    seconds: float = 0.0


STOPPED = "stopped"


def restarts(runs: Sequence[PastRun]) -> dict[str, int]:
    """How many runs followed another, by why that one ended. runs: the newest first."""
    counts: dict[str, int] = {}
    for before in runs[1:]:
        why = (before.cause.signature or UNKNOWN_CAUSE) if before.cause is not None else STOPPED
        counts[why] = counts.get(why, 0) + 1
    return counts


def more(before: Mapping[str, int], known: frozenset[str], runs: Sequence[PastRun]) -> dict[str, int]:
    """The counts with those runs added that were not known: nodes forget old runs, a counter must not go back."""
    counts = dict(before)
    for after, ended in itertools.pairwise(runs):
        if after.run_id not in known:
            for why in restarts([after, ended]):
                counts[why] = counts.get(why, 0) + 1
    return counts


def last_failure(runs: Sequence[PastRun], now: float, clock: float) -> GangFailure | None:
    """The newest failed run's. now: our epoch seconds; clock: the node's when the runs were told."""
    failed = next((run for run in runs if run.cause is not None), None)
    if failed is None or failed.cause is None:
        return None
    return GangFailure(cause=failed.cause, at=now - max(0.0, clock - failed.ended) if failed.ended else now)


def phases(began: Mapping[str, float]) -> dict[str, float]:
    """How long each phase took, from when each began; the last one has no end. As records.starts keeps it."""
    order = sorted(began.items(), key=lambda one: one[1])
    return {name: after - at for (name, at), (_, after) in itertools.pairwise(order)}
