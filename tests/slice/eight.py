"""The parts of `make slice` for a node of eight GPUs, and for four nodes: several gangs, kills, a lost node, a sweep.

For any number of GPUs from four; a gang of half of them has ranks of twice the weights.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.gpu import measuring, steps, survive
from tests.gpu.stage import Otherwise, Shape, Stage, with_what_was_seen
from tests.gpu.steps import Record, Step
from tests.slice.lab import COUNTS, INPUT, OUTPUT, REBLOCKED, Served, Wish, keep_logs

Told = tuple[str, dict[str, Any]]
FEWEST = 4
START_S = 500.0
"""Of a start whose kernels nobody has compiled, as after a change of the layout."""
KILL_S = 170.0
"""Of a start with kernels from before, and a kill."""
SWEEP_S = 1800.0


def parts(nodes: int, gpus: int) -> tuple[Step, ...]:
    """Of so many nodes with so many GPUs each; none where there are fewer than four GPUs."""
    if nodes * gpus < FEWEST:
        return ()

    def several(_: int) -> Shape:
        return Shape(1, nodes, gpus)

    lost = Step("a node lost", "served on without it, restored", degraded, several, 3 * START_S)
    return (
        Step("two gangs", "beside each other, rolled under load", two_gangs, halves, 900),
        Step("kills", "each rank of a node", kills, steps.one_node, START_S),
        Step("sweep", "layouts, with all loads", sweep, steps.one_node, SWEEP_S),
        *((lost,) if nodes > 1 else ()),
    )


def halves(gpus: int) -> Shape:
    """A gang on each half of the GPUs."""
    return Shape(2, 2, gpus // 2)


def _model(stage: Stage) -> Wish:
    wish = Wish(REBLOCKED, 128)
    stage.lab.name_of_model = wish.model
    return wish


def two_gangs(stage: Stage, record: Record) -> Told:
    """Both started, all loads on both at the same time, then restarted gang by gang behind the router under load."""
    wish = _model(stage)
    said, figures = steps.both_up(stage, record)
    with with_what_was_seen(figures):
        try:
            names = [f"gang{number}" for number in range(stage.lab.gangs)]
            with ThreadPoolExecutor(len(names)) as pool:
                loads = list(pool.map(lambda name: _loads(stage, wish, name), names))
            figures |= dict(zip(names, loads, strict=True))
            rolled, figures["rolling"] = steps.rolling(stage, record)
            stage.continues(steps.ROUTER)
        finally:
            for name in names:
                keep_logs(stage, name, f"two-gangs-{name}")
    speeds = ", ".join(
        f"{name} {seen['loads']['128'].get('decode_tok_s', 0):.0f}" for name, seen in zip(names, loads, strict=True)
    )
    return f"{said}; tok/s of 128 requests to each: {speeds}; {rolled}", figures


def _loads(stage: Stage, wish: Wish, gang: str) -> dict[str, Any]:
    seen = stage.gang(gang)
    served = Served(stage, gang, wish.directory, stage.service(gang))
    layout = f"TP{len(stage.gpus_of(gang))}"
    return {"layout": layout, "start": seen["start"], "loads": served.loads(lambda _: None)}


def kills(stage: Stage, record: Record) -> Told:
    """Each rank in turn, every second one under load."""
    _model(stage)
    return steps.kills_of_one_gang(stage, record, KILL_S)


def sweep(stage: Stage, _: Record) -> Told:
    """Tensor parallel over all GPUs, and as two and as four stages, with the loads of every part."""
    _model(stage)
    stage.run("down", "--all", "--now")
    ranks, began = stage.count, time.monotonic()
    layouts = [f"tp{ranks}", f"pp2,tp{ranks // 2}", f"pp4,tp{ranks // 4}"]
    sizes = ("--load", ",".join(map(str, COUNTS)), "--input", str(INPUT), "--output", str(OUTPUT))
    chosen = [word for layout in layouts for word in ("--layout", layout)]
    page = str(stage.kept / "sweep.html")
    found = measuring.swept(stage, *chosen, *sizes, "--no-nccl", "--html", page, timeout=SWEEP_S)
    figures = {
        "took_s": round(time.monotonic() - began, 1),
        "best": found["best"],
        "candidates": list(map(measuring.points, found["candidates"])),
    }
    states = {candidate["id"]: candidate["state"] for candidate in found["candidates"]}
    if set(states) != set(layouts) or set(states.values()) != {"measured"}:
        raise Otherwise(f"not every candidate is measured: {states}", **figures)
    ways = ", ".join(f"{name} at {load}" for load, name in found["best"].items())
    return f"{len(states)} layouts in {figures['took_s']} s, the fastest: {ways}", figures


def degraded(stage: Stage, _: Record) -> Told:
    """A stage on each node; the leader loses its power, and the others go on."""
    _model(stage)
    return survive.degrade(stage, start_s=START_S)
