"""Who did what to which gang, and why: one line for every action of every verb that changes something.

The same line is on each node of the gang (`gangs/GANG/audit.jsonl` in its state directory), since there may be
several controllers.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.node.files import append_line

FILE = "audit.jsonl"


def audit_file() -> Path:
    """$XDG_STATE_HOME/l40s-deploy/audit.jsonl, by default below ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(base) / "l40s-deploy" / FILE


def note(action: str, *, gang: str, holder: Mapping[str, Any], why: str = "", file: Path | None = None) -> None:
    """Append a line; the log is bounded and has one predecessor.

    A disk that takes none must not keep anybody from stopping a gang.
    """
    path = file or audit_file()
    line = {
        "at": time.time(),
        "action": action,
        "gang": gang,
        "who": holder.get("who"),
        "host": holder.get("host"),
        "pid": holder.get("pid"),
        "command": holder.get("command"),
        "why": why,
    }
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        append_line(str(path), json.dumps(line))
