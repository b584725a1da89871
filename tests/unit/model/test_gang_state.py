"""The words for the states of a gang and its nodes."""

from __future__ import annotations

from orchestrator.model.gang_state import NodeState
from orchestrator.protocol.report import AgentState


def test_a_node_can_be_wherever_its_agent_is() -> None:
    assert {state.value for state in AgentState} <= {state.value for state in NodeState}
