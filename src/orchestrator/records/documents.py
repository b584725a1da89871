"""Our JSON documents on this machine: replaced atomically."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from orchestrator.model.errors import InputError


def write_document(file: Path, document: Any) -> None:
    """Replace it as a whole. Raises InputError where it can't be written."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
        draft.replace(file)
    except OSError as failure:
        raise InputError(
            f"can't be written: {failure.strerror or failure}",
            where=str(file),
            fix=f"make {file.parent} writable, or free space on its disk",
        ) from None
    finally:
        draft.unlink(missing_ok=True)
