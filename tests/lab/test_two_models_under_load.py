"""Two models on four nodes behind the real router, 20,000 requests that name either: while gangs change their model,
restart one after the other, leave the router, are killed and brought back, no answer is another model's, and none of
our verbs loses a request."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from tests.support.load import WRONG, Load
from tests.support.small_lab import MODEL, SmallLab
from tests.support.waiting import slack, until

from .conftest import needs_root, routed_lab

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(7200), needs_root]
OTHER = "other-v3"
ENOUGH = 20_000
CLIENTS = 6
"""Of each model."""
FIGURES = os.environ.get("FIGURES", "")
"""A file for what was counted, for docs/proven.md."""


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    """gang0 and gang1 serve MODEL, gang2 and gang3 OTHER."""
    with routed_lab("two-models", gangs=4, nodes=1, env={"STANDIN_SAYS_MODEL": "1"}) as made:
        other = yaml.safe_load(made.profile.read_text()) | {"name": OTHER}
        (made.folder / f"{OTHER}.yml").write_text(yaml.safe_dump(other))
        for model, gangs in ((MODEL, (0, 1)), (OTHER, (2, 3))):
            for gang in gangs:
                put(made, model, gang)
        yield made


def put(lab: SmallLab, model: str, gang: int) -> None:
    lab.deploy("up", "--model", str(lab.folder / f"{model}.yml"), "--gang", f"gang{gang}", "--replace", timeout=400)


def kill(lab: SmallLab, gang: int) -> None:
    node, pid = lab.rank(0, gang=gang)
    lab.on(node, f"kill -9 {pid}")
    until(lambda: lab.gang(gang)["state"] == "failed", 60.0 * slack())


VERBS: tuple[tuple[str, Callable[[SmallLab], object]], ...] = (
    ("a gang changes its model", lambda lab: put(lab, OTHER, 1)),
    ("and back", lambda lab: put(lab, MODEL, 1)),
    ("rolling restart", lambda lab: lab.deploy("restart", "--rolling", timeout=600)),
    ("a gang leaves the router", lambda lab: lab.deploy("router", "remove", "gang2")),
    ("and returns", lambda lab: lab.deploy("router", "add", "gang2")),
    ("a gang of the other model changes it", lambda lab: put(lab, MODEL, 3)),
    ("and back again", lambda lab: put(lab, OTHER, 3)),
)
"""What must lose nothing, in order."""


def lost(loads: list[Load]) -> list[str]:
    return [words for load in loads for words in load.bad]


def test_no_answer_is_another_models_and_our_verbs_lose_none(lab: SmallLab) -> None:
    began, killed, rounds, by_kills = time.monotonic(), 0, 0, 0
    with ExitStack() as running:
        loads = [
            running.enter_context(Load(lab.router_url, model, clients=CLIENTS, wants=f" by {model}", pause_s=0.1))
            for model in (MODEL, OTHER)
        ]
        while sum(load.good for load in loads) < ENOUGH:
            rounds += 1
            for name, verb in VERBS:
                before = len(lost(loads))
                verb(lab)
                assert lost(loads)[before:] == [], name
            for gang in (rounds % 2, 2 + rounds % 2):
                before = len(lost(loads))
                kill(lab, gang)
                killed += 1
                by_kills += len(lost(loads)) - before
                put(lab, (MODEL, OTHER)[gang // 2], gang)
                until(
                    lambda: len([one for one in lab.json("router", "status")["workers"] if one["healthy"]]) == 4, 90.0
                )
    wrong = [words for words in lost(loads) if WRONG in words]
    assert [words for words in wrong if f" by {MODEL}" in words or f" by {OTHER}" in words] == []
    good = {load.model: load.good for load in loads}
    told = {
        "answered": good,
        "rounds": rounds,
        "verbs": rounds * len(VERBS),
        "kills": killed,
        "lost_by_kills": by_kills,
    }
    told |= {
        "minutes": round((time.monotonic() - began) / 60, 1),
        "slowest_s": round(max(load.slowest_s for load in loads), 1),
    }
    if FIGURES:
        Path(FIGURES).write_text(json.dumps(told) + "\n")
    assert len(lost(loads)) == by_kills, lost(loads)
