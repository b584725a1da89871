"""The real SGLang on four nodes, TP4: the leader loses power, the other three continue as a pipeline (PP3), and all
four as before once it is back. A small version of DeepSeek-V3's change from TP32 to PP3 x TP8."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.load import complete
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import ENGINE_MODEL, SmallLab, guarding, serving, small_lab
from tests.support.waiting import slack, until

from l40s_lab.engine.model import CANARY_PROMPT, CANARY_TEXT

pytestmark = [
    pytest.mark.engine,
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="a node that loses its power needs root"),
]

FOUR = ["node0", "node1", "node2", "node3"]
LOST = "node0"
LEASE_S = 20
START_S = 600.0
"""Time limit for starting four engines on two cores, with the guard's waiting before it."""


@pytest.fixture
def lab() -> Iterator[SmallLab]:
    with small_lab(f"cpu-survive-{os.getpid()}", engine="sglang", nodes=4) as running:
        running.write_inventory(vars={"l40s_lease": LEASE_S})
        yield running


def test_three_nodes_serve_on_as_a_pipeline_without_the_leader_and_four_once_it_is_back(lab: SmallLab) -> None:
    lab.serve()
    gang = lab.gang()
    assert (gang["state"], tp_ranks(gang), answer(gang)) == ("ready", [0, 1, 2, 3], CANARY_TEXT)
    lab.deploy("golden", "accept", timeout=600)
    command = [*L40S_DEPLOY, "guard", "--degrade-after", "5s", "--restore", "auto", "--golden-every", "0"]
    with guarding(command, lab.environment, said(lab)):
        lab.run("break", LOST, "power-off")
        gang = seen(lab, lambda one: serving(one, [name for name in FOUR if name != LOST]))
        assert (gang["state"], gang["degraded_reason"], gang["missing"]) == ("degraded", "nodes", [LOST])
        assert (tp_ranks(gang), answer(gang)) == ([0, 0, 0], CANARY_TEXT)
        lab.run("heal", LOST, "power-off")
        gang = seen(lab, lambda one: one["state"] == "ready" and serving(one, FOUR))
        assert (gang["missing"], tp_ranks(gang), answer(gang)) == ([], [0, 1, 2, 3], CANARY_TEXT)
    assert lab.json("golden", "check")["verdict"] == "same"


def tp_ranks(gang: dict[str, Any]) -> list[int]:
    return [rank["tp_rank"] for node in gang["nodes"] for rank in node["ranks"]]


def seen(lab: SmallLab, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    gang: dict[str, Any] = until(
        lambda: what(one := lab.gang()) and one, START_S * slack(), lambda: said(lab).read_text()[-3000:]
    )
    return gang


def said(lab: SmallLab) -> Path:
    """The file of the guard's output."""
    return lab.folder / "guard.txt"


def answer(gang: dict[str, Any]) -> str:
    return complete(gang["service"]["url"], ENGINE_MODEL, CANARY_PROMPT, len(CANARY_TEXT))
