"""`sweep` with the real engine on two emulated nodes: four candidates, the controller killed three times, and
what served before serves again; and of two gangs behind the router the one that is not measured serves on. A launch
takes a minute, so that each is one test."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.support.load import Load, complete
from tests.support.ports import free_port
from tests.support.router import ROUTER_PORTS, router_environment, router_group
from tests.support.small_lab import SmallLab, small_lab
from tests.support.waiting import slack, until

from l40s_lab.engine.model import CANARY_PROMPT, CANARY_TEXT

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(4000)]

RUNS_S = 1900.0
LOADS = (1, 2)
LAYOUTS = ("--layout", "tp2", "--layout", "pp2,tp1")
OF_ONE = ("gang0", "--layout", "tp1")


def words(lab: SmallLab, *what: str) -> tuple[str, ...]:
    """what: gang and layouts"""
    return (
        *("sweep", *what, "--model", lab.model, "--load", ",".join(map(str, LOADS)), "--input", "20", "--output", "10"),
        *("--vary", "chunk=256,512", "--no-nccl", "--replace"),
    )


def points(lab: SmallLab) -> dict[str, list[dict[str, Any]]]:
    """What the record on this machine has measured, by candidate."""
    files = list((Path(lab.environment["XDG_STATE_HOME"]) / "l40s-deploy" / "sweep").glob("*.json"))
    results = json.loads(files[0].read_text())["results"] if files else []
    return {result["candidate"]["id"]: result["points"] for result in results}


def kill_after(lab: SmallLab, wanted: int, *what: str) -> dict[str, list[dict[str, Any]]]:
    """What is measured when the controller is killed, once so many points are."""
    process = lab.start(*words(lab, *what))
    until(
        lambda: sum(map(len, points(lab).values())) >= wanted or process.poll() is not None, RUNS_S * slack(), "points"
    )
    over = process.poll() is not None
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate(timeout=60)
    assert not over, said
    return points(lab)


def test_four_candidates_and_three_kills_leave_one_table_and_the_service() -> None:
    with small_lab(f"sweep-{os.getpid()}", engine="sglang") as lab:
        lab.serve()
        before = lab.gang()
        at_kill = [kill_after(lab, wanted, *LAYOUTS) for wanted in (1, 3, 6)]
        done = lab.deploy(*words(lab, *LAYOUTS), "--json", timeout=RUNS_S)
        found = json.loads(done.stdout)["sweep"]
        states = {one["id"]: (one["state"], one["cause"]) for one in found["candidates"]}
        assert states == dict.fromkeys(
            ("tp2+chunk=256", "tp2+chunk=512", "pp2,tp1+chunk=256", "pp2,tp1+chunk=512"), ("measured", None)
        )
        for one in found["candidates"]:
            assert [point["requests"] for point in one["points"]] == list(LOADS) and one["start_s"] > 0
            assert all(point["tok_s"] > 0 and point["runs"] >= 2 for point in one["points"]) and not one["stand_in"]
        assert found["best"].keys() == {"1", "2"} and found["kept"] == "before"
        now = points(lab)
        for then in at_kill:
            assert all(now[name][: len(known)] == known for name, known in then.items())
        gang = lab.gang()
        assert (gang["state"], gang["plan_id"]) == ("ready", before["plan_id"])
        assert complete(gang["service"]["url"], lab.model, CANARY_PROMPT, len(CANARY_TEXT)) == CANARY_TEXT


def workers(lab: SmallLab) -> int:
    """How many gangs the router counts as healthy."""
    return sum(worker["healthy"] for worker in lab.json("router", "status")["workers"])


def test_the_gang_that_serves_on_loses_no_request_through_three_kills() -> None:
    with small_lab(f"sweeps-{os.getpid()}", engine="sglang", gangs=2, nodes=1) as lab:
        port = free_port(adjacent=ROUTER_PORTS)
        lab.write_inventory(router=router_group(router_environment(), lab.folder / "router", port))
        try:
            lab.serve()
            before = lab.json("status")["gangs"]
            # what it asks ends with an e, and this engine says the next letters
            with Load(f"http://127.0.0.1:{port}", lab.model, clients=2, pause_s=0.5, wants='"text":"f') as load:
                at_kill = [kill_after(lab, wanted, *OF_ONE) for wanted in (1, 2, 3)]
                done = lab.deploy(*words(lab, *OF_ONE), "--json", timeout=RUNS_S)
                until(lambda: workers(lab) == 2, 60, "both get requests again")
            print(f"{load.good} requests answered, {len(load.bad)} not, the slowest after {load.slowest_s:.1f} s")
            assert load.bad == [] and load.good >= 100
            found = json.loads(done.stdout)["sweep"]
            assert {one["id"]: one["state"] for one in found["candidates"]} == dict.fromkeys(
                ("tp1+chunk=256", "tp1+chunk=512"), "measured"
            )
            now = points(lab)
            for then in at_kill:
                assert all(now[name][: len(known)] == known for name, known in then.items())
            after = lab.json("status")["gangs"]
            assert [gang["state"] for gang in after] == ["ready"] * 2 and found["kept"] == "before"
            assert after[1]["run_id"] == before[1]["run_id"], "the other gang was never touched"
        finally:
            lab.deploy("router", "down", code=None)
