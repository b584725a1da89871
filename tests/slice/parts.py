"""The parts of `make slice`: what is started and measured, and what makes each of them fail."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.gpu import tuned
from tests.gpu.stage import MODELS, Otherwise, Shape, Stage, engine_python, with_what_was_seen
from tests.gpu.steps import Record, Step, kill, played
from tests.slice import eight, engine_log, judging, posed
from tests.slice.lab import (
    ALONE,
    ALONE_INT8,
    GRAPHS,
    ORIGINAL,
    REBLOCKED,
    Served,
    Wish,
    begin,
    keep_logs,
    logs,
    planned,
    profile_of,
)
from tests.slice.playing import (
    L40S_FLAGS,
    L40S_FREE_GIB,
    Told,
    in_ram,
    make,
    profiles,
    right,
    sentence,
    there,
    watched,
    wrong_with,
)
from tests.slice.watching import Ballast
from tests.support.preloaded import L40S_DEPLOY

LONG = 100_000
MIDDLE = 2_000
FIRST_BATCHES = "1,32,128"
NO_PREFILL_GRAPHS = ("--cuda-graph-backend-prefill", "disabled")
CANDIDATES = 10
TUNED_S = 300.0
"""Of a start with tuned files, and its loads."""
APART = {
    "formats": {
        "INT8": Wish(ALONE_INT8, 128),
        "FP8, Triton attention": Wish(ALONE, 128),
    },
    "attention": {
        "FP8, FlashInfer attention": Wish(ALONE, 128, flags=("--attention-backend", "flashinfer")),
        "FP8, no prefill graphs": Wish(ALONE, 128, flags=NO_PREFILL_GRAPHS),
    },
}
"""What one rank alone is started with, one beside the other where there are so many GPUs: no all-reduce hides what
differs."""


def made(stage: Stage, _: Record) -> Told:
    """The files of 128x128, and re-blocked by the product."""
    figures: dict[str, Any] = {"in RAM": in_ram(MODELS, stage.count)}
    where = "RAM" if figures["in RAM"] else "disk"
    if there(REBLOCKED):
        return f"on {where}, from before", figures
    figures[ORIGINAL] = make(stage, ORIGINAL)
    began = time.monotonic()
    words = ["checkpoint", "reblock", str(MODELS / ORIGINAL), str(MODELS / REBLOCKED), "--block", "64"]
    done = subprocess.run([*L40S_DEPLOY, *words, "--jobs", "32"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Otherwise(f"checkpoint reblock ended with {done.returncode}: {done.stderr[-400:]}", **figures)
    figures["reblock_s"] = round(time.monotonic() - began, 1)
    shutil.rmtree(MODELS / ORIGINAL)
    seen = figures[ORIGINAL]
    said = f"{seen['tensors']:,} tensors, {seen['bytes'] / 1e9:.1f} GB on {where} in {seen['seconds']:.0f} s"
    return f"{said}; re-blocked in {figures['reblock_s']:.0f} s", figures


def _reblocked(stage: Stage) -> str:
    """The model in blocks of 64 whose ranks here have the shapes of one of 32."""
    return REBLOCKED if stage.count > 1 else ALONE


def with_an_l40s_memory(graphs: int, directory: str = REBLOCKED, name: str = "") -> Callable[[Stage, Record], Told]:
    """Every GPU of the lab in one gang, each with an L40S's memory: parts are the same but for their graphs and the
    path between the ranks. In one node there is a long prompt with the fewest graphs; with most, a rank is killed.

    name: of the files that are kept
    """

    def play(stage: Stage, record: Record) -> Told:
        if directory != REBLOCKED and stage.lab.real:
            make(stage, directory)
        several = f" on {stage.lab.nodes} nodes" if stage.lab.nodes > 1 else " on one node"
        figures: dict[str, Any] = {"graphs": graphs, "layout": f"TP{stage.count}{several}"}
        ballast = Ballast(engine_python(real=True), L40S_FREE_GIB) if stage.lab.real else None
        idle = stage.gpus.idle
        try:
            with watched(stage, figures) as watch:
                served = begin(stage, Wish(directory, graphs, flags=L40S_FLAGS), figures, ballast)
                figures["loads"] = served.loads(watch.mark)
                if graphs == GRAPHS[0] and stage.lab.nodes == 1:
                    watch.mark(f"{LONG} tokens")
                    figures["long"] = served.asked(1, LONG, 32)
                watch.mark("profiles")
                figures["profiles"] = profiles(served, (4, 128))
                wrong = wrong_with(stage, served, figures)
            if graphs == GRAPHS[-1]:
                record(kill(stage, "gang0", stage.count - 1, load=True))
        finally:
            keep_logs(stage, "gang0", f"{name or 'one-node'}-{graphs}-end")
            stage.run("down", "--now")
            stage.gpus.idle = idle
            if ballast is not None:
                ballast.end()
        return right(wrong, figures)

    return play


def killed_and_restarted(stage: Stage, record: Record) -> Told:
    """A rank killed under load, named; then the gang started again as a whole."""
    stage.lab.name_of_model = profile_of(REBLOCKED, 128)
    result = kill(stage, "gang0", len(stage.gpus_of("gang0")) - 2, load=True)
    record(result)
    began = time.monotonic()
    done = stage.run("restart", timeout=stage.left_s - 10)
    figures = {"restart_s": round(time.monotonic() - began, 1), "start": stage.gang()["start"]}
    if done.returncode or stage.gang()["state"] != "ready":
        raise Otherwise(f"restart ended with {done.returncode}: {done.stderr.strip()[-300:]}", **figures)
    stage.continues(stage.service(), **figures)
    if result.outcome != "as it should":
        raise Otherwise(f"the kill was not named: {result.said}", **figures)
    return f"{result.said}; ready again {figures['restart_s']:.0f} s after `restart`", figures


def stack_checked(stage: Stage, _: Record) -> Told:
    """The engine's kernels at the slice's shapes."""
    stage.run("down", "--now")
    found = tuned.checked(stage, stage.lab.profile_of(profile_of(_reblocked(stage), 128)))
    wrong = {name: said for name, said in found["kernels"].items() if said[0] != "right"}
    if wrong or found["exit"]:
        raise Otherwise(f"not all kernels are right: {wrong}", **found)
    return f"{len(found['kernels'])} kernels right, {found['took_s']:.0f} s", found


def ranks_apart(variants: Mapping[str, Wish]) -> Callable[[Stage, Record], Told]:
    """One rank's shapes on each GPU, starts side by side (one after the other on one GPU): only kernels differ."""

    def play(stage: Stage, _: Record) -> Told:
        stage.run("down", "--all", "--now")
        gangs = min(len(variants), stage.count)
        for directory in dict.fromkeys(wish.directory for wish in variants.values() if stage.lab.real):
            make(stage, directory)
        with ThreadPoolExecutor(gangs) as pool:
            running = {
                name: pool.submit(_alone, stage, replace(wish, gang=f"gang{place % gangs}"))
                for place, (name, wish) in enumerate(variants.items())
            }
        figures = {name: done.result() for name, done in running.items()}
        stage.run("down", "--all", "--now")
        return _speeds_of_128(figures)

    return play


