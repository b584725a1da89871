"""A command that is killed, or loses its terminal, in the middle of a restart: the next command finishes the work.

Moments are random: MOMENTS of them (`make long` takes 200, in four labs side by side). The seed that each test prints
decides which moments, and of which command.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.support.load import Load
from tests.support.preloaded import preloaded
from tests.support.small_lab import MODEL, SmallLab
from tests.support.turns import drawn
from tests.support.waiting import slack, until

from .conftest import BEGUN_AND_FINISHED, needs_root, routed_lab

MOMENTS = int(os.environ.get("MOMENTS", "1"))
SEED = int(os.environ.get("SEED", "0")) or 1 + drawn("interrupted") % (1 << 31)
SHARES = 4 if MOMENTS >= 40 else 1
GANGS = 3 if MOMENTS >= 40 else 2
"""With three there may be one that has been restarted, one half-way and one untouched at the same moment."""
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
BEGUN = ("rolling", "maintenance", "change")
FINISHED_BY = ("resume", "up", "guard")
NOTHING_LEFT = "no interrupted command has left anything"
STOPPED_BY_HAND = "is stopped; start it again"
SIGNALS = (signal.SIGKILL, signal.SIGHUP, signal.SIGTERM, signal.SIGINT)

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300 + 120 * MOMENTS),
    needs_root,
    BEGUN_AND_FINISHED,
]


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with routed_lab(f"interrupted{WORKER}", gangs=GANGS, nodes=1) as made:
        made.serve()
        yield made


def words(lab: SmallLab, what: str, turn: int) -> list[str]:
    """The command to interrupt. turn: makes every plan different."""
    if what == "rolling":
        return ["restart", "--rolling"]
    if what == "maintenance":
        return ["restart", "--maintenance", "--run", "sleep 0.3"]
    plan_for(lab, NCCL_MIN_CTAS=str(4 + turn % 20))
    return ["up", "--model", lab.model]


def plan_for(lab: SmallLab, **env: str) -> None:
    document = yaml.safe_load(lab.inventory.read_text())
    document["all"]["vars"]["l40s_env"] |= env
    lab.inventory.write_text(yaml.safe_dump(document, sort_keys=False))


def finish(lab: SmallLab, how: str) -> None:
    command = {"resume": ["up"], "up": ["up", "--model", lab.model], "guard": ["guard", "--once"]}[how]
    done = lab.deploy(*command, code=None if how == "resume" else 0)
    assert done.returncode == 0 or NOTHING_LEFT in done.stderr, done.stderr  # it may have come to nothing yet


def interrupt(lab: SmallLab, command: list[str], number: int, after_s: float) -> str:
    """Start a command and send it a signal; returns its output up to then."""
    out = lab.folder / "interrupted.out"
    running = preloaded().start(command, out, out, lab.environment)
    end = time.monotonic() + after_s
    while running.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    running.send_signal(number)
    running.wait(150 * slack())
    return out.read_text(errors="replace")


def places(lab: SmallLab) -> dict[str, Any]:
    """State and place behind the router; `status` waits two seconds for a busy router and then says null."""
    seen: dict[str, Any] = {}

    def router_answers() -> bool:
        seen.update({gang["name"]: (gang["state"], gang["router"]) for gang in lab.json("status")["gangs"]})
        return all(place is not None for _, place in seen.values())

    until(router_answers, 60.0, "the router says which gangs it has")
    return seen


def half_way(lab: SmallLab) -> list[str]:
    return [one["name"] for one in lab.json("status")["gangs"] if (one["interrupted"] or {}).get("turning")]


WELL = {f"gang{number}": ("ready", "in") for number in range(GANGS)}


@pytest.mark.turns(of="interrupted: what comes after finishes it")
@pytest.mark.parametrize("share", range(SHARES))
def test_whatever_comes_after_a_killed_restart_ends_with_every_gang_serving_behind_the_router(
    lab: SmallLab, share: int
) -> None:
    seed = SEED + share
    chance = random.Random(seed)
    print(f"SEED={seed} MOMENTS={MOMENTS // SHARES}")
    lasts: dict[str, float] = {}
    first = chance.randrange(len(BEGUN) * len(FINISHED_BY))
    for turn in range(first, first + MOMENTS // SHARES):
        what, how = BEGUN[turn % 3], FINISHED_BY[(turn + turn // 3) % 3]
        number = chance.choice(SIGNALS)
        began = time.monotonic()
        if what not in lasts:
            lab.deploy(*words(lab, what, turn + 100))
            lasts[what] = time.monotonic() - began
        after_s = chance.uniform(0.0, lasts[what])
        moment = f"SEED={seed} turn {turn}: {what}, signal {number} after {after_s:.2f} s, then {how}"
        with Load(lab.router_url, MODEL, clients=2, pause_s=0.05) as load:
            said = interrupt(lab, words(lab, what, turn), number, after_s)
            moment += f"\n{said}"
            if STOPPED_BY_HAND in said and number == signal.SIGINT and how == "guard":
                how = "resume"  # its operator has the nodes: no guard takes them
            finish(lab, how)
        print(f"{moment}{load.good} requests answered, {len(load.bad)} lost")
        assert places(lab) == WELL, moment
        assert load.good and not load.bad, f"{moment}\n{load.bad}"
        assert not half_way(lab), moment
        if how == "guard":  # it leaves what a command has not touched to the next one
            lab.deploy("up", "--model", lab.model)
        assert not any(one["interrupted"] for one in lab.json("status")["gangs"]), moment


@pytest.mark.turns(of="interrupted: what comes after finishes it")
def test_status_names_the_command_that_finishes_it(lab: SmallLab) -> None:
    out = lab.folder / "killed.out"
    out.touch()
    running = preloaded().start(["restart", "--rolling"], out, out, lab.environment)
    until(lambda: "staging" in out.read_text(), 60.0, "the first gang is stopped and staged")
    running.send_signal(signal.SIGHUP)
    assert running.wait(60) == 130
    seen = lab.deploy("status", code=3)
    assert "a rolling restart was interrupted" in seen.stdout and "run `l40s-deploy up`" in seen.stdout
    (gang,) = [one for one in lab.json("status")["gangs"] if (one["interrupted"] or {}).get("turning")]
    assert gang["degraded_reason"] == "interrupted" and gang["interrupted"]["what"] == "rolling restart"
    before = {one["name"]: one["run_id"] for one in lab.json("status")["gangs"] if not one["interrupted"]["turning"]}
    finished = lab.deploy("up")
    assert f"finished: {', '.join(WELL)}" in finished.stdout, finished.stdout
    assert places(lab) == WELL
    after = {one["name"]: one["run_id"] for one in lab.json("status")["gangs"]}
    assert all(after[name] != run for name, run in before.items())  # the rolling restart went on with the others
    nothing = lab.deploy("up", code=2)
    assert NOTHING_LEFT in nothing.stderr
