"""Benchmark runs on this machine: $XDG_STATE_HOME/l40s-deploy/bench/ID.json, and the client's words, ID.raw.jsonl."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

from orchestrator.protocol.errors import InputError
from orchestrator.records.documents import read_document, state_folder, write_document

FORMAT = 1
MOST_RAW_BYTES = 16 << 20
"""Of one client's result: 256 answers of 200 tokens take about a megabyte."""
KEPT_RAW = 50
_RAW = ".raw.jsonl"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")


def new_id(gang: str, at: float) -> str:
    """A name that is not taken yet: when (UTC), and whose."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", gang)[:60]
    name = time.strftime("%Y%m%d-%H%M%S", time.gmtime(at)) + f"-{plain}"
    return next(
        name_free
        for name_free in chain([name], (f"{name}-{n}" for n in count(2)))
        if not bench_file(name_free).exists()
    )


def bench_file(name: str) -> Path:
    """Where the record of this name is, whether or not it exists."""
    return state_folder("bench") / f"{name}.json"


def write_bench(document: Mapping[str, Any]) -> Path:
    """Write a record by its `id`; returns its file. Raises InputError where it can't be written."""
    file = bench_file(str(document["id"]))
    write_document(file, {"format": FORMAT, **document})
    return file


def keep_raw(name: str, text: str) -> str | None:
    """The client's own result beside a record; returns its file. None where it is too long, or can't be written: the
    record is worth more. Only the newest are kept."""
    folder = state_folder("bench")
    file, data = folder / f"{name}{_RAW}", text.encode("utf-8", "replace")
    if not data or len(data) > MOST_RAW_BYTES:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(data)
        for old in sorted(folder.glob(f"*{_RAW}"), key=lambda raw_file: raw_file.name)[:-KEPT_RAW]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return str(file)


def read_bench(name: str) -> dict[str, Any]:
    """One record. Raises InputError where there is none of this name, or it can't be read."""
    file = bench_file(name)
    if not _ID.fullmatch(name) or not file.is_file():
        raise InputError(
            f"no benchmark is recorded as {name!r}",
            where=str(file.parent),
            fix="list them with `l40s-deploy bench list`",
        )
    record = read_document(file, _record)
    if record is None or record["id"] != name:
        raise InputError("this record can't be read", where=str(file), fix=f"delete or restore {file.name}")
    return record


def all_benches() -> tuple[dict[str, Any], ...]:
    """Every record that can be read, oldest first."""
    records = [(file.stem, read_document(file, _record)) for file in state_folder("bench").glob("*.json")]
    return tuple(
        sorted((record for name, record in records if record and record["id"] == name), key=lambda record: record["at"])
    )


def _record(document: Any) -> dict[str, Any] | None:
    """None for what is no record of ours."""
    texts = (document[key] for key in ("id", "gang", "model", "stack", "layout", "gpu", "dataset"))
    numbers = (document["at"], *document["serving"].values())
    sound = (
        document["format"] == FORMAT
        and isinstance(document["load"], dict)
        and all(isinstance(text, str) for text in texts)
    )
    return document if sound and all(isinstance(number, (int, float)) for number in numbers) else None
