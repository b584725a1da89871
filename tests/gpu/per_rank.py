"""Per-rank weight files on GPUs: the same tokens, what each phase of a start takes, and what each node reads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.gpu import answers
from tests.gpu.stage import HOME, MODELS, ORIGINAL, REBLOCKED, Otherwise, Stage, find_node_in
from tests.support.page_cache import forget

from orchestrator.lab.namespaces.mounts import Spaces, attach, clone_tree, detach, in_child
from orchestrator.node.cache.weight_files import of_ranks

INSIDE = "/own"
"""Where a node shows its own folder of this machine's disk."""
PER_RANK = "per-rank"
DUMP = "/dump"
"""Where all nodes show one folder of it."""
LOADS = "Loading from presharded checkpoint"
SLACK_BYTES = 16 << 20
"""What a start reads beside its weights: whatever of the engine's own files was not in the page cache."""


def per_rank(stage: Stage) -> tuple[str, dict[str, Any]]:
    """128x128: plain; written by `checkpoint preshard`; read, each node having its own files alone.

    One rank a node. Then the same at 64x64 by the engine's own option, past the product's refusal: what it is for.
    """
    disks = {node: HOME / "own" / node for node in stage.lab.hosts()}
    for folder in (*disks.values(), shared := HOME / "own" / "shared"):
        shutil.rmtree(folder, ignore_errors=True)
        (folder / PER_RANK).mkdir(parents=True)
    for folder in disks.values():
        for name in (ORIGINAL, REBLOCKED):
            shutil.copytree(MODELS / name, folder / name)
    figures: dict[str, Any] = {}
    stage.run("down", "--now")
    with shown(stage, {node: (disk, INSIDE) for node, disk in disks.items()}):
        try:
            said = _original(stage, disks, shared / PER_RANK, figures)
            said += _reblocked(stage, disks, shared / PER_RANK, figures)
        finally:
            stage.run("down", "--now")
            stage.lab.write_inventory()
    return said, figures


def _original(stage: Stage, disks: dict[str, Path], shared: Path, figures: dict[str, Any]) -> str:
    stage.lab.write_inventory(vars={"l40s_model_root": INSIDE})
    plain, figures["plain"] = _start(stage, disks, ORIGINAL)
    again = answers.ask(stage.service())
    stage.run("down", "--now")
    stage.lab.write_inventory(vars={"l40s_model_root": INSIDE, "l40s_presharded": f"{INSIDE}/{PER_RANK}"})
    profile = str(stage.lab.folder / f"{ORIGINAL}.yml")
    with shown(stage, dict.fromkeys(disks, (shared, DUMP))):
        words = ("checkpoint", "preshard", "--model", profile, "--shared", DUMP, "--json")
        done = stage.run(*words, timeout=stage.left_s - 10)
    if done.returncode:
        raise Otherwise(f"checkpoint preshard ended with {done.returncode}: {done.stderr.strip()[-400:]}", **figures)
    written = json.loads(done.stdout)
    shares = {node["name"]: node["bytes"] for node in written["nodes"]}
    own, figures["read"] = _start(stage, disks, ORIGINAL)
    figures |= {"written_s": written["seconds"], "checkpoint_bytes": _size(MODELS / ORIGINAL)}
    figures |= {"own_files_bytes": shares}
    if not _log_has(stage, LOADS):
        raise Otherwise(f"the engine's log has no line '{LOADS}'", **figures)
    differing, asked = _differing(plain, again, own)
    figures |= {"differing": differing, "compared": asked, "apart": answers.distance(plain, own).figures()}
    if differing:
        raise Otherwise(f"other greedy tokens: {differing}", **figures)
    before, after = figures["plain"]["read_bytes"], figures["read"]["read_bytes"]
    if more := [node for node in disks if after[node] > shares[node] + SLACK_BYTES or after[node] > before[node]]:
        raise Otherwise(f"{', '.join(more)} read more than their own files: {after}, {shares}", **figures)
    changes = [f"{node} {before[node] / 1e6:.0f} -> {after[node] / 1e6:.0f} MB" for node in disks]
    phases = figures["plain"]["weights_s"], figures["read"]["weights_s"]
    said = f"128x128: the same greedy tokens for {asked} prompts; read from disk: {', '.join(changes)}; phase weights"
    return f"{said} {phases[0]} s plain, {phases[1]} s from per-rank files"


def _reblocked(stage: Stage, disks: dict[str, Path], shared: Path, figures: dict[str, Any]) -> str:
    """Whether it is still wrong: the product refuses per-rank files there, since it was.

    The tokens are compared: prompts are computed without the absorbed matrices, so that their log-probabilities are
    right either way.
    """
    stage.lab.write_inventory(vars={"l40s_model_root": INSIDE})
    place = f"{INSIDE}/{PER_RANK}"
    folder = json.dumps({"presharded_path": f"{place}/by-hand"})
    words = ("--", "--load-format", "presharded", "--model-loader-extra-config", folder)
    with shown(stage, dict.fromkeys(disks, (shared, place))):
        written, figures["written at 64x64"] = _start(stage, disks, REBLOCKED, *words)
        stage.run("down", "--now")
    _give_all(shared, disks)
    read, figures["read at 64x64"] = _start(stage, disks, REBLOCKED, *words)
    differing, asked = _differing(written, written, read)
    figures |= {"differing at 64x64": differing}
    if not differing:
        raise Otherwise("64x64 says the same from per-rank files: need they be refused?", **figures)
    return (
        f". 64x64 past the product's refusal: other tokens for {len(differing)} of {asked} prompts, without a message"
    )


