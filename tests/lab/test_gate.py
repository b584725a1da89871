"""`up --gate`: a plan that answers otherwise, is slower or does not start leaves the old plan serving. Behind the real
router with two gangs no request is lost; a gang that serves alone is down meanwhile, which is said first."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.load import Load
from tests.support.small_lab import MODEL, SmallLab
from tests.support.waiting import until

from .conftest import BEGUN_AND_FINISHED, needs_root, routed_lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900),
    needs_root,
    BEGUN_AND_FINISHED,
]

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


def gate(lab: SmallLab, code: int, *more: str, **env: str) -> str:
    """`up --gate` with this planted, under load; what it said."""
    plan_for(lab, **env)
    with Load(lab.router_url, MODEL, clients=2, pause_s=0.1) as load:
        done = lab.deploy("up", "--model", str(lab.profile), "--gate", *more, code=None, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    assert load.bad == [] and load.good > 20
    return str(done.stderr)


def verdict(lab: SmallLab) -> dict[str, Any]:
    """Of the newest run of gang0 that was judged."""
    judged: dict[str, Any] = next(run["gate"] for run in lab.json("history", "gang0")["runs"] if run["gate"])
    return judged


def bench_of_slow_steps(lab: SmallLab) -> None:
    """What a slower plan is held against. Nobody else asks gang0 then."""
    lab.deploy("router", "remove", "gang0")
    load = ("--input", "20", "--output", "40", "--prompts", "8", "--rate", "1000", "--concurrency", "8")
    lab.deploy("bench", "gang0", *load, timeout=300)
    lab.deploy("router", "add", "gang0")


@pytest.mark.turns(of="gate: the better plan serves at the end")
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
    told = verdict(lab)
    assert (told["verdict"], told["old"]) == ("not passed", before[0]["plan_id"])
    assert all(line in words for line in told["page"]) and next(iter(planted)) in told["page"][1]
    assert f"page: {told['html']}" in words
    page = Path(told["html"]).read_text()
    assert "not passed" in page and next(iter(planted)) in page and told["old"] in page
    if "STANDIN_WRONG_TOKEN" in planted:
        assert "GATE-FAILED" in words and "english-fact" in told["why"]
    else:
        assert "out of memory" in told["why"] and told["page"][-1].split()[0] == "start"


@pytest.mark.turns(of="gate: the better plan serves at the end")
def test_what_is_as_good_is_taken_by_both(lab: SmallLab, tmp_path: Path) -> None:
    """The stand-in counts a prompt's words."""
    questions = [{"question": "How many words are these?", "answer": "5"}, {"question": "And these?", "answer": "9"}]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, questions)))
    before = {gang["plan_id"] for gang in lab.json("status")["gangs"]}
    words = gate(lab, 0, "--gate-eval", str(tmp_path / "asked.jsonl"), NCCL_MIN_CTAS="8")
    assert "gate of gang0: passed" in words and "no bench of this plan" in words
    assert "every GPU of" in words, "kernels are tried on none that an engine has"
    (row,) = [line.split() for line in verdict(lab)["page"] if line.split()[0] == "questions"]
    assert " ".join(row) == "questions 1 of 2 right 1 of 2 right passed"
    assert "1 of 2 right" in lab.deploy("history", "gang0").stdout
    after = {gang["plan_id"] for gang in lab.json("status")["gangs"]}
    assert len(after) == 1 and not after & before


@pytest.mark.turns(of="gate: the better plan serves at the end")
def test_a_slower_plan_is_found_by_the_bench_of_the_old_one(lab: SmallLab) -> None:
    plan_for(lab, STANDIN_STEP_MS="20")
    lab.deploy("up", "--model", str(lab.profile), timeout=300)
    bench_of_slow_steps(lab)
    before = lab.json("status")["gangs"][0]["plan_id"]
    words = gate(lab, 7, STANDIN_STEP_MS="200")
    assert "speed, 8 at once" in words and "slower" in words, words
    assert lab.json("status")["gangs"][0]["plan_id"] == before


@pytest.mark.turns(of="interrupted: what comes after finishes it")
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_plan_without_its_verdict_gets_no_requests(lab: SmallLab, sent: signal.Signals) -> None:
    """Whoever finishes what the gate had begun brings the old plan back: nobody knows whether the new one is right."""
    before = lab.json("status")["gangs"]
    plan_for(lab, STANDIN_WRONG_TOKEN="1")
    with Load(lab.router_url, MODEL, clients=2, pause_s=0.1) as load:
        interrupted(lab, sent)
        assert workers(lab) == 1, "what was not judged is not behind the router"
        assert "up --gate" in lab.deploy("status", code=None).stdout
        lab.deploy("up", timeout=300)
        after = lab.json("status")["gangs"]
        assert [gang["plan_id"] for gang in after] == [gang["plan_id"] for gang in before]
        assert workers(lab) == 2
    assert load.bad == [] and load.good > 20
    assert "is now" in gate(lab, 7, STANDIN_WRONG_TOKEN="1")


def workers(lab: SmallLab) -> int:
    """How many gangs get requests."""
    return sum(worker["healthy"] for worker in lab.json("router", "status")["workers"])


def interrupted(lab: SmallLab, sent: signal.Signals) -> None:
    """`up --gate` that ends while it asks the new plan."""
    process = lab.start("up", "--model", str(lab.profile), "--gate")
    assert process.stdout is not None
    assert any("gate: asking the new plan" in line for line in process.stdout)
    process.send_signal(sent)
    process.communicate(timeout=120)


@pytest.mark.turns(of="gate: the better plan serves at the end")
@pytest.mark.parametrize(
    ("planted", "why"),
    [
        ({"STANDIN_STEP_MS": "200"}, "slower"),
        ({"STANDIN_STEP_MS": "20", "STANDIN_WRONG_TOKEN": "1"}, "is now"),
        ({"STANDIN_STEP_MS": "20", "STANDIN_FAIL": "rank=1,phase=weights,how=oom"}, "out of memory"),
    ],
    ids=["slower", "wrong token", "no start"],
)
def test_a_gang_that_serves_alone_says_its_downtime_first_and_returns(
    lab: SmallLab, planted: dict[str, str], why: str
) -> None:
    lab.deploy("down", "gang1")
    plan_for(lab, STANDIN_STEP_MS="20")
    up = ("up", "--model", str(lab.profile), "--gang", "gang0")
    lab.deploy(*up, "--replace", timeout=300)
    bench_of_slow_steps(lab)
    before = lab.gang()
    plan_for(lab, **planted)
    refused = lab.deploy(*up, "--gate", code=2)
    assert "will not serve for about" in refused.stderr and "--replace" in refused.stderr
    assert lab.gang()["run_id"] == before["run_id"], "nothing was stopped"
    words = lab.deploy(*up, "--gate", "--replace", code=7, timeout=300).stderr
    assert words.index("will not serve for about") < words.index("draining requests")
    assert why in words and f"gang0 is back on its previous plan {before['plan_id']}" in words
    after = lab.gang()
    assert (after["state"], after["plan_id"]) == ("ready", before["plan_id"]) and after["run_id"] != before["run_id"]
    told = verdict(lab)
    assert told["verdict"] == "not passed" and why in told["why"]
    with Load(lab.router_url, MODEL, clients=2) as load:
        until(lambda: load.good >= 10 or load.bad, 60.0)
    assert load.bad == [], "the router sends it requests again"
