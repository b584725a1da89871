"""Steps that measure: the right text, the network, the engine's own benchmark beside its client by hand, the gate."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from tests.gpu.stage import MODELS, REBLOCKED, Otherwise, Stage, with_what_was_seen

from l40s_lab.node.files import VENVS
from orchestrator.bench.text import own_text
from orchestrator.engines import bench_client
from orchestrator.engines.registry import engine_of
from orchestrator.loading.profiles import load_stack
from orchestrator.model.profile import Load
from orchestrator.nettest.schedule import LARGE

LOAD = Load(input=128, output=128, prompts=128, rate=1000, concurrency=4)
"""Within the batches that the checkpoint's profile captures graphs for; some seconds."""
PREFILL = Load(input=4000, output=8, prompts=160, rate=1000, concurrency=4)
"""What the way between the GPUs decides: in decoding, seven all-reduces of a few KB do not show beside the rest."""
SPEED = "output_tok_s"
NOISE = 0.1
"""By which output tokens a second of one engine may differ where its own runs differ less; a stand-in's say nothing."""
SLOW, NOTHING_TO_COMPARE = 7, 2
SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
"""Two GPUs of one node speak through the loopback interface."""
_CLIENT_S = 150.0
_FLIPS, _FLIPPING = Path(__file__).parents[1] / "support/flipping/sitecustomize.py", "/opt/flipping"