def _speeds_of_128(figures: dict[str, Any]) -> Told:
    failed = {name: seen["failed"] for name, seen in figures.items() if "failed" in seen}
    speeds = ", ".join(
        f"{name} {seen['loads']['128'].get('decode_tok_s', 0):.0f}" for name, seen in figures.items() if "loads" in seen
    )
    if failed:
        raise Otherwise(f"tok/s of 128 requests: {speeds}; failed: {failed}", **figures)
    return f"tok/s of 128 requests: {speeds}", figures


def _alone(stage: Stage, wish: Wish) -> dict[str, Any]:
    """What was seen until its end; `failed` where it went otherwise."""
    figures: dict[str, Any] = {"command": " ".join([wish.model, *wish.flags])}
    try:
        _started_alone(stage, wish, figures)
        served = Served.of(stage, wish)
        figures["start"] = stage.gang(wish.gang)["start"]
        stage.continues(served.url)
        figures["loads"] = served.loads(_unseen, (1, 32, 128))
        served.asked(4, MIDDLE, 2)
        figures[f"{MIDDLE} tokens"] = served.asked(4, MIDDLE, 64)
        figures[f"{LONG} tokens"] = served.asked(1, LONG, 64)
    except (Otherwise, OSError) as error:
        figures["failed"] = str(error)
    finally:
        keep_logs(stage, wish.gang, f"apart-{wish.gang}")
    return figures


