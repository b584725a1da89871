"""Four nodes of one gang, each with an engine of its own behind the real sglang-router: `--replicas`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.load import Load
from tests.support.small_lab import MODEL, SmallLab
from tests.support.waiting import until

from .conftest import BEHIND_ONE_ROUTER, needs_root, routed_lab

pytestmark = [pytest.mark.lab, needs_root, BEHIND_ONE_ROUTER]
NAMES = [f"gang0-{rank}" for rank in range(4)]


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with routed_lab("replicas", nodes=4) as made:
        yield made


def gangs(lab: SmallLab) -> dict[str, dict[str, Any]]:
    return {gang["name"]: gang for gang in lab.json("status")["gangs"]}


def states(lab: SmallLab) -> dict[str, str]:
    return {name: gang["state"] for name, gang in gangs(lab).items()}


def workers(lab: SmallLab) -> int:
    return sum(worker["healthy"] for worker in lab.json("router", "status")["workers"])


def test_four_engines_are_found_by_every_verb_and_one_that_dies_takes_no_other_with_it(lab: SmallLab) -> None:
    assert list(states(lab)) == ["gang0"]
    lab.serve("--replicas")
    found = gangs(lab)
    assert {name: gang["state"] for name, gang in found.items()} == dict.fromkeys(NAMES, "ready")
    assert [len(gang["nodes"]) for gang in found.values()] == [1] * 4
    assert len({gang["service"]["url"] for gang in found.values()}) == 4
    assert workers(lab) == 4

    other = lab.deploy("up", "--model", lab.model, code=2)
    assert "gang0: this gang runs as replicas" in other.stderr, other.stderr

    node, pid = next((node["name"], rank["pid"]) for node in found[NAMES[1]]["nodes"] for rank in node["ranks"])
    lab.on(node, f"kill -9 {pid}")
    until(lambda: states(lab)[NAMES[1]] == "failed", 60.0, lambda: str(states(lab)))
    assert [state for name, state in states(lab).items() if name != NAMES[1]] == ["ready"] * 3
    until(lambda: workers(lab) == 3, 60.0, lambda: str(lab.json("router", "status")))
    with Load(lab.router_url, MODEL, clients=2, pause_s=0.02) as load:
        lab.deploy("restart", NAMES[1])
    assert load.bad == [] and load.good > 0
    assert states(lab) == dict.fromkeys(NAMES, "ready")

    lab.deploy("down", NAMES[3])
    assert states(lab) == dict.fromkeys(NAMES, "ready") | {NAMES[3]: "absent"}
    down = json.loads(lab.deploy("down", "--all", "--json").stdout)
    assert [node["gang"] for node in down["nodes"]] == NAMES
    assert lab.engine_processes() == {}


def test_the_nodes_run_one_engine_again_afterwards(lab: SmallLab) -> None:
    lab.serve()
    assert states(lab) == {"gang0": "ready"}
    replicas = lab.deploy("up", "--model", lab.model, "--replicas", code=2)
    assert "runs as one engine on 4 nodes" in replicas.stderr, replicas.stderr
    lab.deploy("down")
    assert lab.engine_processes() == {}
