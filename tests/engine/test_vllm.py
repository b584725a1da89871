"""The real vLLM on two emulated nodes: from nothing to serving, and after a killed rank back to nothing.

One launch, as in test_two_nodes.py: the rest of what it is asked is in tests/unit/engines, by recorded logs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.support.load import complete
from tests.support.small_lab import SmallLab, small_lab
from tests.support.waiting import until

from l40s_lab.engine.model import CANARY_PROMPT, CANARY_TEXT

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.timeout(2400)]

FAIL_S = 60.0
"""From a rank's death to a gang without a process."""


@pytest.fixture
def lab() -> Iterator[SmallLab]:
    with small_lab(f"vllm-{os.getpid()}", engine="vllm") as made:
        yield made


def test_from_nothing_to_a_service_and_through_a_killed_rank_to_nothing(lab: SmallLab) -> None:
    lab.serve()
    gang = lab.gang()
    assert (gang["state"], gang["model"], gang["cause"]) == ("ready", lab.model, None)
    assert gang["service"]["healthy"]
    ranks = {node["name"]: [(rank["tp_rank"], rank["state"]) for rank in node["ranks"]] for node in gang["nodes"]}
    assert ranks == {"node0": [(0, "alive")], "node1": [(1, "alive")]}
    assert complete(gang["service"]["url"], lab.model, CANARY_PROMPT, len(CANARY_TEXT)) == CANARY_TEXT
    refused = lab.deploy("bench", "--prompts", "4", code=2)
    assert "can't measure vLLM" in refused.stderr

    node, killed = lab.rank(1)
    assert "VLLM::Worker_TP1" in lab.on(node, f"ps -o args= -p {killed}")
    lab.on(node, f"kill -KILL {killed}")
    until(lambda: lab.gang()["state"] == "failed", FAIL_S, "the gang counts as failed")
    cause = lab.gang()["cause"]
    assert (cause["node"], cause["tp_rank"], cause["signal"]) == ("node1", 1, 9), cause
    until(lambda: not lab.engine_processes(), FAIL_S, "no process of the engine is left")
    lab.deploy("down")
    assert lab.gang()["state"] == "absent"
