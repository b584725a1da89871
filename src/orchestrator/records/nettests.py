"""Network tests on this machine: one file each, $XDG_STATE_HOME/l40s-deploy/nettest/ID.json."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.records.documents import write_document

FORMAT = 1
KEPT = 50
"""Of each gang."""


def nettests_root() -> Path:
    """By default below ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(base) / "l40s-deploy" / "nettest"


def write_nettest(document: Mapping[str, Any], at: float, *, root: Path | None = None) -> Path:
    """Keep one test; the oldest of its gang go. Raises InputError where it can't be written."""
    folder = root or nettests_root()
    gang = re.sub(r"[^A-Za-z0-9._-]", "-", str(document["gang"]))[:60]
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(at))}-{time.time_ns() % 1_000_000:06d}-{gang}"
    file = folder / f"{name}.json"
    write_document(file, {"format": FORMAT, "id": name, "at": at, **document})
    for old in sorted(folder.glob(f"*-{gang}.json"))[:-KEPT]:
        old.unlink(missing_ok=True)
    return file


def last_good(
    gang: str, nodes: Sequence[str], stack: str, ranks: int, *, root: Path | None = None
) -> dict[str, Any] | None:
    """The newest test of these very nodes and this stack that was not slow; None where there is none."""
    for file in sorted((root or nettests_root()).glob("*.json"), reverse=True):
        found = _read(file)
        if found is None or found["verdict"] == "slow":
            continue
        if (found["gang"], found["nodes"], found["stack"], found["ranks"]) == (gang, [*nodes], stack, ranks):
            return found
    return None


def slow_before(gang: str, nodes: Sequence[str], *, root: Path | None = None) -> str:
    """What the newest test of these nodes found slow, with its id; '' where it found nothing, or there is none."""
    for file in sorted((root or nettests_root()).glob("*.json"), reverse=True):
        found = _read(file)
        if found is not None and (found["gang"], found["nodes"]) == (gang, [*nodes]):
            titles = [str(one.get("title")) for one in found.get("findings", [])] if found["verdict"] == "slow" else []
            return f"{titles[0]} ({found.get('id')})" if titles else ""
    return ""


def newest_nettests(*, root: Path | None = None) -> tuple[dict[str, Any], ...]:
    """The newest test of each gang that can be read."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted((root or nettests_root()).glob("*.json"), reverse=True):
        test = _read(file)
        if test is not None:
            found.setdefault(test["gang"], test)
    return tuple(found.values())


def _read(file: Path) -> dict[str, Any] | None:
    """None for what is no record of ours."""
    try:
        found = json.loads(file.read_bytes())
        sound = (
            found["format"] == FORMAT
            and all(isinstance(found[key], str) for key in ("gang", "stack", "verdict"))
            and isinstance(found["nodes"], list)
            and isinstance(found["ranks"], int)
            and isinstance(found["links"], list)
            and isinstance(found["tests"], list)
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if sound else None
