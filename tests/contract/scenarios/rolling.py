"""Two gangs behind the real router that restart one after the other under load, as operators run them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.contract.contract import REAL, Scenario, See
from tests.contract.under_test import EngineUnderTest
from tests.support.load import Load, complete
from tests.support.ports import free_port
from tests.support.router import ROUTER_PORTS, router_environment, router_group
from tests.support.small_lab import SmallLab, small_lab

from l40s_lab.engine.model import CANARY_PROMPT, CANARY_TEXT

_MOST_S = 900.0
"""Time limit for restarting both; the real engine takes about a minute to start on an idle machine."""
_ENOUGH = 200
"""Enough requests to make the row meaningful; there are more, as many as the machine answers."""


def _play(engine: EngineUnderTest, see: See) -> None:
    with _served(engine) as (lab, port):
        before = _gangs(lab)
        see("up", ", ".join(gang["state"] for gang in before))
        see("in-router", _in_router(lab))
        see("text", complete(f"http://127.0.0.1:{port}", before[0]["model"], CANARY_PROMPT, len(CANARY_TEXT)))
        with Load(f"http://127.0.0.1:{port}", before[0]["model"], clients=2) as load:
            done = lab.deploy("restart", "--rolling", code=None, timeout=_MOST_S)
        print(f"    {load.good} requests answered, {len(load.bad)} failed, the slowest after {load.slowest_s:.1f} s")
        see("restart", f"exit code {done.returncode}" + (f": {done.stderr[-400:]}" if done.returncode else ""))
        see("failed", f"{len(load.bad)}" + (f": {load.bad[0]}" if load.bad else ""))
        see("answered", f"at least {_ENOUGH}" if load.good >= _ENOUGH else load.good)
        after = _gangs(lab)
        see("again", ", ".join(gang["state"] for gang in after))
        see("new-runs", not {gang["run_id"] for gang in before} & {gang["run_id"] for gang in after})
        see("in-router-again", _in_router(lab))
        lab.deploy("router", "down")
        lab.deploy("down", "--all")
        see("left", lab.engine_processes() or "nothing")


@contextmanager
def _served(engine: EngineUnderTest) -> Iterator[tuple[SmallLab, int]]:
    """A lab whose two gangs of one node serve behind a router, and the router's port."""
    environment = router_environment()
    port = free_port(adjacent=ROUTER_PORTS)
    kind = "sglang" if engine.maker.name == REAL else "standin"
    with small_lab("rolling-contract", gangs=2, nodes=1, engine=kind) as lab:
        lab.write_inventory(router=router_group(environment, lab.folder / "router", port))
        try:
            lab.serve()
            yield lab, port
        finally:
            lab.deploy("router", "down", code=None)


def _gangs(lab: SmallLab) -> list[dict[str, str]]:
    gangs: list[dict[str, str]] = lab.json("status")["gangs"]
    return gangs


def _in_router(lab: SmallLab) -> int:
    return sum(worker["healthy"] for worker in lab.json("router", "status")["workers"])


ROLLING = Scenario(name="rolling", play=_play, runs="lab")
