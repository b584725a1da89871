"""Metrics of an inventory that changes."""

from __future__ import annotations

import pytest

from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.monitoring.steps.exporter import _Newest
from orchestrator.protocol.errors import InputError


def inventory(*names: str) -> Inventory:
    nodes = (NodeSpec(name=f"{name}-node", gang=name, node_rank=0, reach=Reach(host="none")) for name in names)
    return Inventory(path="hosts.yml", gangs=tuple(GangSpec(name=node.gang, nodes=(node,)) for node in nodes))


def test_the_gangs_of_now_are_read_and_one_that_is_gone_is_none() -> None:
    known = [inventory("a", "b")]
    with _Newest(lambda: known[-1], ("a",)) as scrapers, _Newest(lambda: known[-1], ()) as of_all:
        first = scrapers.now()
        assert scrapers.now() is first and [gang.name for gang in first._gangs] == ["a"]
        known.append(inventory("b", "c"))
        assert [gang.name for gang in scrapers.now()._gangs] == []
        assert [gang.name for gang in of_all.now()._gangs] == ["b", "c"]
        known.append(inventory("a"))
        assert [gang.name for gang in scrapers.now()._gangs] == ["a"]
    with pytest.raises(InputError, match="'x'"):
        _Newest(lambda: known[-1], ("x",))
