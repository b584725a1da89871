"""Runs that the nodes have kept, with what the audit log says about them."""

from __future__ import annotations

from orchestrator.gang.history import past_runs
from orchestrator.protocol.report import AgentState, Report


def test_a_run_belongs_to_the_last_holder_of_the_lock_before_it() -> None:
    """Also where the next command comes within the same second."""
    report = Report(
        gang="gang0", node="a", node_rank=0, run_id="1", state=AgentState.STOPPED, started_at=100.0, updated_at=100.2
    )
    lines = [
        {"at": at, "action": action, "who": "ops", "host": "head", "command": command}
        for at, action, command in (
            (90.0, "begins", "down"),
            (99.9, "begins", "up"),
            (100.1, "ends", "up"),
            (100.3, "begins", "rollback"),
        )
    ]
    (run,) = past_runs("gang0", {"a": [report]}, {"a": lines})
    assert (run.command, run.by) == ("up", "ops@head")
