"""A cluster without some of its nodes."""

from __future__ import annotations

import pytest
from tests.support.reference_cluster import gang

from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.survivors import part, without

BOTH = Inventory(path="hosts.yml", gangs=(gang(4), gang(2, name="gang1", first=4)))


def ranks(spec: GangSpec) -> dict[str, int]:
    return {node.name: node.node_rank for node in spec.nodes}


def test_who_is_left_is_ranked_anew_and_the_first_leads() -> None:
    assert ranks(part(gang(4), {"node3", "node1"})) == {"node1": 0, "node3": 1}
    left = without(BOTH, ("node0", "node4"))
    assert [ranks(one) for one in left.gangs] == [{"node1": 0, "node2": 1, "node3": 2}, {"node5": 0}]
    assert left.gangs[0].leader.name == "node1"
    assert without(BOTH, ()) is BOTH


def test_a_node_that_is_not_there_and_the_last_of_a_gang_are_refused() -> None:
    with pytest.raises(InputError, match="no node is called 'node9'"):
        without(BOTH, ("node9",))
    with pytest.raises(InputError, match="no node would be left in gang gang1") as caught:
        without(BOTH, ("node4", "node5"))
    assert "l40s-deploy down --gang gang1" in caught.value.fix
