"""Looking: snapshots of the nodes that answer, and the failures of those that do not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.machine_files import reference_machine

from orchestrator.doctor.steps.discover import discover_given, discover_inventory
from orchestrator.doctor.steps.look import look
from orchestrator.doctor.steps.recordings import Given
from orchestrator.model.errors import NodeError, Unreachable
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.model.snapshot import snapshot_json
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session
from orchestrator.topology.build import build


def local(name: str, rank: int = 0, **changes: Any) -> NodeSpec:
    return NodeSpec(
        name=name, gang="gang0", node_rank=rank, reach=Reach(host="127.0.0.1", connection="local"), **changes
    )


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_this_machine_through_the_delivered_application(tmp_path: Path) -> None:
    reference_machine().put_below(tmp_path / "root")
    specs = [local("real"), local("fake", 1, fs_root=str(tmp_path / "root"))]
    with Fleet(specs) as fleet:
        seen = look(fleet, specs).all()
    assert list(seen) == ["real", "fake"]
    assert seen["real"].node == "real" and seen["fake"].node == "fake"
    assert len(build(seen["fake"]).switches) == 2
    offset, way = seen["real"].host["clock_offset_s"], seen["real"].host["round_trip_s"]
    assert abs(offset) <= way / 2 + 0.05  # one clock: the offset is at most half the round trip, plus the clock's tick


def test_a_node_that_does_not_answer_is_beside_the_others() -> None:
    away = NodeSpec(name="away", gang="gang0", node_rank=1, reach=Reach(host="127.0.0.9", port=9))
    inventory = Inventory(path="x.yml", gangs=(GangSpec(name="gang0", nodes=(local("here"), away)),))
    seen = discover_inventory(inventory)
    assert list(seen.cluster.snapshots) == list(seen.cluster.topologies) == ["here"]
    assert isinstance(seen.failures["away"], Unreachable)


def test_one_node_may_be_asked_alone() -> None:
    inventory = Inventory(path="x.yml", gangs=(GangSpec(name="gang0", nodes=(local("a"), local("b", 1))),))
    assert list(discover_inventory(inventory, ["b"]).cluster.topologies) == ["b"]


@pytest.mark.parametrize("answer", [None, [], {"format": 9}, {"format": 1, "files": {"/a": 1}}])
def test_an_answer_that_is_no_snapshot_is_told(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_app, "call", lambda *_, **__: answer)
    spec = local("odd")
    with Fleet([spec]) as fleet:
        failure = look(fleet, [spec]).failures["odd"]
    assert isinstance(failure, NodeError) and "not a snapshot" in failure.what and failure.where == "odd"


@pytest.mark.parametrize("ahead", [0.0, 5.0, -120.0])
def test_a_clock_that_is_off_is_measured(ahead: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(session: Session, verb: str, request: Any, *, deadline_s: float) -> Any:
        raw = snapshot_json(reference_machine().snapshot())
        raw["host"] |= {"clock": time.time() + ahead, "probe_seconds": {"all": 0.0}}
        return raw

    monkeypatch.setattr(node_app, "call", call)
    spec = local("node0")
    with Fleet([spec]) as fleet:
        host = look(fleet, [spec]).all()["node0"].host
    assert host["clock_offset_s"] == pytest.approx(ahead, abs=0.5)


def test_saved_nodes_share_a_tcp_side() -> None:
    snapshots = {f"node{n}": reference_machine(f"node{n}", n).snapshot() for n in range(4)}
    seen = discover_given(Given(snapshots))
    assert {choice.interface for choice in seen.cluster.tcp.values()} == {"bond0"}
    assert len(seen.cluster.tcp) == 4
    assert seen.failures == {}
