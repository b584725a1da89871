"""`sweep` against a gang of two emulated nodes that serves: two candidates, the controller killed within one or
between both; the same table, nothing measured twice, and what served before serves again."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.load import Load
from tests.support.small_lab import MODEL, SmallLab, small_lab
from tests.support.waiting import slack, until

from .conftest import MEASURED, needs_root, routed_lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(1800),
    needs_root,
    MEASURED,
]

WORDS = (
    *("sweep", "--model", MODEL, "--load", "1,4", "--input", "20", "--output", "10"),
    *("--layout", "tp4", "--layout", "pp2,tp2", "--vary", "chunk=2048", "--no-nccl"),
)
CANDIDATES = ["tp4+chunk=2048", "pp2,tp2+chunk=2048"]
RUNS_S = 600.0


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab("sweep", nodes=2) as made:
        (made.folder / "models").mkdir()
        (made.folder / "models" / f"{MODEL}.yml").write_text(made.profile.read_text())
        made.write_inventory()
        made.deploy("up", "--model", MODEL)
        yield made


def sweeps(lab: SmallLab) -> Path:
    return Path(lab.environment["XDG_STATE_HOME"]) / "l40s-deploy" / "sweep"


def points(lab: SmallLab) -> dict[str, list[dict[str, Any]]]:
    """By candidate, of every sweep that this machine keeps."""
    results = (result for file in sweeps(lab).glob("*.json") for result in json.loads(file.read_text())["results"])
    return {result["candidate"]["id"]: result["points"] for result in results}


def measured(lab: SmallLab) -> int:
    return sum(map(len, points(lab).values()))


def kill_after(lab: SmallLab, wanted: int) -> None:
    """Start a sweep, and kill it once so many points are measured in all."""
    process = lab.start(*WORDS, "--replace")
    until(lambda: measured(lab) >= wanted or process.poll() is not None, RUNS_S * slack(), f"{wanted} points")
    over = process.poll() is not None
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate(timeout=60)
    assert not over, said


@pytest.mark.turns(of="sweep: what served before serves again")
@pytest.mark.parametrize("killed_after", [1, 2], ids=["within one", "between both"])
def test_it_is_killed_and_ends_with_what_served_before(lab: SmallLab, killed_after: int) -> None:
    shutil.rmtree(sweeps(lab), ignore_errors=True)
    before = lab.gang()
    refused = lab.deploy(*WORDS, code=2)
    assert "with --replace" in refused.stderr and lab.gang()["state"] == "ready"
    shown = lab.deploy(*WORDS, "--dry-run", "--json")
    waiting = json.loads(shown.stdout)["sweep"]["candidates"]
    assert sorted(one["id"] for one in waiting) == sorted(CANDIDATES) and "in all" in shown.stderr
    assert {one["state"] for one in waiting} == {"left"} and measured(lab) == 0

    kill_after(lab, killed_after)
    at_kill = points(lab)
    page = lab.folder / "sweep.html"
    done = lab.deploy(*WORDS, "--replace", "--json", "--html", str(page), timeout=RUNS_S)
    found = json.loads(done.stdout)["sweep"]

    assert sorted(one["id"] for one in found["candidates"]) == sorted(CANDIDATES)
    assert {one["state"] for one in found["candidates"]} == {"measured"}
    assert {tuple(point["requests"] for point in one["points"]) for one in found["candidates"]} == {(1, 4)}
    assert found["best"].keys() == {"1", "4"} and found["kept"] == "before"
    now = points(lab)
    assert all(now[name][: len(known)] == known for name, known in at_kill.items()), "nothing is measured twice"
    assert all(name in page.read_text() for name in CANDIDATES)

    gang = lab.gang()
    assert (gang["state"], gang["plan_id"]) == ("ready", before["plan_id"])
    again = lab.deploy(*WORDS, "--replace")
    assert "0 candidates to measure" in again.stderr and lab.gang()["run_id"] == gang["run_id"]


def test_what_was_measured_is_shown_and_used(lab: SmallLab) -> None:
    lab.deploy("down")
    words = ("sweep", "--model", MODEL, "--load", "1", "--input", "20", "--output", "10", "--layout", "pp2,tp2")
    found = json.loads(lab.deploy(*words, "--keep", "best", "--json", timeout=RUNS_S).stdout)["sweep"]
    assert (found["best"], found["kept"]) == ({"1": "pp2,tp2"}, "pp2,tp2")
    until(lambda: lab.gang()["state"] == "ready", 60 * slack(), "the best serves")
    listed = json.loads(lab.deploy("models", MODEL, "--json").stdout)["models"][0]["gangs"][0]["layouts"]
    here = {one["flags"]: one["measured_here"] for one in listed}
    assert here.pop("--pp 2 --tp 2")["1"] > 0 and not any(here.values())
    plan = lab.deploy("plan", "--model", MODEL, "--for", "1")
    everything = {name: one["tok_s"] for name, known in points(lab).items() for one in known if one["requests"] == 1}
    fastest = max(everything, key=lambda name: everything[name])
    assert f"{fastest}, measured here" in plan.stderr
    layout = next(line for line in plan.stdout.splitlines() if line.startswith("layout: "))
    assert ("PP2 x TP2" in layout) == fastest.startswith("pp2"), plan.stdout


@pytest.mark.turns(of="sweep: what served before serves again")
def test_the_other_gang_behind_the_router_loses_no_request() -> None:
    with routed_lab("sweeprouted", gangs=2, nodes=1) as lab:
        lab.serve()
        words = ("sweep", "gang0", "--model", lab.model, "--load", "1", "--input", "20", "--output", "10")
        with Load(lab.router_url, MODEL, clients=2, pause_s=0.1) as load:
            done = lab.deploy(
                *words, "--layout", "tp2", "--vary", "chunk=2048", "--no-nccl", "--replace", timeout=RUNS_S
            )
        assert load.bad == [] and load.good > 20
        assert "gang0 is measured; gang1 goes on serving behind the router" in done.stderr
        assert "kept: before" in done.stdout
        healthy = [worker for worker in lab.json("router", "status")["workers"] if worker["healthy"]]
        assert len(healthy) == 2 and [gang["state"] for gang in lab.json("status")["gangs"]] == ["ready"] * 2
