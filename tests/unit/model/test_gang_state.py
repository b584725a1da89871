"""The words for the states of a gang and its nodes."""

from __future__ import annotations

import json

from orchestrator.model.gang_state import NodeState
from orchestrator.protocol.report import AgentState


def test_a_node_can_be_wherever_its_agent_is() -> None:
    assert {state.value for state in AgentState} <= {state.value for state in NodeState}


def test_a_node_s_state_is_shown_and_written_as_its_word() -> None:
    assert f"{NodeState.LEFT_OUT}" == str(NodeState.LEFT_OUT) == "left-out"
    assert json.dumps({"state": NodeState.LEFT_OUT}) == '{"state": "left-out"}'
