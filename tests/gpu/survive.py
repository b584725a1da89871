"""A node is lost for good: the guard has the gang serve without it, with another layout, and on all nodes again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.gpu.stage import Otherwise, Stage, with_what_was_seen
from tests.support.guarding import guarding, serving
from tests.support.preloaded import L40S_DEPLOY

LEASE_S = 6
AFTER_S = 5
"""`--degrade-after`."""
START_S = 240.0
"""For the guard and the engine: a node that lost its power may have to compile its kernels again."""


def degrade(stage: Stage) -> tuple[str, dict[str, Any]]:
    """PP2 over two nodes; the leader loses its power; served on by the other one; powered on, and back to both."""
    lost, left = stage.nodes_of("gang0")
    figures: dict[str, Any] = {}
    stage.lab.write_inventory(vars={"l40s_lease": LEASE_S})
    try:
        with with_what_was_seen(figures):
            return _degraded(stage, lost, left, figures), figures
    finally:
        stage.run("lab", "heal", "--name", stage.lab.name, lost)
        stage.lab.write_inventory()


def _degraded(stage: Stage, lost: str, left: str, figures: dict[str, Any]) -> str:
    each = stage.lab.gpus
    up_s = stage.up("--tp", str(each), "--pp", "2", "--replace")
    whole = stage.gang()
    figures |= {"up_s": round(up_s, 1), "start": whole["start"]}
    with _guarded(stage, figures):
        stage.lab.deploy("lab", "break", "--name", stage.lab.name, lost, "power-off")
        began = time.monotonic()
        on_one, figures["served_again_s"] = stage.seen(
            "gang0",
            lambda one: one["run_id"] != whole["run_id"] and one["state"] == "degraded" and serving(one, [left]),
            LEASE_S + AFTER_S + START_S, f"served by {left} alone",
        )  # fmt: skip
        figures |= {"reason": [on_one["degraded_reason"], on_one["serving_nodes"], on_one["missing"]]}
        figures["start without it"] = on_one["start"]
        if figures["reason"] != ["nodes", 1, [lost]]:
            raise Otherwise(f"status says {figures['reason']}")
        if wrong := stage.continues(str(on_one["service"]["url"])):
            raise Otherwise(wrong)
        stage.lab.deploy("lab", "heal", "--name", stage.lab.name, lost, "power-off")
        powered = time.monotonic()
        back, _ = stage.seen(
            "gang0", lambda one: one["state"] == "ready" and serving(one, [lost, left]),
            START_S, "ready on both nodes",
        )  # fmt: skip
        figures |= {"back_s": round(time.monotonic() - powered, 1), "start again": back["start"]}
        figures["all_s"] = round(time.monotonic() - began, 1)
        if wrong := stage.continues(str(back["service"]["url"])):
            raise Otherwise(wrong)
    served, both = f"{figures['served_again_s']:.0f} s after {lost} lost its power", f"PP2 x TP{each}"
    words = f"{both}; degraded, TP{each} on {left} alone {served}; {both} again {figures['back_s']:.0f} s after its"
    return f"{words} power came back; the alphabet goes on each time"


@contextmanager
def _guarded(stage: Stage, figures: dict[str, Any]) -> Iterator[None]:
    """A guard beside us; the last lines of what it says are kept."""
    said = stage.lab.folder / "guard.txt"
    words = ("guard", "--degrade-after", f"{AFTER_S}s", "--restore", "auto", "--golden-every", "0")
    try:
        with guarding([*L40S_DEPLOY, *words], stage.lab.environment, said):
            yield
    finally:
        figures["guard"] = said.read_text().splitlines()[-12:]
