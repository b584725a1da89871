"""Faults of ranks, agents and their GPUs, with a small gang that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.small_lab import SmallLab, small_lab, wait_for

from .conftest import needs_root

pytestmark = [pytest.mark.lab, needs_root]


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab("gangfaults") as made:
        yield made


def strike(lab: SmallLab, *words: str) -> None:
    lab.deploy("lab", *words, "--name", lab.name)


def failed(lab: SmallLab) -> dict[str, Any]:
    """The gang once it has failed and nothing of it is left."""
    wait_for(lambda: lab.gang()["state"] == "failed", 30, "failed")
    wait_for(lambda: not lab.engine_processes(), 30, "nothing left")
    return lab.gang()


def test_a_rank_that_stands_still_and_goes_on(lab: SmallLab) -> None:
    lab.serve()
    node, pid = lab.rank(3)
    strike(lab, "break", node, "hang-rank", "3")
    assert lab.on(node, f"ps -o stat= -p {pid}").startswith("T")
    assert "hang-rank 3" in json.dumps(lab.json("lab", "status", "--name", lab.name))
    strike(lab, "heal", node)
    assert not lab.on(node, f"ps -o stat= -p {pid}").startswith("T")


def test_a_rank_killed_with_a_signal_is_the_cause(lab: SmallLab) -> None:
    lab.serve()
    strike(lab, "break", "node1", "kill-rank", "2", "SEGV")
    cause = failed(lab)["cause"]
    assert (cause["node"], cause["tp_rank"], cause["signal"]) == ("node1", 2, 11)


def test_the_rank_of_a_lost_gpu_ends_with_it(lab: SmallLab) -> None:
    lab.serve()
    strike(lab, "break", "node1", "gpu-lost", "1")
    cause = failed(lab)["cause"]
    assert (cause["node"], cause["tp_rank"]) == ("node1", 3)
    strike(lab, "heal", "node1")


def test_a_killed_agent_takes_its_engine_with_it(lab: SmallLab) -> None:
    lab.serve()
    strike(lab, "break", "node1", "kill-agent")
    wait_for(lambda: not lab.engine_processes(["node1"]), 30, "the engine follows its agent")
    failed(lab)
