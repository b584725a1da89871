"""Steps that measure: the right text, the engine's own benchmark beside its client run by hand, and the gate."""

from __future__ import annotations

import json
import shlex
import time
from statistics import mean
from typing import Any

from tests.gpu.stage import MODELS, REBLOCKED, Otherwise, Stage

from orchestrator.bench.text import own_text
from orchestrator.engines import bench_client
from orchestrator.engines.registry import engine_of
from orchestrator.lab.node.files import VENVS
from orchestrator.loading.stacks import load_stack
from orchestrator.model.benchmark import Load

LOAD = Load(input=128, output=128, prompts=64, rate=1000, concurrency=4)
"""Within the batches that the checkpoint's profile captures graphs for; some seconds."""
WORDS = [word for name in ("input", "output", "prompts", "rate", "concurrency")
         for word in (f"--{name}", str(getattr(LOAD, name)))]  # fmt: skip
NOISE = 0.1
"""By which output tokens a second of one engine may differ; a stand-in's say nothing."""
SLOW, NOTHING_TO_COMPARE = 7, 2
SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
"""Two GPUs of one node speak through the loopback interface."""
_CLIENT_S = 150.0


def golden(stage: Stage) -> tuple[str, dict[str, Any]]:
    """Answers accepted, asked again, and asked again of an engine that was started anew."""
    stage.ready()
    began = time.monotonic()
    _wanted(stage, 0, "golden", "accept")
    accepted_s = round(time.monotonic() - began, 1)
    first = _check(stage)
    took = stage.up("--replace")
    again = _check(stage)
    figures = {"accept_s": accepted_s, "check_s": first["took_s"], "up_s": round(took, 1), "again": again["verdict"]}
    figures |= {"prompts": len(first["prompts"]), "varies": first["gangs"][0]["varies"]}
    if not first["prompts"] or (first["verdict"], again["verdict"]) != ("same", "same"):
        wrong = [one["id"] for found in (first, again) for one in found["prompts"] if not one["same"]]
        raise Otherwise(f"golden check says {first['verdict']}, then {again['verdict']}: {wrong}", **figures)
    said = f"{len(first['prompts'])} answers accepted in {accepted_s} s, the same in {first['took_s']} s"
    return f"{said}, and the same by an engine started anew", figures


def _check(stage: Stage) -> dict[str, Any]:
    began = time.monotonic()
    found: dict[str, Any] = stage.lab.json("golden", "check")
    return {**found, "took_s": round(time.monotonic() - began, 1)}


def bench(stage: Stage) -> tuple[str, dict[str, Any]]:
    """The product's run and the engine's client by hand, in turn, on one engine."""
    stage.ready()
    ours, by_hand = list[float](), list[float]()
    for _ in range(2):
        ours.append(_benched(stage)["serving"]["output_tok_s"])
        by_hand.append(_by_hand(stage))
    apart = round(mean(ours) / mean(by_hand) - 1, 3)
    noise = round(max(max(runs) / min(runs) - 1 for runs in (ours, by_hand)), 3)
    figures = {"load": str(LOAD), "bench_tok_s": ours, "by_hand_tok_s": by_hand, "apart": apart, "noise": noise}
    if stage.lab.real and abs(apart) > NOISE:
        raise Otherwise(f"bench and the client by hand are {apart:+.1%} apart, runs of either {noise:.1%}", **figures)
    said = f"bench {mean(ours):.0f} tok/s, the engine's client by hand {mean(by_hand):.0f} tok/s: {apart:+.1%} apart"
    return f"{said}, two runs of either up to {noise:.1%}", figures


def gate(stage: Stage) -> tuple[str, dict[str, Any]]:
    """All GPUs in one node; then NCCL is forced onto sockets."""
    stage.ready()
    first = _benched(stage, "--gate", code=NOTHING_TO_COMPARE)
    healthy = _benched(stage, "--gate", code=0)
    stage.lab.env = dict(SOCKETS)
    try:
        stage.lab.write_inventory()
        stage.up("--replace")
        slow = _benched(stage, "--gate", code=SLOW)
    finally:
        stage.lab.env = {}
        stage.lab.write_inventory()
    speeds = [round(one["serving"]["output_tok_s"], 1) for one in (first, healthy, slow)]
    figures = {"output_tok_s": speeds, "verdicts": [one["verdict"] for one in (first, healthy, slow)]}
    figures["causes"] = slow["causes"]
    said = f"{speeds[0]} tok/s recorded, {speeds[1]} judged as expected; through sockets {speeds[2]}: {slow['verdict']}"
    return f"{said}, `bench --gate` ends with {SLOW}", figures


def _benched(stage: Stage, *words: str, code: int = 0) -> dict[str, Any]:
    done = _wanted(stage, code, "bench", *WORDS, "--json", *words)
    found: dict[str, Any] = json.loads(done)
    return found


def _wanted(stage: Stage, code: int, *words: str) -> str:
    """What a command wrote. Raises Otherwise where it ends with another code."""
    done = stage.run(*words, timeout=min(_CLIENT_S, stage.left_s - 5))
    if done.returncode != code:
        said = " / ".join((done.stdout + done.stderr).split("\n"))[-300:]
        raise Otherwise(f"{' '.join(words[:2])} ended with {done.returncode}, not {code}: {said}")
    return done.stdout


def _by_hand(stage: Stage) -> float:
    """Output tokens a second of the engine's own client, on the leader, as somebody would start it in a shell."""
    gang, leader = stage.gang(), stage.nodes_of("gang0")[0]
    stack = load_stack(stage.lab.lab_inventory()["all"]["vars"]["l40s_stack"])
    words = bench_client.command(
        engine_of(stack), LOAD, url=gang["service"]["url"], model=gang["model"], tokenizer=str(MODELS / REBLOCKED)
    )
    paths = {bench_client.DATASET: "data.json", bench_client.RESULT: "result.jsonl"}
    client = shlex.join([f"{VENVS}/{stack.name}/bin/python3", "-m", *(paths.get(word, word) for word in words)])
    script = (
        "d=$(mktemp -d) && cd $d && cat >data.json && export CUDA_VISIBLE_DEVICES= HF_HUB_OFFLINE=1\n"
        f"{client} >log 2>&1; cat result.jsonl 2>/dev/null || tail -n 5 log; rm -r $d"
    )
    told = stage.lab.on(leader, script, own_text().encode(), timeout=_CLIENT_S)
    try:
        return bench_client.read(told).figures["output_tok_s"]
    except ValueError:
        raise Otherwise(f"the client by hand wrote no result: {told[-300:]}") from None
