"""A node is lost for good: the guard has the gang serve without it, with another layout, and on all nodes again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.gpu.stage import Otherwise, Stage, with_what_was_seen
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import guarding, serving

LEASE_S = 6
AFTER_S = 5
"""`--degrade-after`."""
START_S = 240.0
"""For the guard and the engine: a node that lost its power may have to compile its kernels again."""


def degrade(stage: Stage, _: object = None, start_s: float = START_S) -> tuple[str, dict[str, Any]]:
    """A stage on each node; the leader loses its power; served on by the others; powered on, and back to all.

    start_s: limit of each start
    """
    each, stages = stage.lab.gpus, len(stage.nodes_of("gang0"))
    figures: dict[str, Any] = {}
    stage.lab.write_inventory(vars={"l40s_lease": LEASE_S})
    try:
        with with_what_was_seen(figures):
            figures["up_s"] = round(stage.up("--tp", str(each), "--pp", str(stages), "--replace"), 1)
            return without_its_leader(stage, figures, start_s), figures
    finally:
        stage.lab.write_inventory()


def without_its_leader(stage: Stage, figures: dict[str, Any], start_s: float = START_S) -> str:
    """The gang is ready; its leader is off for a while, with a guard beside it."""
    lost, *left = stage.nodes_of("gang0")
    whole = stage.gang()
    figures["start"] = whole["start"]
    with _guarded(stage, figures), _healed(stage, lost):
        stage.lab.run("break", lost, "power-off")
        began = time.monotonic()
        on_one, figures["served_again_s"] = stage.seen(
            "gang0",
            lambda one: one["run_id"] != whole["run_id"] and one["state"] == "degraded" and serving(one, left),
            LEASE_S + AFTER_S + start_s, f"served by {', '.join(left)} alone",
        )  # fmt: skip
        figures |= {"reason": [on_one["degraded_reason"], on_one["serving_nodes"], on_one["missing"]]}
        figures["start without it"] = on_one["start"]
        if figures["reason"] != ["nodes", len(left), [lost]]:
            raise Otherwise(f"status says {figures['reason']}")
        stage.continues(str(on_one["service"]["url"]))
        stage.lab.run("heal", lost, "power-off")
        powered = time.monotonic()
        back, _ = stage.seen(
            "gang0", lambda one: one["state"] == "ready" and serving(one, [lost, *left]),
            start_s, "ready on all nodes",
        )  # fmt: skip
        figures |= {"back_s": round(time.monotonic() - powered, 1), "start again": back["start"]}
        figures["all_s"] = round(time.monotonic() - began, 1)
        stage.continues(str(back["service"]["url"]))
    served = f"degraded on {', '.join(left)} {figures['served_again_s']:.0f} s after {lost} lost its power"
    return f"{served}; on all nodes again {figures['back_s']:.0f} s after it came back; the alphabet goes on each time"


@contextmanager
def _healed(stage: Stage, lost: str) -> Iterator[None]:
    try:
        yield
    finally:
        stage.run("lab", "heal", "--name", stage.lab.name, lost)


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
