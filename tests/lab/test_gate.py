"""`up --gate` behind the real router with two gangs: a plan that answers otherwise, is slower or does not start leaves
the old plan serving, and no request is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from tests.support.load import Load
from tests.support.small_lab import MODEL, SmallLab

from .conftest import needs_root, routed_lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900), needs_root]

PLANTED = ("STANDIN_WRONG_TOKEN", "STANDIN_STEP_MS", "STANDIN_FAIL", "NCCL_MIN_CTAS")


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with routed_lab("gate", gangs=2, nodes=1) as made:
        made.serve()
        yield made


def plan_for(lab: SmallLab, **env: str) -> None:
    """Change the inventory's environment, so that `up` computes another plan."""
    document = yaml.safe_load(lab.inventory.read_text())
    asked = document["all"]["vars"]["l40s_env"]
    for name in PLANTED:
        asked.pop(name, None)
    asked.update(env)
    lab.inventory.write_text(yaml.safe_dump(document, sort_keys=False))


def gate(lab: SmallLab, code: int, **env: str) -> str:
    """`up --gate` with this planted, under load; what it said."""
    plan_for(lab, **env)
    with Load(lab.router_url, MODEL, clients=2, pause_s=0.05) as load:
        done = lab.deploy("up", "--model", str(lab.profile), "--gate", code=None, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    assert load.bad == [] and load.good > 20
    return str(done.stderr)


@pytest.mark.turns(of="gate: no request fails while gangs change")
@pytest.mark.parametrize(
    ("planted", "why"),
    [
        ({"STANDIN_WRONG_TOKEN": "1"}, "is now"),
        ({"STANDIN_FAIL": "rank=1,phase=weights,how=oom"}, "out of memory"),
    ],
    ids=["wrong token", "no start"],
)
def test_what_is_worse_leaves_the_old_plan_serving(lab: SmallLab, planted: dict[str, str], why: str) -> None:
    before = lab.json("status")["gangs"]
    words = gate(lab, 7, **planted)
    assert why in words and f"gang0 is back on its previous plan {before[0]['plan_id']}" in words, words
    assert "not changed: gang1" in words
    after = lab.json("status")["gangs"]
    assert [(gang["state"], gang["plan_id"]) for gang in after] == [("ready", before[0]["plan_id"])] * 2
    assert after[1]["run_id"] == before[1]["run_id"], "the other gang was never touched"
    assert len([worker for worker in lab.json("router", "status")["workers"] if worker["healthy"]]) == 2
    if "STANDIN_WRONG_TOKEN" in planted:
        assert "GATE-FAILED" in words and "STANDIN_WRONG_TOKEN" in words
        judged = [run for run in lab.json("history", "gang0")["runs"] if run["gate"]]
        assert (judged[0]["gate"]["verdict"], judged[0]["gate"]["old"]) == ("not passed", before[0]["plan_id"])
        assert "english-fact" in judged[0]["gate"]["why"]


@pytest.mark.turns(of="gate: no request fails while gangs change")
def test_what_is_as_good_is_taken_by_both(lab: SmallLab) -> None:
    before = {gang["plan_id"] for gang in lab.json("status")["gangs"]}
    words = gate(lab, 0, NCCL_MIN_CTAS="8")
    assert "gate of gang0: passed" in words and "no bench of this plan" in words
    after = {gang["plan_id"] for gang in lab.json("status")["gangs"]}
    assert len(after) == 1 and not after & before


@pytest.mark.turns(of="gate: no request fails while gangs change")
def test_a_slower_plan_is_found_by_the_bench_of_the_old_one(lab: SmallLab) -> None:
    load = ("--input", "20", "--output", "40", "--prompts", "8", "--rate", "1000", "--concurrency", "8")
    plan_for(lab, STANDIN_STEP_MS="20")
    lab.deploy("up", "--model", str(lab.profile), timeout=300)
    lab.deploy("router", "remove", "gang0")
    lab.deploy("bench", "gang0", *load, timeout=300)
    lab.deploy("router", "add", "gang0")
    before = lab.json("status")["gangs"][0]["plan_id"]
    words = gate(lab, 7, STANDIN_STEP_MS="200")
    assert "speed, 8 at once" in words and "slower" in words, words
    assert lab.json("status")["gangs"][0]["plan_id"] == before
