"""What a gang's earlier runs show: why it was restarted, how long its phases took."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from orchestrator.gang.history import PastRun
from orchestrator.monitoring.scene import GangFailure
from orchestrator.rules.support.catalogue import UNKNOWN_CAUSE

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