@contextmanager
def shown(stage: Stage, folders: dict[str, tuple[Path, str]]) -> Iterator[None]:
    """Folders of this machine at a place of each node, to be written to."""
    for node, (folder, inside) in folders.items():
        pid = find_node_in(stage.lab, node).pid
        place = Path(f"/proc/{pid}/root{inside}")
        place.mkdir(parents=True, exist_ok=True)
        tree = clone_tree(folder)
        in_child(partial(_attached, pid, tree, inside))
        os.close(tree)
    try:
        yield
    finally:
        for node, (_, inside) in folders.items():
            pid = find_node_in(stage.lab, node).pid
            in_child(partial(_detached, pid, inside))


def _attached(pid: int, tree: int, inside: str) -> None:
    Spaces(pid, ("mnt",)).join()
    attach(tree, inside)


def _detached(pid: int, inside: str) -> None:
    Spaces(pid, ("mnt",)).join()
    detach(inside)


def _start(stage: Stage, disks: dict[str, Path], model: str, *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what it says of the prompts, figures) of an engine whose files were read from the disk."""
    for disk in disks.values():
        forget(disk)
    before = {node: _read(stage, node) for node in disks}
    took = stage.up("--replace", *words, model=model)
    read = {node: _read(stage, node) for node in disks}
    bytes_read = {
        node: sum(max(0, now - before[node].get(pid, 0)) for pid, now in read[node].items()) for node in disks
    }
    if wrong := stage.continues(stage.service()):
        raise Otherwise(wrong)
    said = answers.ask(stage.service())
    phases = _phases(stage)
    weights = round(max((one.get("weights", 0.0) for one in phases.values()), default=0.0), 2)
    return said, {"up_s": round(took, 1), "weights_s": weights, "phases_s": phases, "read_bytes": bytes_read}


def _read(stage: Stage, node: str) -> dict[int, int]:
    """Process -> bytes that it, and what it has waited for, had fetched from a disk (proc(5), /proc/pid/io)."""
    found = {}
    for process in find_node_in(stage.lab, node).processes():
        try:
            lines = Path(f"/proc/{process.pid}/io").read_text().splitlines()
        except OSError:
            continue
        found[process.pid] = next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))
    return found


def _phases(stage: Stage) -> dict[str, dict[str, float]]:
    """Node -> phase -> seconds from its beginning to the next one's, of the newest run."""
    found = {}
    for node in stage.lab.hosts():
        runs = find_node_in(stage.lab, node).file("/var/lib/l40s-deploy/gangs/gang0/runs")
        newest = max(runs.glob("*/events.jsonl"), key=lambda file: file.stat().st_mtime)
        events = [json.loads(line) for line in newest.read_text().splitlines()]
        began: dict[str, float] = {}
        for event in events:
            if event["event"] == "phase":
                began.setdefault(event["name"], event["at"])
        names = list(began)
        found[node] = {name: round(began[following] - began[name], 2) for name, following in pairwise(names)}
    return found


def _give_all(shared: Path, disks: dict[str, Path]) -> dict[str, int]:
    """Node -> bytes of its rank's files, which it now has on its own disk, and the shared folder no longer."""
    own = [(node, disk / PER_RANK) for node, disk in disks.items()]
    shares = {node: _give(rank, shared, place) for rank, (node, place) in enumerate(own)}
    for outer in shared.iterdir():
        shutil.rmtree(outer)
    return shares


def _give(rank: int, shared: Path, own: Path) -> int:
    """Copy what a rank reads; returns the size of those weights."""
    total = 0
    for outer in shared.iterdir():
        for path in map(Path, of_ranks(str(outer), (rank,))):
            inner = own / outer.name / path.parent.name
            inner.mkdir(parents=True, exist_ok=True)
            for name in (path.name, "checksum.json", "READY"):
                shutil.copyfile(path.parent / name, inner / name)
            total += path.stat().st_size
    return total


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _log_has(stage: Stage, line: str) -> bool:
    runs = find_node_in(stage.lab, "node0").file("/var/lib/l40s-deploy/gangs/gang0/runs")
    newest = max(runs.glob("*/engine.log"), key=lambda file: file.stat().st_mtime, default=None)
    return newest is not None and line in newest.read_text("utf-8", "replace")


def _differing(plain: Any, again: Any, *others: Any) -> tuple[list[str], int]:
    """(prompts that some start goes on with otherwise, how many the plain engine goes on with alike twice)."""
    steady = [name for name in plain if plain[name]["greedy"] == again[name]["greedy"]]
    return [name for name in steady if any(one[name]["greedy"] != plain[name]["greedy"] for one in others)], len(steady)
