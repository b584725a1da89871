"""How long the last start of each gang, model and stack took, phase by phase, on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.model.errors import InputError
from orchestrator.records.documents import write_document


def starts_root() -> Path:
    """$XDG_STATE_HOME/l40s-deploy/starts, by default below ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(base) / "l40s-deploy" / "starts"


def last_start(gang: str, model: str, stack: str) -> dict[str, float]:
    """Seconds since staging at which each phase began; empty where nothing is kept, or it can't be read."""
    try:
        kept = json.loads(_file(gang, model, stack).read_bytes())["began"]
        return {str(name): float(at) for name, at in kept.items() if math.isfinite(at)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def keep_start(gang: str, model: str, stack: str, began: Mapping[str, float]) -> None:
    """Replace it. A record that can't be written is none: the next start shows no time left at first."""
    document = {
        "gang": gang,
        "model": model,
        "stack": stack,
        "began": {name: round(at, 1) for name, at in began.items()},
    }
    with contextlib.suppress(InputError):
        write_document(_file(gang, model, stack), document)


def _file(gang: str, model: str, stack: str) -> Path:
    name = hashlib.sha256("\0".join((gang, model, stack)).encode()).hexdigest()[:24]
    return starts_root() / f"{name}.json"
