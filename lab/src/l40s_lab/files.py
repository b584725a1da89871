"""Files that are written completely or not at all."""

from __future__ import annotations

from pathlib import Path


def put(path: Path, content: str | bytes) -> None:
    """Write a file that all may read under a temporary name, then move it into place."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content if isinstance(content, bytes) else content.encode())
    fresh.chmod(0o644)
    fresh.replace(path)
