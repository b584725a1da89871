"""Two models on four nodes behind the real router, 20,000 requests that name either (500 with the real engine): while
gangs change their model, restart one after the other, leave the router, are killed and brought back, no answer is
another model's, and none of our verbs loses a request."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.support.load import WRONG, Load
from tests.support.small_lab import ENGINE_MODEL, MODEL, UP_S, SmallLab
from tests.support.waiting import slack, until

from l40s_lab.engine.model import LETTERS, tiny_model
from orchestrator.loading.resources import data_dir

from .conftest import needs_root, routed_lab

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(7200), needs_root]


@dataclass(frozen=True, slots=True)
class Played:
    """With one engine. model: of gang0 and gang1; other: of gang2 and gang3; says: by model, what each of its answers
    has; enough: requests; clients: of each model"""

    model: str
    other: str
    says: Mapping[str, str]
    enough: int
    clients: int
    pause_s: float


PLAYED = {
    "standin": Played(
        MODEL, "other-v3", {MODEL: f" by {MODEL}", "other-v3": " by other-v3"}, enough=20_000, clients=6, pause_s=0.1
    ),
    "sglang": Played(
        ENGINE_MODEL, "tiny-back", {ENGINE_MODEL: '"text":"f', "tiny-back": '"text":"d'}, enough=500, clients=2,
        pause_s=0.5,
    ),
}  # fmt: skip
"""Each prompt ends with an e; the real engine's second model has the letters in their other order."""
FIGURES = os.environ.get("FIGURES", "")
"""A file for what was counted, for docs/proven.md."""


@pytest.fixture(scope="module", params=["standin", pytest.param("sglang", marks=pytest.mark.engine)])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallLab]:
    """Its four gangs serve."""
    engine, played = request.param, PLAYED[request.param]
    with routed_lab("two-models", gangs=4, nodes=1, engine=engine, env={"STANDIN_SAYS_MODEL": "1"}) as made:
        profile = made.profile
        if engine == "sglang":
            profile = data_dir("inventory") / "models" / f"{ENGINE_MODEL}.yml"
            backwards = tiny_model(tmp_path_factory.mktemp("model"), letters=LETTERS[::-1])
            made.put(backwards, f"/workspace/{played.other}")
        described = yaml.safe_load(profile.read_text())
        (made.folder / f"{played.model}.yml").write_text(yaml.safe_dump(described))
        described |= {"name": played.other}
        if engine == "sglang":
            described |= {"directory": played.other, "canary": {**described["canary"], "expect_any": ["edcb"]}}
        (made.folder / f"{played.other}.yml").write_text(yaml.safe_dump(described))
        for model, gangs in ((played.model, (0, 1)), (played.other, (2, 3))):
            for gang in gangs:
                put(made, model, gang)
        yield made


def put(lab: SmallLab, model: str, gang: int) -> None:
    words = ("up", "--model", str(lab.folder / f"{model}.yml"), "--gang", f"gang{gang}", "--replace")
    lab.deploy(*words, timeout=UP_S[lab.engine])


def kill(lab: SmallLab, gang: int) -> None:
    node, pid = lab.rank(0, gang=gang)
    lab.on(node, f"kill -9 {pid}")
    until(lambda: lab.gang(gang)["state"] == "failed", 60.0 * slack())


VERBS: tuple[tuple[str, Callable[[SmallLab], object]], ...] = (
    ("a gang changes its model", lambda lab: put(lab, PLAYED[lab.engine].other, 1)),
    ("and back", lambda lab: put(lab, PLAYED[lab.engine].model, 1)),
    ("rolling restart", lambda lab: lab.deploy("restart", "--rolling", timeout=UP_S[lab.engine])),
    ("a gang leaves the router", lambda lab: lab.deploy("router", "remove", "gang2")),
    ("and returns", lambda lab: lab.deploy("router", "add", "gang2")),
    ("a gang of the other model changes it", lambda lab: put(lab, PLAYED[lab.engine].model, 3)),
    ("and back again", lambda lab: put(lab, PLAYED[lab.engine].other, 3)),
)
"""What must lose nothing, in order."""


def lost(loads: list[Load]) -> list[str]:
    return [words for load in loads for words in load.bad]


def test_no_answer_is_another_models_and_our_verbs_lose_none(lab: SmallLab) -> None:
    played = PLAYED[lab.engine]
    began, killed, rounds, by_kills = time.monotonic(), 0, 0, 0
    with ExitStack() as running:
        loads = [
            running.enter_context(
                Load(lab.router_url, model, clients=played.clients, wants=says, pause_s=played.pause_s)
            )
            for model, says in played.says.items()
        ]
        while sum(load.good for load in loads) < played.enough:
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
                put(lab, (played.model, played.other)[gang // 2], gang)
                until(
                    lambda: len([one for one in lab.json("router", "status")["workers"] if one["healthy"]]) == 4, 90.0
                )
    wrong = [words for words in lost(loads) if WRONG in words]
    assert [words for words in wrong if any(says in words for says in played.says.values())] == []
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
