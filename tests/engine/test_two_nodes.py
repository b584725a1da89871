"""The real SGLang on two emulated nodes, from nothing to serving, measured, and after a killed rank back to nothing.

This run of the test suite can afford only one launch of the engine, so all of it is one test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.load import complete
from tests.support.small_lab import ENGINE_MODEL, SmallLab, small_lab
from tests.support.waiting import until

from l40s_lab.engine.model import CANARY_PROMPT, CANARY_TEXT

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.timeout(2400)]

FAIL_S = 60.0
"""From a rank's death to a gang without a process; the engine itself needs up to 7 s to notice."""
LOAD = ("--input", "20", "--output", "10", "--prompts", "8", "--rate", "100", "--concurrency", "4")


@pytest.fixture
def lab() -> Iterator[SmallLab]:
    with small_lab(f"engine-{os.getpid()}", engine="sglang") as made:
        yield made


def test_from_nothing_to_a_measured_service_and_through_a_killed_rank_to_nothing(lab: SmallLab) -> None:
    lab.serve()
    gang = lab.gang()
    assert (gang["state"], gang["model"], gang["cause"]) == ("ready", ENGINE_MODEL, None)
    assert gang["service"]["healthy"]
    assert [(node["name"], node["node_rank"], node["state"]) for node in gang["nodes"]] == [
        ("node0", 0, "ready"),
        ("node1", 1, "ready"),
    ]
    assert {node["name"]: ranks(node) for node in gang["nodes"]} == {"node0": [(0, "alive")], "node1": [(1, "alive")]}
    assert complete(gang["service"]["url"], ENGINE_MODEL, CANARY_PROMPT, len(CANARY_TEXT)) == CANARY_TEXT
    bench_measures_it_and_nettest_does_not(lab)

    node, killed = lab.rank(1)
    assert "sglang::scheduler_TP1" in lab.on(node, f"ps -o args= -p {killed}")
    lab.on(node, f"kill -KILL {killed}")
    until(lambda: lab.gang()["state"] == "failed", FAIL_S, "the gang counts as failed")
    cause = lab.gang()["cause"]
    assert (cause["node"], cause["tp_rank"], cause["signal"]) == ("node1", 1, 9), cause
    assert cause["fix"]
    until(lambda: not lab.engine_processes(), FAIL_S, "no process of the engine is left")

    lab.deploy("down")
    gang = lab.gang()
    assert gang["state"] == "absent"
    assert not gang["service"]["healthy"]


def bench_measures_it_and_nettest_does_not(lab: SmallLab) -> None:
    """The engine's own client against the real engine."""
    refused = lab.deploy("nettest", code=2)
    assert "slow each other down" in refused.stderr
    done = lab.deploy("bench", *LOAD, "--json", "--gate", code=2, timeout=600)
    first = json.loads(done.stdout)
    assert (first["verdict"], first["stand_in"], first["stack"]) == ("not judged", False, "sglang-0.5.23-cpu")
    assert first["serving"]["output_tok_s"] > 0 and first["machines"]["before"].keys() == lab.hosts().keys()


def ranks(node: dict[str, Any]) -> list[tuple[int, str]]:
    return [(rank["tp_rank"], rank["state"]) for rank in node["ranks"]]
