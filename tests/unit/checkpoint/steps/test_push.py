"""The nodes that `checkpoint push` sends a directory to."""

from __future__ import annotations

import pytest
from tests.support.reference_cluster import gang, node

from orchestrator.checkpoint.steps.push import CheckpointPushRequest, destinations
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, Inventory

MANNED = Inventory(
    path="hosts.yml",
    gangs=(GangSpec(name="gang0", nodes=gang(2).nodes, spares=(node("node9", 2, spare=True, model_root="/srv"),)),),
)


def test_a_spare_gets_what_its_gang_gets_below_its_own_model_root() -> None:
    to = destinations(MANNED, CheckpointPushRequest(source="node0:/workspace/V3"))
    assert to == {"node1": "/workspace/V3", "node9": "/srv/V3"}
    assert destinations(MANNED, CheckpointPushRequest(source="node0:/workspace/V3", to=("node9",))) == {
        "node9": "/srv/V3"
    }
    assert set(destinations(MANNED, CheckpointPushRequest(source="node9:/srv/V3"))) == {"node0", "node1"}, (
        "it can be the source"
    )


def test_a_node_that_is_not_there_is_refused_with_the_spares_name_among_the_known() -> None:
    with pytest.raises(InputError, match="no node is called 'node8'") as caught:
        destinations(MANNED, CheckpointPushRequest(source="node0:/workspace/V3", to=("node8",)))
    assert "node9" in caught.value.fix
