"""The real engines on two emulated nodes: from nothing to serving, measured, and after a killed rank back to nothing.

A launch takes a minute, so all of it is one test; the gang scenario of `make contract` has the rest. SGLang's is played
by turns with the contract's life of one node. `make long` plays vLLM's, whose packages alone take minutes to install.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.load import answered, complete
from tests.support.small_lab import SmallLab, small_lab
from tests.support.waiting import until

from l40s_lab.engine.model import CANARY_PROMPT, CANARY_TEXT

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.timeout(2400)]

FAIL_S = 60.0
"""From a rank's death to a gang without a process; SGLang itself needs up to 7 s to notice."""
RUNNING, QUEUED, TOO_MANY = 4, 6, 30
"""Requests that the engine runs at once, that may wait in it, and that are sent at once."""
FULL = {"sglang": "The request queue is full.", "vllm": "The engine is currently busy"}
"""What it says of each request too many, with HTTP 503."""
LOAD = ("--input", "20", "--output", "10", "--prompts", "8", "--rate", "100", "--concurrency", "4")


@pytest.mark.parametrize(
    ("engine", "title", "most"),
    [
        pytest.param(
            *("sglang", "sglang::scheduler_TP1", "--max-running-requests"),
            id="sglang",
            marks=pytest.mark.turns(of="the real engine from nothing to nothing"),
        ),
        pytest.param("vllm", "VLLM::Worker_TP1", "--max-num-seqs", marks=pytest.mark.long),
    ],
)
def test_from_nothing_to_a_measured_service_and_through_a_killed_rank_to_nothing(
    engine: str, title: str, most: str
) -> None:
    with small_lab(f"{engine}-{os.getpid()}", engine=engine) as lab:
        lab.write_inventory(vars={"l40s_args": [most, str(RUNNING)], "l40s_max_queued": QUEUED})
        lab.serve()
        gang = lab.gang()
        assert (gang["state"], gang["model"], gang["cause"]) == ("ready", lab.model, None)
        assert gang["service"]["healthy"]
        shown = [(node["name"], node["node_rank"], node["state"]) for node in gang["nodes"]]
        assert shown == [("node0", 0, "ready"), ("node1", 1, "ready")]
        ranks = {node["name"]: [(rank["tp_rank"], rank["state"]) for rank in node["ranks"]] for node in gang["nodes"]}
        assert ranks == {"node0": [(0, "alive")], "node1": [(1, "alive")]}
        assert complete(gang["service"]["url"], lab.model, CANARY_PROMPT, len(CANARY_TEXT)) == CANARY_TEXT
        _measure(lab)
        _too_many(lab, gang["service"]["url"])

        node, killed = lab.rank(1)
        assert title in lab.on(node, f"ps -o args= -p {killed}")
        lab.on(node, f"kill -KILL {killed}")
        until(lambda: lab.gang()["state"] == "failed", FAIL_S, "the gang counts as failed")
        cause = lab.gang()["cause"]
        assert (cause["node"], cause["tp_rank"], cause["signal"]) == ("node1", 1, 9) and cause["fix"], cause
        until(lambda: not lab.engine_processes(), FAIL_S, "no process of the engine is left")

        lab.deploy("down")
        gang = lab.gang()
        assert gang["state"] == "absent" and not gang["service"]["healthy"]


def _measure(lab: SmallLab) -> None:
    """The engine's own client against the real engine, where it has one that is known."""
    assert "slow each other down" in lab.deploy("nettest", code=2).stderr
    if lab.engine == "vllm":
        assert "can't measure vLLM" in lab.deploy("bench", "--prompts", "4", code=2).stderr
        return
    first = json.loads(lab.deploy("bench", *LOAD, "--json", "--gate", code=2, timeout=600).stdout)
    assert (first["verdict"], first["stand_in"], first["stack"]) == ("not judged", False, "sglang-0.5.23-cpu")
    assert first["serving"]["output_tok_s"] > 0 and first["machines"]["before"].keys() == lab.hosts().keys()


def _too_many(lab: SmallLab, url: str) -> None:
    """Those that find the queue full are refused at once, the others served; afterwards all is as before."""
    assert lab.gang()["service"]["max_queued"] == QUEUED

    def ask(number: int) -> tuple[int, str]:
        body = {"model": lab.model, "prompt": f"number {number}", "max_tokens": 64, "ignore_eos": True}
        with answered(f"{url}/v1/completions", body) as answer:
            return answer.status, answer.read().decode()

    with ThreadPoolExecutor(TOO_MANY) as clients:
        answers = list(clients.map(ask, range(TOO_MANY)))
    statuses = Counter(status for status, _ in answers)
    assert set(statuses) == {200, 503} and statuses[200] >= QUEUED, statuses
    assert all(FULL[lab.engine] in text for status, text in answers if status == 503), answers
    assert ask(TOO_MANY)[0] == 200
