"""`up --gate` with the real engine: another flag passes; a plan that is slower, says a wrong token or does not start
brings the old plan back, which answers as before (tests/engine/planted makes it so)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.support.load import complete
from tests.support.small_lab import UP_S, SmallLab, small_lab

from l40s_lab.engine.model import CANARY_PROMPT, CANARY_TEXT, byte_vocabulary

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(6000)]

ON_NODE = "/workspace/planted"
ALWAYS = {"PYTHONPATH": ON_NODE}
LOAD = ("--input", "20", "--output", "20", "--prompts", "8", "--rate", "100", "--concurrency", "4")
FLAG = ("--chunked-prefill-size", "64")
NOISY = ("--gate-within", "50%")
"""A busy machine's speed varies; a planted sleep costs more: the tiny model takes 18 ms a token without it. With 0.3 s
the gate asked for more than seven minutes."""
TOKENS = byte_vocabulary()
PLANTED: Mapping[str, tuple[dict[str, str], str]] = {
    "wrong token": ({"PLANTED_WRONG": f"{TOKENS['t']},{TOKENS['v']}"}, "is now"),
    "no start": ({"PLANTED_NO_START": "1"}, "out of memory"),
    "slower": ({"PLANTED_SLEEP_S": "0.1"}, "% slower"),
}
"""What each adds to the environment, and what the verdict says. The canary has no t."""


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    """It serves with FLAG, which a gate has let pass, and has a benchmark of that."""
    with small_lab(f"gate-{os.getpid()}", engine="sglang", nodes=1, env=ALWAYS) as made:
        made.put(Path(__file__).parent / "planted", ON_NODE)
        made.serve()
        made.deploy("bench", *LOAD, timeout=900)
        yield made


def gate(lab: SmallLab, code: int) -> tuple[str, str]:
    """What `up --gate` said, and the gang's plan before."""
    before = lab.gang()["plan_id"]
    words = ("up", "--model", lab.model, "--gate", *NOISY, "--replace", "--", *FLAG)
    return str(lab.deploy(*words, code=code, timeout=UP_S["sglang"]).stderr), before


def answers(lab: SmallLab) -> str:
    return complete(lab.gang()["service"]["url"], lab.model, CANARY_PROMPT, len(CANARY_TEXT) + 12)


def test_another_flag_passes(lab: SmallLab) -> None:
    words, before = gate(lab, 0)
    assert "passed" in words and "speed, 4 at once" in words and "answers among others" in words, words
    assert lab.gang()["plan_id"] != before
    assert answers(lab) == "ghijklmnopqrstuv"
    lab.deploy("bench", *LOAD, timeout=900)


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_worse_brings_the_old_plan_back(lab: SmallLab, planted: str) -> None:
    added, why = PLANTED[planted]
    lab.env = {**ALWAYS, **added}
    lab.write_inventory()
    words, before = gate(lab, 7)
    assert why in words and f"gang0 is back on its previous plan {before}" in words, words
    told = next(run["gate"] for run in lab.json("history", "gang0")["runs"] if run["gate"])
    assert told["verdict"] == "not passed" and why in told["why"]
    page = Path(told["html"]).read_text()
    assert "not passed" in page and next(iter(added)) in page
    gang = lab.gang()
    assert (gang["state"], gang["plan_id"]) == ("ready", before)
    assert answers(lab) == "ghijklmnopqrstuv"
    print(*told["page"], sep="\n")
