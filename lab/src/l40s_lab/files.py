"""Files that are written completely or not at all."""

from __future__ import annotations

from pathlib import Path


def put(path: Path, text: str) -> None:
    """Write a file under a temporary name, then move it into place."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)
