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

from tests.gpu import answers, checkpoint
from tests.gpu.stage import BLOCKS, HOME, MODELS, REBLOCKED, Otherwise, Stage, find_node_in

from orchestrator.lab.namespaces.mounts import Spaces, attach, clone_tree, detach, in_child
from orchestrator.node.cache.weight_files import of_ranks

INSIDE = "/own"
"""Where a node shows its own folder of this machine's disk."""
PER_RANK = "per-rank"
LOADS = "Loading from presharded checkpoint"
SLACK_BYTES = 16 << 20
"""What a start reads beside its weights: whatever of the engine's own files was not in the page cache."""


def per_rank(stage: Stage) -> tuple[str, dict[str, Any]]:
    """Plain; then written by a start whose nodes share the folder; then read, each node having its own files alone.

    One rank a node.
    """
    disks = {node: HOME / "own" / node for node in stage.lab.hosts()}
    for folder in disks.values():
        shutil.rmtree(folder, ignore_errors=True)
        (folder / PER_RANK).mkdir(parents=True)
        _copy_model(stage, folder / REBLOCKED)
    shared = HOME / "own" / "shared"
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir()
    figures: dict[str, Any] = {}
    stage.run("down", "--now")
    with shown(stage, {node: (disk, INSIDE) for node, disk in disks.items()}):
        try:
            stage.lab.write_inventory(vars={"l40s_model_root": INSIDE})
            plain, figures["plain"] = _start(stage, disks)
            again = answers.ask(stage.service()) if stage.lab.real else {}
            stage.lab.write_inventory(vars={"l40s_model_root": INSIDE, "l40s_presharded": f"{INSIDE}/{PER_RANK}"})
            with shown(stage, dict.fromkeys(disks, (shared, f"{INSIDE}/{PER_RANK}"))):
                written, figures["written"] = _start(stage, disks)
                stage.run("down", "--now")
            own_files = [(node, disk / PER_RANK) for node, disk in disks.items()]
            shares = {node: _give(rank, shared, place) for rank, (node, place) in enumerate(own_files)}
            own, figures["read"] = _start(stage, disks)
            loads = _log_has(stage, LOADS)
        finally:
            stage.run("down", "--now")
            stage.lab.write_inventory()
    figures |= {"checkpoint_bytes": _size(MODELS / REBLOCKED), "own_files_bytes": shares}
    if stage.lab.real and not loads:
        raise Otherwise(f"the engine's log has no line '{LOADS}'", **figures)
    differing, asked = _differing(plain, again, written, own)
    figures |= {"differing": differing, "compared": asked}
    if differing:
        raise Otherwise(f"other greedy tokens: {differing}", **figures)
    before, after = figures["plain"]["read_bytes"], figures["read"]["read_bytes"]
    if more := [node for node in disks if after[node] > shares[node] + SLACK_BYTES or after[node] > before[node]]:
        raise Otherwise(f"{', '.join(more)} read more than their own files: {after}, {shares}", **figures)
    words = [f"{node} {before[node] / 1e6:.0f} -> {after[node] / 1e6:.0f} MB" for node in disks]
    said = f"the same greedy tokens for {asked} prompts; read from disk: {', '.join(words)}"
    phases = figures["plain"]["weights_s"], figures["read"]["weights_s"]
    return f"{said}; weights {phases[0]} s plain, {phases[1]} s from per-rank files", figures


def _copy_model(stage: Stage, folder: Path) -> None:
    if stage.lab.real:
        shutil.copytree(MODELS / REBLOCKED, folder)
        return
    folder.mkdir()
    (folder / ".standin").touch()
    (folder / "config.json").write_text(json.dumps(checkpoint.config(BLOCKS[REBLOCKED])))


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


def _start(stage: Stage, disks: dict[str, Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what it says of the prompts, figures) of an engine whose files were read from the disk."""
    for disk in disks.values():
        forget(disk)
    before = {node: _read(stage, node) for node in disks}
    took = stage.up("--replace")
    read = {node: _read(stage, node) for node in disks}
    bytes_read = {
        node: sum(max(0, now - before[node].get(pid, 0)) for pid, now in read[node].items()) for node in disks
    }
    if stage.lab.real and (wrong := stage.continues(stage.service())):
        raise Otherwise(wrong)
    said = answers.ask(stage.service()) if stage.lab.real else {}
    phases = _phases(stage)
    weights = round(max((one.get("weights", 0.0) for one in phases.values()), default=0.0), 2)
    return said, {"up_s": round(took, 1), "weights_s": weights, "phases_s": phases, "read_bytes": bytes_read}


def forget(folder: Path) -> None:
    """Take a folder's files out of the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


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
