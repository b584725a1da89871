"""What `doctor --watch` found in its last check, one file per inventory: the exporter shows it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.records.documents import write_document

FORMAT = 1


def looks_file(inventory: str) -> Path:
    """$XDG_STATE_HOME/l40s-deploy/doctor/ID.json, by default below ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    name = hashlib.sha256(str(Path(inventory).resolve()).encode()).hexdigest()[:24]
    return Path(base) / "l40s-deploy" / "doctor" / f"{name}.json"


def keep_look(file: Path, at: float, findings: Sequence[Mapping[str, Any]]) -> None:
    """Replace it. at: our epoch seconds. Raises InputError where it can't be written."""
    write_document(file, {"format": FORMAT, "at": at, "findings": list(findings)})


def last_look(file: Path) -> tuple[float, list[dict[str, Any]]] | None:
    """(when, findings); None where there was no look, or it can't be read."""
    try:
        found = json.loads(file.read_bytes())
        findings = [dict(one) for one in found["findings"]]
        sound = found["format"] == FORMAT and all(
            isinstance(one[key], str) for one in findings for key in ("id", "severity", "node", "title", "fix")
        )
        return (float(found["at"]), findings) if sound else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
