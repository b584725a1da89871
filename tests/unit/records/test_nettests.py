"""Records of network tests: which ones are of exactly the same nodes, and of which stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.reference_cluster import gang

from orchestrator.model.inventory import GangSpec
from orchestrator.records import nettests

GANG = gang(nodes=2, name="g")
NODES = [node.name for node in GANG.nodes]
FINDINGS = [{"title": "node0 - node1 is slow"}]
ELSEWHERE = ["10.9.0.1:", "10.9.0.2:"]
"""Addresses of another inventory, whose gang and nodes have the same names."""


def document(**changes: Any) -> dict[str, Any]:
    return {"gang": "g", "nodes": NODES, "stack": "s", "ranks": 2, "verdict": "ok", "links": [],
            "tests": [{"bytes": 1}], "addresses": nettests.addresses_of(GANG.nodes), **changes}  # fmt: skip


def keep(root: Path, *records: dict[str, Any]) -> None:
    for number, changes in enumerate(records):
        nettests.write_nettest(document(**changes), 1e9 + number, root=root)


def test_the_last_good_one_of_these_nodes(tmp_path: Path) -> None:
    keep(
        tmp_path,
        {"mark": 1},
        {"mark": 2},
        {"verdict": "slow"},
        {"tests": []},
        {"nodes": ["node0", "node2"]},
        {"addresses": ELSEWHERE},
        {"addresses": "node0"},
    )
    (tmp_path / "20990101-000000-1-g.json").write_text("{")
    found = nettests.last_good(GANG, "s", 2, root=tmp_path)
    assert found is not None and found["mark"] == 2
    assert nettests.last_good(GANG, "other", 2, root=tmp_path) is None
    assert nettests.last_good(GANG, "s", 4, root=tmp_path) is None
    assert nettests.last_good(GANG, "s", 2, root=tmp_path / "nothing") is None


SLOW = {"verdict": "slow", "findings": FINDINGS}


@pytest.mark.parametrize(
    ("records", "slow"),
    [
        ((SLOW,), True),
        ((SLOW, {}), False),
        ((SLOW, {"tests": []}), True),
        (({}, SLOW), True),
        (({**SLOW, "stack": "other"},), False),
        ((SLOW, {"stack": "other"}), True),
        (({**SLOW, "addresses": ELSEWHERE},), False),
        ((SLOW, {"addresses": ELSEWHERE}), True),
        (({**SLOW, "findings": []},), False),
        ((), False),
    ],
)
def test_what_the_newest_test_of_these_nodes_and_this_stack_found_slow(
    tmp_path: Path, records: tuple[dict[str, Any], ...], slow: bool
) -> None:
    keep(tmp_path, *records)
    assert nettests.slow_before(GANG, "s", root=tmp_path).startswith("node0 - node1 is slow (2001") is slow


def test_the_newest_of_each_gang_of_an_inventory(tmp_path: Path) -> None:
    other: GangSpec = gang(nodes=2, name="h", first=2)
    keep(tmp_path, {"mark": 1}, {"gang": "h", "addresses": nettests.addresses_of(other.nodes)}, {"gang": "i"},
         {"addresses": nettests.addresses_of(GANG.nodes[:1]), "mark": 2}, {"addresses": ELSEWHERE})  # fmt: skip
    found = nettests.newest_nettests([GANG, other], root=tmp_path)
    assert [(one["gang"], one.get("mark")) for one in found] == [("g", 2), ("h", None)]


def test_the_newest_one_may_have_been_slow(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [{"mark": 1}, {"mark": 2, "verdict": "slow"}, {"mark": 3, "tests": []}]
    keep(tmp_path, *records)
    found = nettests.newest(GANG, "s", 2, root=tmp_path)
    assert found is not None and found["mark"] == 2, "a test that measured nothing says nothing"


def test_the_oldest_of_a_gang_go(tmp_path: Path) -> None:
    for number in range(nettests.KEPT + 3):
        nettests.write_nettest(document(), 1e9 + number, root=tmp_path)
    nettests.write_nettest(document(gang="other"), 1.0, root=tmp_path)
    assert len(list(tmp_path.glob("*-g.json"))) == nettests.KEPT
    assert len(list(tmp_path.glob("*-other.json"))) == 1
