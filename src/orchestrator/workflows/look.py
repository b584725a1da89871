"""Look: one snapshot of every node, all nodes at once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from orchestrator.model.errors import NodeError
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.snapshot_json import snapshot_from_json
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session

NVML_DEADLINE_S = 15.0
"""Without persistence mode the driver starts all GPUs at the first question, which takes seconds."""
DEADLINE_S = 45.0
"""For the whole look at one node: NVML's deadline, that of the files, and the way."""


def look(fleet: Fleet, nodes: Iterable[NodeSpec]) -> PerNode[Snapshot]:
    """A snapshot of each node.

    Its host facts have two more than the node gave: `clock_offset_s`, the node's clock less ours, and
    `round_trip_s`, twice the most that the offset can be wrong by.
    """
    return fleet.on_every(_look_at, only={node.name for node in nodes})


def _look_at(session: Session) -> Snapshot:
    spec = session.spec
    request = {"node": spec.name, "fs_root": spec.fs_root, "nvml_deadline_s": NVML_DEADLINE_S}
    sent = time.time()
    answer = node_app.call(session, "probe", request, deadline_s=DEADLINE_S)
    received = time.time()
    try:
        snapshot = snapshot_from_json(answer)
    except ValueError as wrong:
        raise NodeError(
            f"the probe's answer is no snapshot: {wrong}", where=spec.name, fix="report this with `discover --save`"
        ) from None
    return replace(snapshot, node=spec.name, host=_with_clock_offset(snapshot, sent, received))


def _with_clock_offset(snapshot: Snapshot, sent: float, received: float) -> dict[str, object]:
    """The probe says what time it is as the last thing it does, so half of the rest of the way lies behind it."""
    host = dict(snapshot.host)
    clock, spent = host.get("clock"), host.get("probe_seconds")
    if isinstance(clock, (int, float)):
        inside = spent.get("all") if isinstance(spent, dict) else None
        way = max(0.0, received - sent - (inside if isinstance(inside, (int, float)) else 0.0))
        host["clock_offset_s"] = round(clock - (received - way / 2), 4)
        host["round_trip_s"] = round(way, 4)
    return host
