"""`plan` against real nodes: what the lab's files show is what the plan rests on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import L40S_DEPLOY, RunningLab, needs_root

pytestmark = [pytest.mark.lab, needs_root]

MODEL = ("--model", "DeepSeek-V3-0324-Block64x64")


@pytest.fixture(scope="module")
def lab(labs: Callable[[str], RunningLab]) -> RunningLab:
    made = labs("plans")
    made.run("up")
    return made


def plan(lab: RunningLab, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [*L40S_DEPLOY, "plan", "-i", str(lab.directory / "inventory.yml"), *words],
        env=lab.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr if code else done.stdout


def test_the_articles_launch_on_the_articles_cluster(lab: RunningLab) -> None:
    document: dict[str, Any] = json.loads(plan(lab, *MODEL, "--stack", "sglang-0.4.4-l40s", "--json"))
    leader = lab.hosts()["node0"]["ansible_host"]
    assert [(node["name"], node["node_rank"]) for node in document["nodes"]] == [(f"node{n}", n) for n in range(4)]
    for node in document["nodes"]:
        assert node["env"]["NCCL_DEBUG"] == "INFO"
        assert node["env"]["NCCL_IB_GID_INDEX"] == "3"
        assert node["env"]["NCCL_SOCKET_IFNAME"] == f"={node['env']['GLOO_SOCKET_IFNAME']}"
        assert node["env"]["NCCL_IB_HCA"].count(":1") == 4
        assert f"--tp-size 32 --dist-init-addr {leader}:5000 --nnodes 4" in " ".join(node["argv"])
        assert set(node["env"]) <= set(node["sources"])
    assert document["memory"]["weights"] > 20 << 30


def test_the_same_facts_give_the_same_plan(lab: RunningLab) -> None:
    first, second = (json.loads(plan(lab, *MODEL, "--json")) for _ in range(2))
    assert first == second


def test_stock_blocks_are_refused_with_the_way_out(lab: RunningLab) -> None:
    said = plan(lab, "--model", "DeepSeek-V3-0324", code=2)
    assert "18432/32 = 576 is no multiple" in said
    assert "re-block to 64" in said


def test_a_script_that_a_human_can_read(lab: RunningLab) -> None:
    script = plan(lab, *MODEL, "--show", "script", "--node", "node3")
    assert script.startswith("#!/bin/sh\n")
    assert "--node-rank 3" in script
