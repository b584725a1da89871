"""What tuning runs have found on this machine: $XDG_STATE_HOME/l40s-deploy/tuning/KEY.jsonl, a line for each job done.

A line is appended once its job's result is proved, so that a killed run continues where it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from orchestrator.records.documents import cant_be_written, state_folder


def kept_results(key: str) -> dict[str, Mapping[str, Any]]:
    """By job, the last one counts; a line that a kill has torn is none."""
    found: dict[str, Mapping[str, Any]] = {}
    try:
        lines = state_folder("tuning").joinpath(f"{key}.jsonl").read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        try:
            result = json.loads(line)
        except ValueError:
            continue
        if isinstance(result, dict) and isinstance(result.get("job"), str):
            found[result["job"]] = result
    return found


def keep_result(key: str, result: Mapping[str, Any]) -> None:
    """Append one. Raises InputError where it can't be written."""
    file = state_folder("tuning") / f"{key}.jsonl"
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with file.open("a", encoding="utf-8") as lines:
            lines.write("\n" + json.dumps(result) + "\n")  # a torn line before it stays one line
            lines.flush()
            os.fsync(lines.fileno())
    except OSError as failure:
        raise cant_be_written(file, failure, f"make {file.parent} writable, or free space on its disk") from None


def forget_results(key: str) -> None:
    """Start again from nothing."""
    state_folder("tuning").joinpath(f"{key}.jsonl").unlink(missing_ok=True)
