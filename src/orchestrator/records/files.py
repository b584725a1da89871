"""Files that a user asked for: written completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.model.errors import InputError


def write_whole(path: Path, text: str, *, over: bool = True) -> None:
    """Write a file by name; a reader never sees half of it. Raises InputError where it can't be written, and
    where it exists and may not be written over."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, "utf-8")
        if over:
            draft.replace(path)
        else:
            path.hardlink_to(draft)
    except FileExistsError:
        raise InputError(
            "this file already exists", where=str(path), fix="choose another file, or use --force"
        ) from None
    except OSError as failure:
        raise InputError(
            f"can't be written: {failure.strerror or failure}",
            where=str(path),
            fix="choose a file in a writable directory",
        ) from None
    finally:
        draft.unlink(missing_ok=True)
