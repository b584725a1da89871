"""What was done on this machine: the audit log, a line for each action, and a folder for each run.

The same line is on each node of the gang (`gangs/GANG/audit.jsonl` in its state directory), since there may be
several controllers.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.model.errors import InputError
from orchestrator.node.bounded_log import append_line
from orchestrator.records.documents import state_folder, write_whole

FILE = "audit.jsonl"


def audit_file() -> Path:
    """$XDG_STATE_HOME/l40s-deploy/audit.jsonl, by default below ~/.local/state."""
    return state_folder() / FILE


def note(action: str, *, gang: str, holder: Mapping[str, Any], why: str = "") -> None:
    """Append a line; the log is bounded and has one predecessor.

    A disk that takes none must not keep anybody from stopping a gang.
    """
    path, who = audit_file(), {key: holder.get(key) for key in ("who", "host", "pid", "command")}
    line = {"at": time.time(), "action": action, "gang": gang, **who, "why": why}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        append_line(str(path), json.dumps(line))


KEPT = 200
"""Runs; a plan of four nodes takes some 100 KB."""


def _forget_old(newest: Path) -> None:
    """Folders of ours alone, which hold a plan; the oldest go first."""
    with contextlib.suppress(OSError):
        ours = [folder for folder in newest.parent.iterdir() if folder != newest and (folder / "plan.json").is_file()]
        for folder in sorted(ours, key=lambda one: one.stat().st_mtime)[: max(0, len(ours) + 1 - KEPT)]:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class RunRecord:
    """One run's folder. Where it can't be written (`trouble` says why) the run goes on without it."""

    folder: Path
    trouble: str = ""

    @classmethod
    def open(cls, run_id: str, plan: Mapping[str, Any]) -> RunRecord:
        """Make the folder and write plan.json."""
        record = cls(state_folder("runs") / run_id)
        try:
            write_whole(record.folder / "plan.json", json.dumps(plan, indent=2) + "\n", folders=0o700)
        except InputError as error:
            record.trouble = error.what
        _forget_old(record.folder)
        return record

    def event(self, what: str, **details: Any) -> None:
        """Append one line to events.jsonl."""
        if self.trouble:
            return
        line = json.dumps({"at": time.time(), "event": what, **details}, default=str)
        try:
            with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            self.trouble = str(error)
