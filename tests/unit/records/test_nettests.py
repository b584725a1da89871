"""Records of network tests: the last good one of the very same nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.records import nettests

NODES = ["node0", "node1"]


def document(**changes: Any) -> dict[str, Any]:
    return {"gang": "g", "nodes": NODES, "stack": "s", "ranks": 2, "verdict": "ok", "links": [], "tests": [], **changes}


def test_the_last_good_one_of_these_nodes(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [{"mark": 1}, {"mark": 2}, {"verdict": "slow"}, {"nodes": ["node0", "node2"]}]
    for number, changes in enumerate(records):
        nettests.write_nettest(document(**changes), 1e9 + number, root=tmp_path)
    (tmp_path / "20990101-000000-1-g.json").write_text("{")
    found = nettests.last_good("g", NODES, "s", 2, root=tmp_path)
    assert found is not None and found["mark"] == 2
    assert nettests.last_good("g", NODES, "other", 2, root=tmp_path) is None
    assert nettests.last_good("g", NODES, "s", 2, root=tmp_path / "nothing") is None


def test_the_oldest_of_a_gang_go(tmp_path: Path) -> None:
    for number in range(nettests.KEPT + 3):
        nettests.write_nettest(document(), 1e9 + number, root=tmp_path)
    nettests.write_nettest(document(gang="other"), 1.0, root=tmp_path)
    assert len(list(tmp_path.glob("*-g.json"))) == nettests.KEPT
    assert len(list(tmp_path.glob("*-other.json"))) == 1
