"""The real SGLang on two emulated nodes, from nothing to serving, through a killed rank, and back to nothing.

Two launches of the engine are all that this run of the test suite can afford, so it is one story.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.load import complete
from tests.support.waiting import until

from orchestrator.lab.engine.model import CANARY_PROMPT, CANARY_TEXT
from orchestrator.loading.inventory import load_inventory
from orchestrator.remote.connect import connect

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.timeout(2400)]

LAB = f"engine-{os.getpid()}"
MODEL = "tiny-deepseek-v3"
BUILD_S = 1900.0
"""The first `lab up --engine sglang` of a machine builds the engine's environment."""
UP_S = 400.0
FAIL_S = 60.0
"""From a rank's death to a gang without a process; the engine itself needs up to 7 s to notice."""


@pytest.fixture
def lab() -> Iterator[Cluster]:
    """Two nodes whose engine is the real one."""
    try:
        l40s("lab", "up", "--engine", "sglang", "--level", "1", "--nodes", "2", "--name", LAB, deadline_s=BUILD_S)
        found = json.loads(l40s("lab", "status", "--name", LAB, "--json"))
        yield Cluster(Path(found["inventory"]))
    finally:
        l40s("lab", "down", "--name", LAB)


class Cluster:
    """An inventory, and what an operator does with it."""

    def __init__(self, inventory: Path) -> None:
        self.path = inventory
        self.nodes = {node.name: node for node in load_inventory(inventory).nodes}

    def up(self) -> None:
        l40s("up", "--inventory", self.path, "--model", MODEL, deadline_s=UP_S)

    def down(self) -> None:
        l40s("down", "--inventory", self.path, deadline_s=120)

    def gang(self) -> dict[str, Any]:
        (gang,) = json.loads(l40s("status", "--inventory", self.path, "--json", codes=(0, 3, 5)))["gangs"]
        assert isinstance(gang, dict)
        return gang

    def run(self, node: str, *command: str) -> str:
        session = connect(self.nodes[node], deadline_s=20)
        try:
            return session.run(command, deadline_s=20).out.decode()
        finally:
            session.close()

    def engine_processes(self) -> list[str]:
        """Every process of an engine on any node, one line each."""
        return [
            f"{node}: {line}"
            for node in self.nodes
            for line in self.run(node, "ps", "-eo", "pid,stat,args").splitlines()
            if "sglang" in line and " Z" not in line
        ]


def test_from_nothing_through_a_killed_rank_to_nothing(lab: Cluster) -> None:
    lab.up()
    gang = lab.gang()
    assert (gang["state"], gang["model"], gang["cause"]) == ("ready", MODEL, None)
    assert gang["service"]["healthy"]
    assert [(node["name"], node["node_rank"], node["state"]) for node in gang["nodes"]] == [
        ("node0", 0, "ready"),
        ("node1", 1, "ready"),
    ]
    assert {node["name"]: ranks(node) for node in gang["nodes"]} == {"node0": [(0, "alive")], "node1": [(1, "alive")]}
    assert complete(gang["service"]["url"], MODEL, CANARY_PROMPT, len(CANARY_TEXT)) == CANARY_TEXT

    killed = gang["nodes"][1]["ranks"][0]["pid"]
    assert "sglang::scheduler_TP1" in lab.run("node1", "ps", "-o", "args=", "-p", str(killed))
    lab.run("node1", "kill", "-KILL", str(killed))
    until(lambda: lab.gang()["state"] == "failed", FAIL_S, "the gang counts as failed")
    cause = lab.gang()["cause"]
    assert (cause["node"], cause["tp_rank"], cause["signal"]) == ("node1", 1, 9), cause
    assert cause["fix"]
    until(lambda: not lab.engine_processes(), FAIL_S, "no process of the engine is left")

    lab.up()
    assert lab.gang()["state"] == "ready"
    lab.down()
    assert not lab.engine_processes()
    gang = lab.gang()
    assert gang["state"] == "absent"
    assert not gang["service"]["healthy"]


def ranks(node: dict[str, Any]) -> list[tuple[int, str]]:
    return [(rank["tp_rank"], rank["state"]) for rank in node["ranks"]]


def l40s(*words: str | Path, deadline_s: float = 60.0, codes: tuple[int, ...] = (0,)) -> str:
    """One command line of ours: its standard output, where it ended with one of the codes."""
    done = subprocess.run(
        [Path(sys.executable).parent / "l40s-deploy", *words],
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    assert done.returncode in codes, f"{words}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout
