"""What a plan's speeds use from the inventory, from the plan's transport, and from the newest network test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.reference_cluster import gang
from tests.unit.planning.test_build import plan_of

from orchestrator.loading.profiles import load_profile
from orchestrator.model.inventory import GangSpec
from orchestrator.planning.steps.models import network_of
from orchestrator.records.nettests import addresses_of, write_nettest
from orchestrator.topology.speed import Traffic

PROFILE = load_profile("DeepSeek-R1-Channel-INT8")
TOKEN = PROFILE.dimensions.hidden_size * 2


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def row(kind: str, tokens: int, us: float) -> dict[str, Any]:
    size = tokens * TOKEN
    return {"kind": kind, "where": "x", "bytes": size, "wanted_bytes": size, "measured_us": us}


def keep(of: GangSpec, at: float, us: float, verdict: str = "ok", transport: str = "NCCL: IB over mlx5_0:1") -> None:
    document = {
        "gang": of.name, "nodes": [node.name for node in of.nodes], "stack": "s", "verdict": verdict, "links": [],
        "ranks": sum(node.gpus for node in of.nodes), "transport": {node.name: transport for node in of.nodes},
        "tests": [row("all ranks", 1, us), row("the ranks of each node", 1, 40.0),
                  row("the ranks of each node", 1, 55.0)],
    }  # fmt: skip
    write_nettest({**document, "addresses": addresses_of(of.nodes)}, at)


@pytest.mark.parametrize(
    ("transport", "traffic", "assumed"),
    [("tcp", Traffic.TCP, False), ("rdma", Traffic.RAILS, False), ("auto", Traffic.RAILS, True)],
)
def test_the_inventory_alone(transport: str, traffic: Traffic, assumed: bool) -> None:
    found = network_of(gang(transport=transport), "s", PROFILE)
    assert (found.traffic, found.assumed, found.everywhere, found.inside) == (traffic, assumed, {}, {})


def test_the_newest_test_counts_though_it_was_slow() -> None:
    one = gang(transport="rdma")
    keep(one, 1e9, 60.0)
    keep(one, 1e9 + 1, 900.0, "slow")
    found = network_of(one, "s", PROFILE)
    assert found.everywhere == {1: pytest.approx(900e-6)} and "which found it slow" in found.test
    assert found.inside == {1: pytest.approx(55e-6)}, "a stage waits for the slowest node"


def test_what_rdma_gave_is_no_figure_of_tcp() -> None:
    one = gang(transport="tcp")
    keep(one, 1e9, 60.0)
    assert network_of(one, "s", PROFILE).everywhere == {}
    keep(replace(one), 1e9 + 1, 900.0, transport="NCCL: Socket")
    assert network_of(one, "s", PROFILE).everywhere == {1: pytest.approx(900e-6)}


@pytest.mark.parametrize(("transport", "traffic"), [("tcp", Traffic.TCP), ("auto", Traffic.RAILS)])
def test_a_plan_has_looked(transport: str, traffic: Traffic) -> None:
    (one,) = plan_of(gang(transport=transport)).gangs
    found = network_of(gang(transport=transport), "s", PROFILE, one)
    assert (found.traffic, found.assumed) == (traffic, False)
