"""`why`: what it knows of who asks."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.reference_cluster import gang

from orchestrator.gang.steps.status.history import _account
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.verbs import HistoryAnswer


@pytest.mark.parametrize("viewers_of", [(), ("node0",), ("node0", "node1", "node2", "node3")])
def test_who_may_change_nothing_on_a_node_only_looks(viewers_of: tuple[str, ...]) -> None:
    asked = gang()
    values = {node.name: HistoryAnswer(now=1.0, only_looks=node.name in viewers_of) for node in asked.nodes}
    fleet: Any = None
    account = _account(fleet, asked, PerNode(values=values, failures={}), events=False)
    assert account is not None and account.only_looks is bool(viewers_of)
