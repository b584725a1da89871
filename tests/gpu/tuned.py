"""`tuning run` on GPUs: killed and resumed, each tile proved, and the file that the engine then reads."""

from __future__ import annotations

import json
import math
import signal
import subprocess
from pathlib import Path
from typing import Any

import yaml
from tests.gpu import checkpoint
from tests.gpu.stage import MODELS, Otherwise, Stage, engine_python, find_node_in, start

from l40s_lab.processes import wait_until
from orchestrator.loading.resources import template
from orchestrator.protocol.message import parsed
from orchestrator.tuning.messages import TuneJob, TuneLine, TunersOrder

SHARE = "share-of-v3"
PARTS = 32
"""GPUs that DeepSeek-V3 is cut for: a share of it has the shapes of one of them."""
LINES = ("Using MoE kernel config from", "Using configuration from")
"""What SGLang says of a tuned file that it reads: experts, block GEMM."""
_TUNERS = "pgrep -af '/proc/self/f[d]/' || true"


def tuning(stage: Stage) -> tuple[str, dict[str, Any]]:
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
        if wrong := stage.continues(stage.service()):
            raise Otherwise(wrong, **figures)
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
    import time

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


def _tile(depth: int) -> dict[str, int]:
    return {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": depth, "GROUP_SIZE_M": 1, "num_warps": 4,
            "num_stages": 3}  # fmt: skip


def _share(stage: Stage) -> str:
    """The profile of a model whose ranks here have the shapes of one of 32 ranks of DeepSeek-V3."""
    ranks = len(stage.gpus_of("gang0"))
    (MODELS / SHARE).mkdir(parents=True, exist_ok=True)
    profile = {**checkpoint.profile(64, SHARE), "dimensions": share(ranks)}
    settings = {**checkpoint.config(64), **share(ranks)}
    (MODELS / SHARE / "config.json").write_text(json.dumps(settings))
    file = stage.lab.folder / f"{SHARE}.yml"
    file.write_text(yaml.safe_dump(profile))
    return str(file)


def share(ranks: int) -> dict[str, int]:
    """Dimensions; what a layout cuts is a 32nd of DeepSeek-V3's for each rank, the rest is as it is there."""
    return {
        "hidden_size": 7168,
        "intermediate_size": 18432 // PARTS * ranks,
        "moe_intermediate_size": 2048 // PARTS * ranks,
        "num_hidden_layers": 4,
        "num_attention_heads": 128 // PARTS * ranks,
        "num_key_value_heads": 128 // PARTS * ranks,
        "vocab_size": 129280,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }


def _read(stage: Stage, line: str) -> int:
    """How many files the newest engine of the first node says that it reads."""
    runs = find_node_in(stage.lab, "node0").file("/var/lib/l40s-deploy/gangs/gang0/runs")
    newest = max(runs.glob("*/engine.log"), key=lambda file: file.stat().st_mtime)
    return len({text for text in newest.read_text("utf-8", "replace").splitlines() if line in text})
