"""One message for each event, none for a repetition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.notify import Event
from orchestrator.monitoring.events import news
from orchestrator.protocol.report import Cause, RailChange

READY = GangView(name="g", state=GangState.READY, run_id="r1", service_healthy=True)
CAUSE = Cause(node="node1", tp_rank=3, text="killed", fix="look")
FAILED = replace(READY, state=GangState.FAILED, cause=CAUSE, service_healthy=None)
STARTING = replace(READY, state=GangState.STARTING, run_id="r2", service_healthy=None)
HUNG = replace(READY, state=GangState.DEGRADED, trouble="hung", cause=CAUSE)


def events(*views: GangView) -> list[Event]:
    told, found = "", []
    for view in views:
        notice, told = news(told, view, 1.0)
        found += [notice.event] if notice else []
    return found


@pytest.mark.parametrize(
    ("views", "wanted"),
    [
        ([READY, READY], []),
        ([READY, FAILED, FAILED, STARTING, READY], [Event.FAILED, Event.RESTORED]),
        ([READY, HUNG, HUNG, READY], [Event.DEGRADED, Event.RESTORED]),
        ([FAILED], [Event.FAILED]),
        ([STARTING, READY], []),
        ([READY, FAILED, STARTING, replace(FAILED, run_id="r2")], [Event.FAILED, Event.FAILED]),
        ([HUNG, FAILED, READY], [Event.DEGRADED, Event.FAILED, Event.RESTORED]),
        ([READY, replace(READY, state=GangState.ABSENT, service_healthy=None), READY], []),
    ],
)
def test_what_is_told(views: list[GangView], wanted: list[Event]) -> None:
    assert events(*views) == wanted


def on_rails(*rails: tuple[str, str, bool]) -> GangView:
    """A gang that serves although ports of these nodes failed: node, port, whether it is back."""
    nodes = tuple(
        NodeView(name=name, node_rank=rank, state=NodeState.READY, rails=(RailChange(port=port, up=up, at=1.0),))
        for rank, (name, port, up) in enumerate(rails)
    )
    return replace(READY, nodes=nodes)


def test_an_rdma_port_that_is_back_is_told_of_once_with_the_restart_that_it_takes() -> None:
    gone, back = on_rails(("node1", "mlx5_1:1", False)), on_rails(("node1", "mlx5_1:1", True))
    assert events(gone, gone) == [Event.DEGRADED]
    assert events(gone, back, back, gone, back) == [Event.DEGRADED] * 2, "one that comes and goes is no news"
    assert events(gone, back, READY, gone) == [Event.DEGRADED, Event.DEGRADED, Event.RESTORED, Event.DEGRADED]
    other = on_rails(("node1", "mlx5_1:1", True), ("node2", "mlx5_0:1", True))
    assert events(gone, back, other, back) == [Event.DEGRADED] * 3
    notice, told = news("degraded rails", back, 7.0)
    assert notice is not None and told.startswith("degraded rails")
    assert "node1: RDMA port mlx5_1:1 is back" in notice.text
    assert notice.fix == "l40s-deploy restart g"


def test_a_failure_names_node_rank_and_fix() -> None:
    notice, _ = news("", FAILED, 7.0)
    assert notice is not None
    assert (notice.text, notice.fix, notice.at) == ("node1 TP3: killed", "look", 7.0)
