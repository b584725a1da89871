"""Benchmark runs on this machine: $XDG_STATE_HOME/l40s-deploy/bench/ID.json, and the client's words, ID.raw.jsonl."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.model.errors import InputError
from orchestrator.records.documents import state_folder, write_document

FORMAT = 1
MOST_RAW_BYTES = 16 << 20
"""Of one client's result: 256 answers of 200 tokens take about a megabyte."""
KEPT_RAW = 50
_RAW = ".raw.jsonl"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")


def new_id(gang: str, at: float, *, root: Path | None = None) -> str:
    """A name that is not taken yet: when (UTC), and whose."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", gang)[:60]
    name = time.strftime("%Y%m%d-%H%M%S", time.gmtime(at)) + f"-{plain}"
    number, taken = 1, name
    while bench_file(taken, root=root).exists():
        number += 1
        taken = f"{name}-{number}"
    return taken


def bench_file(name: str, *, root: Path | None = None) -> Path:
    """Where the record of this name is, whether or not it exists."""
    return (root or state_folder("bench")) / f"{name}.json"


def write_bench(document: Mapping[str, Any], *, root: Path | None = None) -> Path:
    """Write a record by its `id`; returns its file. Raises InputError where it can't be written."""
    file = bench_file(str(document["id"]), root=root)
    write_document(file, {"format": FORMAT, **document})
    return file


def keep_raw(name: str, text: str, *, root: Path | None = None) -> str | None:
    """The client's own result beside a record; returns its file. None where it is too long, or can't be written: the
    record is worth more. Only the newest are kept."""
    folder = root or state_folder("bench")
    file, data = folder / f"{name}{_RAW}", text.encode("utf-8", "replace")
    if not data or len(data) > MOST_RAW_BYTES:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(data)
        for old in sorted(folder.glob(f"*{_RAW}"), key=lambda one: one.name)[:-KEPT_RAW]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return str(file)


def read_bench(name: str, *, root: Path | None = None) -> dict[str, Any]:
    """One record. Raises InputError where there is none of this name, or it can't be read."""
    file = bench_file(name, root=root)
    if not _ID.fullmatch(name) or not file.is_file():
        raise InputError(
            f"no benchmark is recorded as {name!r}",
            where=str(file.parent),
            fix="list them with `l40s-deploy bench list`",
        )
    found = _read(file)
    if found is None:
        raise InputError("this record can't be read", where=str(file), fix=f"delete or restore {file.name}")
    return found


def all_benches(*, root: Path | None = None) -> tuple[dict[str, Any], ...]:
    """Every record that can be read, oldest first."""
    try:
        files = sorted((root or state_folder("bench")).glob("*.json"))
    except OSError:
        return ()
    return tuple(sorted((found for file in files if (found := _read(file))), key=lambda one: one["at"]))


def _read(file: Path) -> dict[str, Any] | None:
    """None for what is no record of ours."""
    try:
        found = json.loads(file.read_bytes())
        sound = (
            found["format"] == FORMAT
            and found["id"] == file.stem
            and isinstance(found["at"], (int, float))
            and all(isinstance(found[key], str) for key in ("gang", "model", "stack", "layout", "gpu", "dataset"))
            and isinstance(found["load"], dict)
            and all(isinstance(value, (int, float)) for value in found["serving"].values())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return found if sound else None
