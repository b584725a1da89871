"""`tuning run` on GPUs: killed and resumed, each tile proved, and what the engine then reads. `stack check`, too."""

from __future__ import annotations

import json
import math
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from tests.gpu import checkpoint
from tests.gpu.measuring import SLOW, in_env
from tests.gpu.stage import MODELS, Otherwise, Stage, engine_python, find_node_in, start, with_what_was_seen

from l40s_lab.processes import wait_until
from orchestrator.loading.profiles import load_profile
from orchestrator.loading.resources import template
from orchestrator.protocol.message import parsed
from orchestrator.tuning.messages import TuneJob, TuneLine, TunersOrder

SHARE = "share-of-v3"
PARTS = 32
"""GPUs that DeepSeek-V3 is cut for: a share of it has the shapes of one of them."""
LINES = ("Using MoE kernel config from", "Using configuration from")
"""What SGLang says of a tuned file that it reads: experts, block GEMM."""
_TUNERS = "pgrep -af '/proc/self/f[d]/' || true"


def tuning(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """The tiny model's shapes, and those of one GPU of 32 that serve DeepSeek-V3."""
    figures: dict[str, Any] = {"wrong tiles": wrong_tiles()}
    stage.run("down", "--now")
    tiny, share = (stage.lab.folder / f"{name}.tuned.tar.gz" for name in ("tiny", "share"))
    words = run(tiny, stage.lab.model, batches="1,64", candidates=8)
    figures["kept before the kill"], figures["tuners gone s"] = killed(stage, words)
    figures["tiny"] = _told(_document(stage, words), least_before=1)
    figures["share of V3"] = _told(_document(stage, run(share, _share(stage), batches="1,128", candidates=10)))
    pushed = stage.run("tuning", "push", str(tiny))
    if pushed.returncode:
        raise Otherwise(f"tuning push ended with {pushed.returncode}: {pushed.stderr.strip()[-300:]}", **figures)
    try:
        figures["up_s"] = round(stage.up("--replace"), 1)
        figures["read"] = read = {line: _read(stage, line) for line in LINES}
        stage.continues(stage.service(), **figures)
    finally:
        stage.run("down", "--now")
        stage.run("tuning", "push", "--remove")
    if not all(read.values()):
        raise Otherwise(f"the engine does not say that it reads the tuned files: {read}", **figures)
    return _sentence(figures), figures


def _sentence(figures: dict[str, Any]) -> str:
    tiny, share = figures["tiny"], figures["share of V3"]
    faster = f"{tiny['faster']} of {tiny['jobs']} jobs of the tiny model and {share['faster']} of {share['jobs']}"
    return (
        f"{faster} of a 32nd of DeepSeek-V3 got faster (x{tiny['gain']} and x{share['gain']} on average), none slower;"
        f" killed after {figures['kept before the kill']} results and resumed; wrong tiles refused; the engine reads"
        f" {sum(figures['read'].values())} tuned files"
    )


def run(pack: Path, model: str, *, batches: str, candidates: int) -> list[str]:
    """The command."""
    return ["tuning", "run", str(pack), "--model", model, "--batch", batches, "--candidates", str(candidates)]


def killed(stage: Stage, words: list[str]) -> tuple[int, float]:
    """(results kept when the controller was killed, seconds until no tuner ran on any node)."""
    first = start(stage.lab, *words)
    wait_until(lambda: bool(_kept(stage)) or first.poll() is not None, deadline_s=min(240.0, stage.left_s), step_s=0.2)
    if first.poll() is not None or not _kept(stage):
        first.kill()
        raise Otherwise(f"tuning run ended with {first.poll()} before a result: {_log(stage)}")
    first.send_signal(signal.SIGKILL)
    first.wait()
    began = time.monotonic()
    if not wait_until(lambda: not _tuners(stage), deadline_s=30.0, step_s=0.2):
        raise Otherwise(f"tuners outlive their controller: {_tuners(stage)}")
    gone_s = round(time.monotonic() - began, 1)
    stage.run("lock", "--release", "--force")
    return len(_kept(stage)), gone_s


def _kept(stage: Stage) -> set[str]:
    files = (stage.lab.folder / "state").rglob("tuning/*.jsonl")
    lines = [line for file in files for line in file.read_text().splitlines() if line.endswith("}")]
    return {json.loads(line)["job"] for line in lines}


def _log(stage: Stage) -> str:
    return (stage.lab.folder / "tuning.log").read_text()[-400:]


def _tuners(stage: Stage) -> str:
    return "".join(stage.lab.on(node, _TUNERS) for node in stage.lab.hosts()).strip()


def _document(stage: Stage, words: list[str]) -> dict[str, Any]:
    done = stage.run(*words, "--json", timeout=min(300.0, stage.left_s - 5))
    if done.returncode:
        raise Otherwise(f"tuning run ended with {done.returncode}: {done.stdout[-600:]} {done.stderr.strip()[-300:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _told(document: dict[str, Any], least_before: int = 0) -> dict[str, Any]:
    """What counts of the document. Raises Otherwise where something is slower, unproved or forgotten."""
    jobs = document["jobs"]
    timed = [job for job in jobs if job["before_us"]]
    gain = math.exp(sum(math.log(job["before_us"] / job["us"]) for job in timed) / max(1, len(timed)))
    figures = {
        "jobs": len(jobs),
        "faster": sum(job["us"] < job["before_us"] for job in timed),
        "gain": round(gain, 2),
        "largest product error": max(job["product_error"] for job in jobs),
        "refused": _sum(job["refused"] for job in jobs),
        "before_and_after_us": {f"{job['file']} at {job['batch']}": [job["before_us"], job["us"]] for job in jobs},
        "nodes": sorted({job["node"] for job in jobs}),
        "seconds": document["seconds"],
        "from_before": document["from_before"],
    }
    if document["made"] != "measured" or document["from_before"] < least_before:
        raise Otherwise(f"made: {document['made']}, {document['from_before']} results from before", **figures)
    if slower := [job["file"] for job in timed if job["us"] > job["before_us"]]:
        raise Otherwise(f"slower than before: {slower}", **figures)
    return figures


def _sum(counts: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in counts:
        for name, number in one.items():
            found[name] = found.get(name, 0) + number
    return found


def wrong_tiles() -> dict[str, str]:
    """Job -> why no tile is kept, where each candidate takes one scale across two; a right one beside them is kept."""
    jobs = [
        TuneJob(id="linear", kernel="linear", n=512, k=1024, dtype="fp8_w8a8", block=(64, 64), batch=8, space="wrong"),
        TuneJob(id="moe", kernel="moe", e=16, n=256, k=1024, top_k=4, dtype="fp8_w8a8", block=(64, 64), batch=8,
                space="wrong"),
        TuneJob(id="right", kernel="linear", n=512, k=1024, dtype="fp8_w8a8", block=(64, 64), batch=8, space="right"),
    ]  # fmt: skip
    order = TunersOrder(device="cuda", gpus=1, spaces={"wrong": (_tile(128),), "right": (_tile(64),)}, jobs=tuple(jobs))
    said = subprocess.run(
        [engine_python(real=True), "-c", template("tune.py"), "1", "/dev/stdin"],
        input=json.dumps(order.as_json()),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [line for raw in said.stdout.splitlines() if isinstance(line := TuneLine.read(parsed(raw)), TuneLine)]
    failed = {line.failed: line.what for line in lines if line.failed}
    kept = [line.job for line in lines if line.job]
    wrong = [name for name in ("linear", "moe") if "of the fastest are wrong" not in failed.get(name, "")]
    if wrong or kept != ["right"]:
        raise Otherwise(f"kept {kept}, failed {failed}: {said.stderr.strip()[-300:]}")
    return failed


def stack_check(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """The kernels of a 32nd of DeepSeek-V3 in FP8 of 64x64 blocks and in INT8; then a wrong tile in a tuned file of the
    engine, and every product spoiled."""
    stage.run("down", "--now")
    figures: dict[str, Any] = {}
    with with_what_was_seen(figures):
        fp8, int8 = _share(stage), _share(stage, "int8-channel")
        for name, profile in (("fp8 64x64", fp8), ("int8", int8)):
            figures[name] = found = checked(stage, profile)
            if wrong := {one: said for one, said in found["kernels"].items() if said[0] != "right"} or found["exit"]:
                raise Otherwise(f"{name}: not all kernels are right: {wrong}")
        tiled = next(name for name in figures["fp8 64x64"]["kernels"] if name.startswith("FP8 block GEMM"))
        with _wrong_tile(stage, tiled):
            figures["wrong tile"] = found = checked(stage, fp8)
        shape = tiled.partition(" N=")[2]
        caught = [name for name, said in found["kernels"].items() if said[0] == "wrong"]
        if found["exit"] != SLOW or not caught or any(not name.endswith(f" N={shape}") for name in caught):
            raise Otherwise(f"a wrong tile of N={shape}: {caught} are wrong, exit code {found['exit']}")
        with in_env(stage, {"L40S_CHECK_PLANT": "wrong"}):
            figures["all spoiled"] = found = checked(stage, int8)
        if right := [name for name, said in found["kernels"].items() if said[0] != "wrong"]:
            raise Otherwise(f"every product was spoiled, and {right} are not wrong")
    sizes = {name: len(figures[name]["kernels"]) for name in ("fp8 64x64", "int8")}
    seconds = " and ".join(f"{figures[name]['took_s']:.0f} s" for name in sizes)
    said = (
        f"{sizes['fp8 64x64']} kernels of a 32nd of DeepSeek-V3 in FP8 and {sizes['int8']} in INT8 right, in {seconds}"
    )
    return f"{said}; a tile across the scales' blocks, in a file of the engine, is caught: {', '.join(caught)}", figures


def checked(stage: Stage, profile: str) -> dict[str, Any]:
    """Exit code, and by kernel the gravest node's verdict, error and microseconds."""
    began = time.monotonic()
    done = stage.run("stack", "check", "--model", profile, "--json", timeout=min(240.0, stage.left_s - 5))
    if not done.stdout:
        raise Otherwise(f"stack check ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    kernels: dict[str, list[Any]] = {}
    for node in json.loads(done.stdout)["nodes"]:
        for one in node["kernels"]:
            name = f"{one['name']} {one['dtype']} {one['shape']}"
            said = [one["verdict"], one["error"], one["us"], *[one["text"][:300]] * (one["verdict"] != "right")]
            if kernels.get(name, ["right"])[0] == "right":
                kernels[name] = said
    return {"exit": done.returncode, "took_s": round(time.monotonic() - began, 1), "kernels": kernels}


@contextmanager
def _wrong_tile(stage: Stage, kernel: str) -> Iterator[None]:
    """A tuned file of the engine whose tile is deeper than the scales' blocks, for the shape of this kernel."""
    sizes = dict(word.split("=") for word in kernel.split() if "=" in word)
    card = stage.gpus.names()[0].replace(" ", "_")
    name = f"N={sizes['N']},K={sizes['K']},device_name={card},dtype=fp8_w8a8,block_shape=[64, 64].json"
    node, venv = stage.nodes_of("gang0")[0], Path(engine_python(real=True)).parents[1]
    folder = stage.lab.on(node, f"find {venv} -type d -path '*/quantization/configs'").split()[-1]
    place = shlex.quote(f"{folder}/{name}")
    kept = stage.lab.on(node, f"cat {place} 2>/dev/null || true")
    stage.lab.on(node, f"cat >{place}", json.dumps({"1": _tile(128), "1024": _tile(128)}).encode())
    try:
        yield
    finally:
        stage.lab.on(node, f"cat >{place}" if kept else f"rm {place}", kept.encode())


def _tile(depth: int) -> dict[str, int]:
    return {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": depth, "GROUP_SIZE_M": 1, "num_warps": 4,
            "num_stages": 3}  # fmt: skip


def _share(stage: Stage, quantisation: str = "fp8-block") -> str:
    """The profile of a model whose ranks here have the shapes of one of 32 ranks of DeepSeek-V3."""
    ranks, name = len(stage.gpus_of("gang0")), SHARE
    profile = {**checkpoint.profile(64, name), "dimensions": share(ranks)}
    settings = {**checkpoint.config(64), **share(ranks)}
    if quantisation != "fp8-block":
        name = f"{SHARE}-{quantisation}"
        profile |= {"name": name, "directory": name, "quantisation": quantisation}
        del profile["block"]
        settings["quantization_config"] = {"quant_method": "w8a8_int8"}
    (MODELS / name).mkdir(parents=True, exist_ok=True)
    (MODELS / name / "config.json").write_text(json.dumps(settings))
    file = stage.lab.folder / f"{name}.yml"
    file.write_text(yaml.safe_dump(profile))
    return str(file)


def share(ranks: int) -> dict[str, int]:
    """Dimensions; what a layout cuts is a 32nd of DeepSeek-V3's for each rank, the rest is as it is there."""
    whole = asdict(load_profile("DeepSeek-V3-0324").dimensions)
    cut = ("intermediate_size", "moe_intermediate_size", "num_attention_heads", "num_key_value_heads")
    sizes = {name: whole[name] // PARTS * ranks if name in cut else whole[name] for name in checkpoint.DIMENSIONS}
    return {**sizes, "num_hidden_layers": 4}


def _read(stage: Stage, line: str) -> int:
    """How many files the newest engine of the first node says that it reads."""
    runs = find_node_in(stage.lab, "node0").file("/var/lib/l40s-deploy/gangs/gang0/runs")
    newest = max(runs.glob("*/engine.log"), key=lambda file: file.stat().st_mtime)
    return len({text for text in newest.read_text("utf-8", "replace").splitlines() if line in text})
