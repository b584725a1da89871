"""The downtime of a restart, shown in advance."""

from __future__ import annotations

import pytest

from orchestrator.gang.steps.start_time import expected_downtime
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.protocol.report import Phase

READY = Phase(name="ready")


def node(rank: int, started_s: float, phase_s: float, phase: Phase = READY) -> NodeView:
    return NodeView(
        name=f"node{rank}", node_rank=rank, state=NodeState("ready"), phase=phase, started_s=started_s, phase_s=phase_s
    )


@pytest.mark.parametrize(
    ("nodes", "healthy", "words"),
    [
        ((node(0, 500, 290), node(1, 500, 300)), True, "about 4 min (its last start took 210 s)"),
        ((node(0, 50, 8.0),), True, "about 40 s (its last start took 42 s)"),
        ((node(0, 50, 8.0, Phase(name="weights")),), True, "is not known"),
        ((node(0, 500, 290),), False, "is not serving now"),
    ],
)
def test_words(nodes: tuple[NodeView, ...], healthy: bool, words: str) -> None:
    view = GangView(name="gang0", state=GangState.READY, service_healthy=healthy, nodes=nodes)
    told = expected_downtime(view, drain_s=50)
    assert words in told.words
    assert ("50 s" in told.words) == healthy
