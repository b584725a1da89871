"""Baselines, kept on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.model.errors import InputError
from orchestrator.records.documents import state_folder


def baseline_file(name: str, *, root: Path | None = None) -> Path:
    """Where the baseline of this name is, whether or not it exists."""
    return (root or state_folder("golden")) / f"{name}.json"


def any_baseline(*, root: Path | None = None) -> bool:
    """Whether anything was ever accepted from this machine."""
    return next((root or state_folder("golden")).glob("*.json"), None) is not None


def read_baseline(file: Path) -> Any:
    """The stored document; None where there is none. Raises InputError where it can't be read."""
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as wrong:
        raise InputError(
            f"this baseline can't be read: {wrong}",
            where=str(file),
            fix="accept a new one with `l40s-deploy golden accept`",
        ) from None
