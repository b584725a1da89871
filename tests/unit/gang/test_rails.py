"""Messages about a port that failed while its gang kept running."""

from __future__ import annotations

from orchestrator.gang.degraded import degraded_reason
from orchestrator.gang.guarding import GuardAction, GuardMemory, Policy, decide
from orchestrator.gang.view import view
from orchestrator.model.gang_state import GangState
from orchestrator.protocol.report import AgentState, RailChange, Report
from orchestrator.workflows.status.status import status_json


def report(rank: int, *rails: RailChange, moved: int = 0) -> Report:
    return Report(
        run_id="r", gang="g", node=f"node{rank}", node_rank=rank, nnodes=2, state=AgentState.READY, now=10.0,
        updated_at=10.0, service_url="http://x" if rank == 0 else "", service_healthy=True if rank == 0 else None,
        service_checked_at=9.0, rails=rails, moved=moved,
    )  # fmt: skip


def test_a_gang_that_lost_a_rail_serves_on_and_says_so() -> None:
    gone = RailChange(port="mlx5_1:1", at=5.0)
    seen = view("g", {"node0": report(0, moved=4), "node1": report(1, gone, moved=4)})
    assert seen.state is GangState.READY
    assert degraded_reason(seen) == "rails"
    (one,) = status_json([seen])["gangs"][0]["rails"]
    assert (one["node"], one["port"], one["up"]) == ("node1", "mlx5_1:1", False)
    assert "tokens/s" in one["text"]
    assert any("node0" in words and "another node's port" in words for words in seen.remarks)
    decision, _ = decide(seen, GuardMemory(), 0.0, Policy())
    assert decision.do is GuardAction.NOTHING
    assert "mlx5_1:1 is down" in decision.why


def test_a_guard_proposes_a_restart_once_the_port_is_back() -> None:
    back = RailChange(port="mlx5_1:1", up=True, at=5.0)
    decision, _ = decide(view("g", {"node0": report(0), "node1": report(1, back)}), GuardMemory(), 0.0, Policy())
    assert decision.do is GuardAction.NOTHING
    assert "run `l40s-deploy restart g` when it suits you" in decision.why


def test_nothing_is_said_of_a_gang_whose_rails_are_well() -> None:
    seen = view("g", {"node0": report(0), "node1": report(1)})
    assert (degraded_reason(seen), seen.remarks) == ("", ())
    assert decide(seen, GuardMemory(), 0.0, Policy())[0].why == ""
