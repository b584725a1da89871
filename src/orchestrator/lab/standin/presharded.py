"""`--load-format presharded` of SGLang 0.5.23: the first start writes the files, later ones read them.

srt/model_loader/loader.py: PreshardedModelLoader. Each rank writes its own file into a shared directory, and rank 0
also the plan and READY; a later start reads the plan and the files of its own ranks.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from .log import Log
from .played import Played
from .settings import Rank, Settings

_WAIT_S = 5.0
"""How long rank 0 waits for the others' files; with the engine's barrier they are already there."""


def play(settings: Settings, rank: Rank, log: Log) -> None:
    """Handle per-rank files while a rank loads; does nothing if they were not asked for."""
    if settings.given.get("load_format") != "presharded":
        return
    extra = json.loads(str(settings.given.get("model_loader_extra_config") or "{}"))
    root = extra.get("presharded_path") or f"{settings.model_path}/presharded"
    folder = Path(str(root), f"TP-{settings.tp_size}-sig-standin")
    if (folder / "READY").is_file():
        log.line(f"Loading from presharded checkpoint at {folder}")
        _read(folder, rank.world)
        return
    log.line(f"No presharded checkpoint at {folder}; doing first-time load and dump.")
    _write(folder, rank.world, settings.world)


def _name(world: int) -> str:
    return f"model-{world:05d}-rank-{world:03d}.safetensor"


def _read(folder: Path, world: int) -> None:
    plan = json.loads((folder / "checksum.json").read_text())
    for one in plan["rank_to_reads"][str(world)]:
        if not (folder / one["filename"]).is_file():
            raise Played("FileNotFoundError", f"No such file or directory: {folder / one['filename']}")


def _write(folder: Path, world: int, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _name(world)).write_text(f"weights of rank {world}\n")
    if world:
        return
    until = time.monotonic() + _WAIT_S
    for other in range(count):
        while not (folder / _name(other)).is_file():
            if time.monotonic() > until:
                raise Played(
                    "FileNotFoundError",
                    f"Rank {other} did not write {folder}/_tmp_presharding/manifest_{other:05d}.json. The presharded "
                    "dump directory must be on a filesystem shared by all ranks/nodes (set presharded_path / "
                    "draft_presharded_path to a shared path if model_path is node-local).",
                )
            time.sleep(0.01)
    reads = {str(other): [{"filename": _name(other), "stored_key": "k", "name": "n"}] for other in range(count)}
    (folder / "checksum.json").write_text(json.dumps({"version": 1, "world_size": count, "rank_to_reads": reads}))
    (folder / "READY").write_text("{}")