def _started_alone(stage: Stage, wish: Wish, figures: dict[str, Any]) -> None:
    stage.lab.name_of_model = wish.model
    plan, _ = planned(stage, wish)
    began = time.monotonic()
    done = stage.run("up", *wish.command(stage, "--replace"), timeout=min(400.0, stage.left_s - 15))
    figures["up_s"] = round(time.monotonic() - began, 1)
    figures["engine"] = memory = engine_log.memory(logs(stage, wish.gang).values())
    if done.returncode:
        raise Otherwise(f"up ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
    if plan is not None:
        figures |= {"plan": plan.figures(), "plan_above_engine": judging.compared(plan, memory)}


def _unseen(_: str) -> None:
    """Four ranks side by side have no memory of their own to watch."""


def tuned_apart(stage: Stage, _: Record) -> Told:
    """One rank alone with an L40S's memory, served; then its shapes tuned, and served so where there is time."""
    gang, figures = "gang0", dict[str, Any]()
    stage.run("down", gang, "--now")
    if stage.lab.real:
        make(stage, ALONE)
    with with_what_was_seen(figures):
        seen = figures["as it is"] = dict[str, Any](graphs=128, layout="TP1")
        wrong = _one_rank(stage, gang, seen)
        pack, figures["tuned"] = _tuned_pack(stage, ALONE, gang)
        if stage.left_s > TUNED_S:
            wrong += _with_pack(stage, Wish(ALONE, 128, flags=L40S_FLAGS, gang=gang), pack, figures["tuned"])
    said = "; then tuned: ".join(sentence(seen) for seen in figures.values() if "loads" in seen)
    said += f"; {len(figures['tuned']['before_and_after_us'])} shapes tuned in {figures['tuned']['seconds']:.0f} s"
    if wrong:
        raise Otherwise(f"{'; '.join(wrong)}; {said}", **figures)
    return said, figures


def _one_rank(stage: Stage, gang: str, figures: dict[str, Any]) -> list[str]:
    """In words, what is wrong."""
    ballast, idle = None, stage.gpus.idle
    if stage.lab.real:
        ballast = Ballast(engine_python(real=True), L40S_FREE_GIB, stage.gpus_of(gang))
    try:
        with watched(stage, figures, gang) as watch:
            served = begin(stage, Wish(ALONE, 128, flags=L40S_FLAGS, gang=gang), figures, ballast)
            figures["loads"] = served.loads(watch.mark)
            figures["profiles"] = profiles(served, (4, 128))
            return wrong_with(stage, served, figures)
    finally:
        keep_logs(stage, gang, "one-rank-end")
        stage.run("down", gang, "--now")
        stage.gpus.idle = idle
        if ballast is not None:
            ballast.end()


def tuned_slice(stage: Stage, _: Record) -> Told:
    """The slice's shapes tuned, and served with what came out."""
    stage.run("down", "--now")
    pack, figures = _tuned_pack(stage, _reblocked(stage), "gang0")
    return right(_with_pack(stage, Wish(_reblocked(stage), 128), pack, figures), figures)


def _tuned_pack(stage: Stage, directory: str, gang: str) -> tuple[Path, dict[str, Any]]:
    pack, figures = stage.lab.folder / "slice.tuned.tar.gz", dict[str, Any]()
    words = tuned.run(pack, stage.lab.profile_of(profile_of(directory, 128)), batches=FIRST_BATCHES,
                      candidates=CANDIDATES)  # fmt: skip
    done = stage.run(*words, "--gang", gang, "--json", timeout=min(260.0, stage.left_s - 10))
    if done.returncode:
        raise Otherwise(f"tuning run ended with {done.returncode}: {(done.stdout + done.stderr)[-400:]}")
    document = json.loads(done.stdout)
    figures["seconds"] = document["seconds"]
    figures["before_and_after_us"] = {
        f"{job['file'].partition(',device_name')[0]} at {job['batch']}": [job["before_us"], job["us"]]
        for job in document["jobs"]
    }
    return pack, figures


def _with_pack(stage: Stage, wish: Wish, pack: Path, figures: dict[str, Any]) -> list[str]:
    """Served with what was tuned: in words, what is wrong."""
    pushed = stage.run("tuning", "push", str(pack))
    if pushed.returncode:
        raise Otherwise(f"tuning push ended with {pushed.returncode}: {pushed.stderr.strip()[-300:]}", **figures)
    try:
        with watched(stage, figures, wish.gang) as watch:
            served = begin(stage, wish, figures)
            figures["read"] = engine_log.tuned_files(logs(stage, wish.gang).values())
            figures["loads"] = served.loads(watch.mark)
            wrong = wrong_with(stage, served, figures)
    finally:
        stage.run("down", wish.gang, "--now")
        stage.run("tuning", "push", "--remove")
    return wrong if figures["read"] else [*wrong, "the engine does not say that it reads a tuned file"]


def beside(*steps: Step) -> Callable[[Stage, Record], Told]:
    """Each in a thread of its own, on a gang of its own; each is a result of its own."""

    def play(stage: Stage, record: Record) -> Told:
        def one(step: Step) -> str:
            result = played(step.name, lambda: step.play(stage, record))
            record(result)
            return result.outcome

        with ThreadPoolExecutor(len(steps)) as pool:
            outcomes = dict(zip([step.name for step in steps], pool.map(one, steps), strict=True))
        said = ", ".join(f"{name}: {outcome}" for name, outcome in outcomes.items())
        if set(outcomes.values()) != {"as it should"}:
            raise Otherwise(said)
        return said, {}

    return play


def layouts(stage: Stage, _: Record) -> Told:
    """Pipeline parallel over two halves of a node, and attention data parallel, beside tensor parallel."""
    ranks = len(stage.gpus_of("gang0"))
    ways = {
        f"PP2 x TP{ranks // 2}": ("--tp", str(ranks // 2), "--pp", "2"),
        f"attention DP {ranks}": ("--attn-dp", str(ranks)),
    }
    figures: dict[str, Any] = {}
    wrong: list[str] = []
    for name, words in ways.items():
        seen = figures[name] = dict[str, Any]()
        with watched(stage, seen) as watch:
            served = begin(stage, Wish(REBLOCKED, 128, words=words), seen)
            seen["loads"] = served.loads(watch.mark)
            wrong += [f"{name}: {words}" for words in wrong_with(stage, served, seen)]
    said = "; ".join(f"{name}: {sentence(seen)}" for name, seen in figures.items())
    if wrong:
        raise Otherwise(f"{'; '.join(wrong)}; {said}", **figures)
    return said, figures


def one_node(gpus: int) -> Shape:
    """Every GPU in one node."""
    return Shape(1, 1, gpus)


def apart(gpus: int) -> Shape:
    """Two gangs of a GPU each, or one."""
    gangs = min(2, gpus)
    return Shape(gangs, gangs, 1)


def parts(nodes: int, gpus: int) -> tuple[Step, ...]:
    """Of so many nodes with so many GPUs each; all of them in one node first, for one node's speed and memory.

    With one GPU, a rank alone: its memory, kernels and starts, and no all-reduce.
    """
    if nodes * gpus == 1:
        return _of_one_rank()

    def several(_: int) -> Shape:
        return Shape(1, nodes, gpus)

    def between(graphs: int) -> Callable[[Stage, Record], Told]:
        return with_an_l40s_memory(graphs, name="several-nodes")

    on_nodes = (
        Step("several nodes, graphs to 32", "over TCP", between(32), several, 240, gpus=2),
        Step("several nodes, graphs to 128", "over TCP", between(128), several, 200, gpus=2),
        Step("kill and restart", "a rank under load", killed_and_restarted, several, 150, gpus=2),
    )
    return (
        Step("model", "made and re-blocked", made, None, 60, alone=True),
        Step("one node, graphs to 32", "with an L40S's memory", with_an_l40s_memory(32), one_node, 300, gpus=2),
        Step("one node, graphs to 128", "the same, larger graphs", with_an_l40s_memory(128), one_node, 250, gpus=2),
        *(on_nodes if nodes > 1 else ()),
        *_kernels(),
        Step("layouts", "pipeline and attention data parallel", layouts, one_node, 400, gpus=4),
        *eight.parts(nodes, gpus),
    )


def _of_one_rank() -> tuple[Step, ...]:
    return (
        Step("one rank, graphs to 32", "with an L40S's memory", with_an_l40s_memory(32, ALONE), one_node, 300),
        Step("one rank, graphs to 128", "the same, larger graphs", with_an_l40s_memory(128, ALONE), one_node, 250),
        *_kernels(),
    )


POSING = Step("one rank as an L40S", "on a GPU that says so", posed.as_an_l40s, apart, 250)
TUNED_APART = Step("one rank, tuned", "served, then tuned", tuned_apart, apart, 260, alone=True)


def _kernels() -> tuple[Step, ...]:
    """What needs no all-reduce."""
    return (
        Step("stack check", "kernels at these shapes", stack_checked, one_node, 60, alone=True),
        *(
            Step(f"ranks apart, {title}", ", ".join(variants), ranks_apart(variants), apart, 220)
            for title, variants in APART.items()
        ),
        Step("tuning", "before and after", tuned_slice, one_node, 260, alone=True),
        POSING,
        TUNED_APART,
        Step("posing beside tuning", "a GPU each", beside(POSING, TUNED_APART), apart, 300, gpus=2),
    )