def golden(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """Answers accepted, asked again, and asked again of an engine that was started anew."""
    stage.ready()
    began = time.monotonic()
    _wanted(stage, 0, "golden", "accept")
    accepted_s = round(time.monotonic() - began, 1)
    first = _check(stage)
    began = time.monotonic()
    _wanted(stage, 0, "restart")
    took = round(time.monotonic() - began, 1)
    again = _check(stage)
    figures = {"accept_s": accepted_s, "check_s": first["took_s"], "restart_s": took, "again": again["verdict"]}
    figures |= {"prompts": len(first["prompts"]), "varies": first["gangs"][0]["varies"]}
    if not first["prompts"] or (first["verdict"], again["verdict"]) != ("same", "same"):
        wrong = [one["id"] for found in (first, again) for one in found["prompts"] if not one["same"]]
        raise Otherwise(f"golden check says {first['verdict']}, then {again['verdict']}: {wrong}", **figures)
    said = f"{len(first['prompts'])} answers accepted in {accepted_s} s, the same in {first['took_s']} s"
    return f"{said}, and the same by an engine started anew", figures


ROUNDS, AT_ONCE = 20, 16
ROUND_S = 15.0


def golden_under_load(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """Accepted answers among others, all at once, again and again: the engine's own noise must not be called wrong."""
    stage.ready()
    _wanted(stage, 0, "golden", "accept")
    rounds: list[dict[str, Any]] = []
    while len(rounds) < (ROUNDS if stage.lab.real else 2) and stage.left_s > ROUND_S:
        rounds.append(_check(stage, "--requests", str(AT_ONCE)))
    batches = [found["gangs"][0]["in_batches"] for found in rounds]
    figures = {
        "rounds": len(rounds),
        "took_s": [found["took_s"] for found in rounds],
        "verdicts": [found["verdict"] for found in rounds],
        "at_once": batches[0]["sizes"] if batches else [],
        "alone": sum(len(found["prompts"]) for found in rounds),
        "among_others": sum(batch["answers"] for batch in batches),
        "differ": [difference for batch in batches for difference in batch["differ"]],
        "varies": rounds[0]["gangs"][0]["varies"] if rounds else [],
    }
    told = f"{figures['rounds']} rounds, {figures['alone']} answers alone and {figures['among_others']} among others"
    if not rounds or set(figures["verdicts"]) != {"same"}:
        raise Otherwise(f"{told}: {figures['verdicts']}", **figures)
    return f"{told}, all as accepted", figures


DRAFTED_S = 30.0
"""Until the engine has told how many tokens its last steps gave."""


def draft(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """The accepted answers from a gang that drafts by the checkpoint's own layer, alone and among others; `up` compares
    them as well."""
    stage.ready()
    _wanted(stage, 0, "golden", "accept")
    seen: dict[str, Any] = {}
    with with_what_was_seen(seen):
        try:
            stage.up("--replace", "--draft", "mtp")
        except Otherwise:
            seen["golden"] = _check(stage, "--requests", str(AT_ONCE))
            raise
    found = _check(stage, "--requests", str(AT_ONCE))
    until = time.monotonic() + (DRAFTED_S if stage.lab.real else 0.0)
    while (tokens := stage.gang()["serving"]["accept_length"]) is None and time.monotonic() < until:
        stage.continues(stage.service())
    batch = found["gangs"][0]["in_batches"]
    figures = {"verdict": found["verdict"], "alone": len(found["prompts"]), "among_others": batch["answers"]}
    figures |= {"differ": batch["differ"], "accept_length": tokens}
    _wanted(stage, 0, "down", "--now")
    if found["verdict"] != "same" or (stage.lab.real and tokens is None):
        raise Otherwise(f"golden check says {found['verdict']}, a step gives {tokens} tokens", **figures)
    return f"the accepted answers, {figures['among_others']} among others too; {tokens} tokens a step", figures


def _check(stage: Stage, *words: str) -> dict[str, Any]:
    began = time.monotonic()
    done = stage.run("golden", "check", *words, "--json", timeout=min(_CLIENT_S, stage.left_s - 5))
    if not done.stdout:
        raise Otherwise(f"golden check ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "took_s": round(time.monotonic() - began, 1)}


def bench(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """The product's run and the engine's client by hand. Speeds rise from run to run: ours first and last."""
    stage.ready()
    seen: dict[str, Any] = {"load": str(LOAD)}
    with with_what_was_seen(seen):
        first = benched(stage, LOAD)
        seen["runs_tok_s"] = [[round(run[SPEED], 1) for run in first["runs"]]]
        seen["by_hand_tok_s"] = by_hand = [_by_hand(stage) for _ in range(2)]
        second = benched(stage, LOAD)
    ours = [one["serving"][SPEED] for one in (first, second)]
    apart = round(mean(ours) / mean(by_hand) - 1, 3)
    noise = round(max(max(runs) / min(runs) - 1 for runs in (ours, by_hand)), 3)
    figures = {"load": str(LOAD), "bench_tok_s": ours, "by_hand_tok_s": by_hand, "apart": apart, "noise": noise}
    figures |= {"runs_tok_s": [[round(run[SPEED], 1) for run in one["runs"]] for one in (first, second)]}
    figures |= {"verdict": second["verdict"], "judged": [
        [one["name"], one["speed"], one["noise"], one["verdict"]] for one in second["figures"] if one["decides"]
    ]}  # fmt: skip
    if stage.lab.real and is_apart(apart, noise):
        stage.keep("bench")
        raise Otherwise(f"bench and the client by hand are {apart:+.1%} apart, runs of either {noise:.1%}", **figures)
    said = f"bench {mean(ours):.0f} tok/s, the engine's client by hand {mean(by_hand):.0f} tok/s: {apart:+.1%} apart"
    own = next(one for one in second["figures"] if one["name"] == SPEED)
    judged = f"{100 * own['speed']:.0f} ± {100 * own['noise']:.0f} % of its first, {second['verdict']!r}"
    return f"{said}; judged after {len(second['runs'])} runs: {judged}", figures


def is_apart(apart: float, noise: float) -> bool:
    """Whether two ways to measure one engine differ by more than runs of either do."""
    return abs(apart) > max(NOISE, noise)


SWEPT = (4, 32)
"""Requests at once; the larger is above the batches that the checkpoint's profile captures graphs for."""
SWEEP_S = 1000.0


def sweep(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """The layouts of all GPUs, then one with and without drafts, with and without graphs: what one call has measured,
    the next knows."""
    _wanted(stage, 0, "down", "--all")
    number = stage.count
    layouts = layouts_of(number)
    began = time.monotonic()
    page = stage.kept / "sweep.html"
    asked = {
        "layouts": [word for layout in layouts for word in ("--layout", layout)],
        "draft": ["--layout", layouts[0], "--vary", "draft=off,mtp"],
        "graphs": ["--layout", layouts[0], "--vary", "graphs=on,off", "--html", str(page)],
    }
    figures: dict[str, Any] = {}
    with with_what_was_seen(figures):
        for name, words in asked.items():
            found = swept(stage, *words, "--no-nccl")
            figures[f"after {name}"] = list(map(points, found["candidates"]))
    figures = {
        "took_s": round(time.monotonic() - began, 1),
        "best": found["best"],
        "candidates": list(map(points, found["candidates"])),
    }
    states = {candidate["id"]: candidate["state"] for candidate in found["candidates"]}
    varied = {f"{layouts[0]}+{setting}" for setting in ("graphs=off", "draft=mtp")}
    if set(states) != {*layouts, *varied} or set(states.values()) != {"measured"}:
        stage.keep("sweep")
        raise Otherwise(f"not every candidate is measured: {states}", **figures)
    if stage.gang()["state"] not in ("absent", "stopped"):
        raise Otherwise("a candidate still runs, and nothing ran before", **figures)
    ways = ", ".join(f"{name} at {load}" for load, name in found["best"].items())
    return f"{len(states)} candidates in {figures['took_s']} s, the fastest: {ways}", figures


def layouts_of(gpus: int) -> list[str]:
    """What so many can run: tensor parallel, pipelines, attention data parallel."""
    if gpus == 1:
        return ["tp1"]
    halves = [f"pp2,tp{gpus // 2}"] if gpus > 2 else []
    return [f"tp{gpus}", *halves, f"pp{gpus},tp1", f"tp{gpus},dp{gpus}"]


def swept(stage: Stage, *words: str, timeout: float = SWEEP_S) -> dict[str, Any]:
    """What `sweep` measured, with small requests where the words do not say others. Raises Otherwise where it ended
    badly."""
    loads = ",".join(map(str, SWEPT))
    asked = ("sweep", "--model", stage.lab.model, "--load", loads, "--input", "128", "--output", "64", "--json", *words)
    done = stage.run(*asked, timeout=min(timeout, stage.left_s - 5))
    if done.returncode or not done.stdout:
        stage.keep("sweep")
        raise Otherwise(f"sweep ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    found: dict[str, Any] = json.loads(done.stdout)["sweep"]
    return found


def points(candidate: dict[str, Any]) -> list[Any]:
    """A candidate of a sweep, with its loads: requests, tok/s, ms to the next token, runs, noise."""
    measured = [
        [point["requests"], round(point["tok_s"], 1), round(point["itl_ms"], 2), point["runs"], point["noise"]]
        for point in candidate["points"]
    ]
    return [candidate["id"], candidate["state"], candidate["cause"], candidate["start_s"], measured]


def nettest(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """Between the nodes, twice: what the first found is what the second has to find."""
    first, second = (_nettested(stage) for _ in range(2))
    figures = {"first": first, "second": second}
    if (first["exit"], second["exit"]) != (0, 0):
        raise Otherwise(f"nettest ended with {first['exit']}, then with {second['exit']}", **figures)
    return f"{first['transport']}: nothing slow, twice; {second['took_s']} s", figures


def tested_start(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """`up --nettest`: what the test measured is recorded as that of a test by itself, and the gang is started."""
    by_itself = _nettested(stage)
    try:
        stage.up("--nettest")
    except Otherwise as error:
        error.figures |= {"by_itself": by_itself, "tested": _told(newest_record(stage))}
        raise
    gang, record = stage.gang(), newest_record(stage)
    figures = {"by_itself": by_itself, "tested": _told(record), "start": gang["start"]}
    if (record["verdict"], gang["state"]) != ("ok", "ready"):
        raise Otherwise(f"the test says {record['verdict']}, the gang is {gang['state']}", **figures)
    stage.continues(stage.service(), **figures)
    return f"tested in {record['seconds']:.1f} s, nothing slow, then ready; the alphabet goes on", figures


def newest_record(stage: Stage) -> dict[str, Any]:
    """Of a network test, as this machine keeps it."""
    kept = Path(stage.lab.environment["XDG_STATE_HOME"]) / "l40s-deploy/nettest"
    newest = max(kept.rglob("*.json"), key=lambda file: file.stat().st_mtime)
    found: dict[str, Any] = json.loads(newest.read_text())
    return found


def nettest_slowed(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """All GPUs in one node; then NCCL is forced onto sockets, and nettest has to find it."""
    nets = [_nettested(stage)]
    with in_env(stage, SOCKETS):
        nets.append(_nettested(stage))
    figures: dict[str, Any] = {"nettest": nets}
    codes = [one["exit"] for one in nets]
    if codes != [0, SLOW]:
        raise Otherwise(f"nettest ended with {codes}, wanted 0 and {SLOW}", **figures)
    return f"healthy: nothing slow; on sockets nettest ends with {SLOW}: {nets[1]['findings'][0]}", figures


def nettest_verified(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """Data of two GPUs of one node compared: right, and with a bit of 64 MiB flipped behind the receiver's back."""
    node = stage.nodes_of("gang0")[0]
    stage.lab.on(node, f"mkdir -p {_FLIPPING} && cat >{_FLIPPING}/sitecustomize.py", _FLIPS.read_bytes())
    seen = [_nettested(stage, "--verify") for _ in range(2)]
    for start, end, place in ((0, 1, 0), (1, 0, LARGE - 1), (-1, 1, LARGE // 2)):
        flip = {"PYTHONPATH": _FLIPPING, "FLIP_BYTE": f"{start},{end},{place},{LARGE}"}
        with in_env(stage, flip):
            seen.append(_nettested(stage, "--verify"))
    figures = {"right": seen[:2], "flipped": seen[2:]}
    found = [[(one["from"][-5:], one["to"][-5:]) for one in run["verification"]["corrupt"]] for run in seen]
    wanted = [[], [], [("GPU 0", "GPU 1")], [("GPU 1", "GPU 0")], [("ranks", "GPU 1")]]
    if found != wanted or [one["exit"] for one in seen] != [0, 0, SLOW, SLOW, SLOW]:
        raise Otherwise(f"wrong data was found between {found}, wanted {wanted}", **figures)
    took = f"right twice, the comparison adds {max(one['verification']['seconds'] for one in seen[:2])} s"
    return f"{took}; a flipped bit of 64 MiB named in each direction and in a sum", figures


def slowed(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """The same for the gate of the benchmark."""
    stage.ready()
    benches = [benched(stage, PREFILL, "--gate"), benched(stage, PREFILL, "--gate")]
    with in_env(stage, SOCKETS):
        stage.up("--replace")
        benches.append(benched(stage, PREFILL, "--gate"))
    speeds = [round(one["serving"]["total_tok_s"]) for one in benches]
    figures: dict[str, Any] = {"load": str(PREFILL), "total_tok_s": speeds}
    figures |= {"bench": [one["verdict"] for one in benches], "causes": benches[-1]["causes"]}
    codes = [one["exit"] for one in benches]
    if codes != [NOTHING_TO_COMPARE, 0, SLOW]:
        raise Otherwise(f"bench --gate ended with {codes}", **figures)
    return f"healthy: {speeds[1]} tok/s; on sockets {speeds[2]} tok/s, and `bench --gate` ends with {SLOW}", figures


@contextmanager
def in_env(stage: Stage, env: dict[str, str]) -> Iterator[None]:
    """With these variables in every node's `l40s_env`."""
    stage.lab.env = dict(env)
    stage.lab.write_inventory()
    try:
        yield
    finally:
        stage.lab.env = {}
        stage.lab.write_inventory()


def _nettested(stage: Stage, *words: str) -> dict[str, Any]:
    """With the gang down; exit code and what counts of the document."""
    _wanted(stage, 0, "down")
    began = time.monotonic()
    done = stage.run("nettest", "--model", stage.lab.model, "--json", *words, timeout=min(_CLIENT_S, stage.left_s - 5))
    took = round(time.monotonic() - began, 1)
    if done.returncode not in (0, SLOW):
        raise Otherwise(f"nettest ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    return {"exit": done.returncode, "took_s": took, **_told(json.loads(done.stdout)["gangs"][0])}


def _told(told: dict[str, Any]) -> dict[str, Any]:
    """What counts of a gang's record."""
    return {
        "verdict": told["verdict"],
        "verification": told["verification"],
        "transport": "; ".join(sorted(set(_texts(told["transport"])))),
        "all_reduce_us": {f"{one['kind']}, {one['bytes']}": one["measured_us"] for one in told["tests"]},
        "gbps": [[one["from"], one["to"], one["measured_gbps"], one["expected_gbps"]] for one in told["links"]],
        "odd": told["odd"],
        "findings": [f"{one['id']}: {one['title']}" for one in told["findings"]],
        "captured": sum(one["captured"] for one in told["tests"]),
        "uncaptured": [f"{one['kind']}, {one['bytes']}" for one in told["tests"] if one["uncaptured"]],
        "seconds": told["seconds"],
        "overhead_s": told["overhead_s"],
    }


def _texts(value: Any) -> list[str]:
    return [str(one) for one in value.values()] if isinstance(value, dict) else [str(value)]


def benched(stage: Stage, load: Load, *words: str) -> dict[str, Any]:
    """The document, and its exit code: 0, or with --gate 2 and 7."""
    asked = [word for name, value in asdict(load).items() for word in (f"--{name}", str(value))]
    done = stage.run("bench", *asked, "--json", *words, timeout=min(_CLIENT_S, stage.left_s - 5))
    if done.returncode not in (0, NOTHING_TO_COMPARE, SLOW) or not done.stdout:
        raise Otherwise(f"bench ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = {**json.loads(done.stdout), "exit": done.returncode}
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
        "d=$(mktemp -d) && cd $d && cat >data.json && export TMPDIR=$d CUDA_VISIBLE_DEVICES= HF_HUB_OFFLINE=1\n"
        f"{client} >log 2>&1; cat result.jsonl 2>/dev/null || tail -n 5 log; rm -r $d"
    )
    told = stage.lab.on(leader, script, own_text().encode(), timeout=_CLIENT_S)
    if bench_client.BUSY.search(told):
        return _by_hand(stage)
    try:
        return bench_client.read(told).figures[SPEED]
    except ValueError:
        raise Otherwise(f"the client by hand wrote no result: {told[-300:]}") from None
