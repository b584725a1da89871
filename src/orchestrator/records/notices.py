"""The last notice about each gang: a guard that is restarted does not send it again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from orchestrator.model.errors import InputError
from orchestrator.records.documents import write_document


def told_file(inventory: str) -> Path:
    """$XDG_STATE_HOME/l40s-deploy/told/ID.json, by default below ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    name = hashlib.sha256(str(Path(inventory).resolve()).encode()).hexdigest()[:24]
    return Path(base) / "l40s-deploy" / "told" / f"{name}.json"


def read_told(file: Path) -> dict[str, str]:
    """By gang; empty where nothing is kept, or it can't be read."""
    try:
        kept = json.loads(file.read_bytes())
        return {str(gang): str(word) for gang, word in kept.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def keep_told(file: Path, told: dict[str, str]) -> None:
    """Replace it. If that fails, a message may be sent twice."""
    with contextlib.suppress(InputError):
        write_document(file, told)
