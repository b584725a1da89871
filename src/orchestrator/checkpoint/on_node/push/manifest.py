"""The files of a directory that are pushed: every regular file except hidden ones, with the real place of its bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from orchestrator.checkpoint.on_node.files import files_below
from orchestrator.checkpoint.on_node.push.target import PARTIAL, FileEntry
from orchestrator.checkpoint.on_node.target import JOURNAL as REBLOCK_JOURNAL
from orchestrator.node.agent import weights
from orchestrator.node.failure import Failure


@dataclass(frozen=True, slots=True)
class Manifest:
    """root: what has to be offered so that every entry's bytes are below it (links may lead out of the directory)"""

    root: Path
    entries: tuple[FileEntry, ...]

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.entries)


def read(directory: Path) -> Manifest:
    """The files of a complete checkpoint. Raises Failure for one that is not, or that can't be read."""
    if not directory.is_dir():
        raise Failure(
            "no-checkpoint", "no such directory", str(directory), "specify the directory that contains config.json"
        )
    _refuse_unfinished(directory)
    found = listed(directory)
    real = {path: Path(os.path.realpath(directory / path)) for path in found}
    root = Path(os.path.commonpath([os.path.realpath(directory), *real.values()]))
    if root == Path("/"):
        away = next(path for path, target in real.items() if directory.resolve() not in target.parents)
        what = f"{away} is a symbolic link to {real[away]}, outside the directory"
        raise Failure("far-link", what, str(directory), "make a directory of regular files: `cp -rL`")
    return Manifest(root, tuple(_entry(path, target, root) for path, target in real.items()))


def _refuse_unfinished(directory: Path) -> None:
    if directory.name.endswith(PARTIAL):
        what = "is the unfinished copy of another push"
        raise Failure("unfinished", what, str(directory), "finish that push first, or specify a complete checkpoint")
    if (directory / REBLOCK_JOURNAL).exists():
        what = "its re-blocking was interrupted"
        raise Failure("unfinished", what, str(directory), "run `l40s-deploy checkpoint reblock` again to continue")
    for fault in weights.check(directory):
        raise fault


def listed(directory: Path) -> list[str]:
    """Paths of the files that belong to a checkpoint, sorted. Raises Failure: none, or one that can't be sent."""
    found = sorted(files_below(directory))
    for path in found:
        if not path.isprintable():
            raise Failure("odd-name", f"has a file name that can't be sent: {path!r}", str(directory), "rename")
    if not found:
        raise Failure(
            "no-checkpoint", "contains no files", str(directory), "specify the directory that contains config.json"
        )
    return found


def _entry(path: str, real: Path, root: Path) -> FileEntry:
    if not os.access(real, os.R_OK):
        raise Failure("unreadable", "can't be read", str(real), "check its owner and mode")
    return FileEntry(path, real.relative_to(root).as_posix(), real.stat().st_size)
