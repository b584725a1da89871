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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "l40s-deploy" / "nettest"


def document(**changes: Any) -> dict[str, Any]:
    return {"gang": "g", "nodes": NODES, "stack": "s", "ranks": 2, "verdict": "ok", "links": [],
            "tests": [{"bytes": 1}], "addresses": nettests.addresses_of(GANG.nodes), **changes}  # fmt: skip


def keep(*records: dict[str, Any]) -> None:
    for number, changes in enumerate(records):
        nettests.write_nettest(document(**changes), 1e9 + number)


def test_the_last_good_one_of_these_nodes(folder: Path) -> None:
    assert nettests.last_good(GANG, "s", 2) is None
    keep(
        {"mark": 1},
        {"mark": 2},
        {"verdict": "slow"},
        {"tests": []},
        {"nodes": ["node0", "node2"]},
        {"addresses": ELSEWHERE},
        {"addresses": "node0"},
    )
    (folder / "20990101-000000-1-g.json").write_text("{")
    found = nettests.last_good(GANG, "s", 2)
    assert found is not None and found["mark"] == 2
    assert nettests.last_good(GANG, "other", 2) is None
    assert nettests.last_good(GANG, "s", 4) is None


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
    records: tuple[dict[str, Any], ...], slow: bool
) -> None:
    keep(*records)
    assert nettests.slow_before(GANG, "s").startswith("node0 - node1 is slow (2001") is slow


def test_the_newest_of_each_gang_of_an_inventory() -> None:
    other: GangSpec = gang(nodes=2, name="h", first=2)
    keep({"mark": 1}, {"gang": "h", "addresses": nettests.addresses_of(other.nodes)}, {"gang": "i"},
         {"addresses": nettests.addresses_of(GANG.nodes[:1]), "mark": 2}, {"addresses": ELSEWHERE})  # fmt: skip
    found = nettests.newest_nettests([GANG, other])
    assert [(one["gang"], one.get("mark")) for one in found] == [("g", 2), ("h", None)]


def test_the_newest_one_may_have_been_slow() -> None:
    records: list[dict[str, Any]] = [{"mark": 1}, {"mark": 2, "verdict": "slow"}, {"mark": 3, "tests": []}]
    keep(*records)
    found = nettests.newest(GANG, "s", 2)
    assert found is not None and found["mark"] == 2, "a test that measured nothing says nothing"


def test_the_oldest_of_a_gang_go(folder: Path) -> None:
    for number in range(nettests.KEPT + 3):
        nettests.write_nettest(document(), 1e9 + number)
    nettests.write_nettest(document(gang="other"), 1.0)
    assert len(list(folder.glob("*-g.json"))) == nettests.KEPT
    assert len(list(folder.glob("*-other.json"))) == 1
