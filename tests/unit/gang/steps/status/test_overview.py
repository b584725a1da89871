"""`status` keeps what the next plan goes by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.reference_cluster import gang

from orchestrator.gang.steps.status import overview
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.report import RankReport, RankState
from orchestrator.records.documents import least_free
from orchestrator.remote.fleet import Fleet

GIB = 1 << 30


def view(free: int | None, **more: Any) -> GangView:
    """A gang whose one node has seen so little free."""
    ranks = (RankReport(tp_rank=0, gpu=0, state=RankState.ALIVE),)
    node = NodeView(name="node0", node_rank=0, state=NodeState.READY, alive=True, ranks=ranks, least_free_bytes=free)
    usual = {"state": GangState.READY, "service_healthy": True, "plan_id": "p1", "nodes": (node,)}
    return GangView(name="gang0", **{**usual, **more})


@pytest.mark.parametrize(
    ("about", "seen", "kept"),
    [
        ("it serves", view(6 * GIB), 6 * GIB),
        ("it is still starting", view(6 * GIB, state=GangState.STARTING), None),
        ("no node tells it", view(None), None),
        ("its plan is unknown", view(6 * GIB, plan_id=""), None),
    ],
)
def test_the_least_free_memory_of_what_serves_is_kept_for_the_next_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, about: str, seen: GangView, kept: int | None
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(overview, "everything", lambda *_, **__: PerNode(values={}, failures={}))
    monkeypatch.setattr(overview, "views_of", lambda *_: (seen,))
    monkeypatch.setattr(overview, "_asked_what_they_do", lambda *_: {})
    monkeypatch.setattr(overview, "interrupted", lambda *_, **__: ())
    assert overview.status(Fleet(()), [gang()]).views == (seen,)
    assert least_free("gang0", "p1") == kept, about
