"""`why`: what it knows of who asks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.support.reference_cluster import gang

from orchestrator.gang.steps.status.history import _account
from orchestrator.model.inventory import Reach
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.verbs import HistoryAnswer

ANN = Reach(host="10.0.0.1", user="ann")


@pytest.mark.parametrize(
    ("reach", "viewers", "only_looks"),
    [
        (ANN, ("ann",), True),
        (dataclasses.replace(ANN, become=True), ("ann",), False),
        (ANN, ("bob",), False),
        (ANN, (), False),
        (Reach(host="10.0.0.1"), ("ann",), False),
    ],
)
def test_a_viewer_of_the_inventory_only_looks(reach: Reach, viewers: tuple[str, ...], only_looks: bool) -> None:
    asked = gang()
    seen = dataclasses.replace(
        asked, nodes=tuple(dataclasses.replace(node, reach=reach, viewers=viewers) for node in asked.nodes)
    )
    answers = PerNode(values={node.name: HistoryAnswer(now=1.0) for node in seen.nodes}, failures={})
    fleet: Any = None
    account = _account(fleet, seen, answers, events=False)
    assert account is not None and account.only_looks is only_looks
