"""What this machine keeps: JSON documents and what a user asked for, written completely or not at all; the audit log, a
line for each action; and a folder for each run.

The audit's line is on each node of the gang too (`gangs/GANG/audit.jsonl` in its state directory), since there may be
several controllers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.model.lacks import fix_of
from orchestrator.node.bounded_log import append_line
from orchestrator.protocol.errors import InputError

T = TypeVar("T")


def state_folder(name: str = "") -> Path:
    """$XDG_STATE_HOME/l40s-deploy/NAME, by default below ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(base) / "l40s-deploy" / name


def write_document(file: Path, document: Any) -> None:
    """Replace it as a whole. Raises InputError where it can't be written."""
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    write_whole(file, text, folders=0o700, fix=f"make {file.parent} writable, or free space on its disk")


def write_whole(
    path: Path, text: str, *, over: bool = True, folders: int | None = None,
    fix: str = "choose a file in a writable directory",
) -> None:  # fmt: skip
    """Write a file by name; a reader never sees half of it. folders: mode of those above it that are missing. Raises
    InputError where it can't be written, and where it exists and may not be written over."""
    draft = draft_of(path)
    try:
        if folders is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=folders)
        draft.write_text(text, "utf-8", "backslashreplace")  # lone surrogates, of bytes that are no UTF-8
        if over:
            draft.replace(path)
        else:
            path.hardlink_to(draft)
    except OSError as failure:
        if not over and path.exists():
            fix = "choose another file, or remove this one"
            raise InputError("this file already exists", where=str(path), fix=fix) from None
        raise cant_be_written(path, failure, fix) from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def expect_writable(path: Path, fix: str, *, new: bool = False) -> None:
    """Before nodes are asked, or hours are measured, for what will be written there. new: it may not exist yet. Raises
    InputError."""
    draft = draft_of(path)
    try:
        if new and os.path.lexists(path):
            raise InputError("exists already", where=str(path), fix=fix)
        if not path.parent.is_dir():
            raise InputError("its folder does not exist", where=str(path), fix=f"create {path.parent}, or {fix}")
        if path.is_dir():
            raise InputError("is a folder", where=str(path), fix=fix)
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        draft.unlink()
    except OSError as failure:
        raise cant_be_written(path, failure, fix) from None


def draft_of(path: Path) -> Path:
    """Beside a file, where this process writes it before it gets its name."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def cant_be_written(path: Path, failure: OSError, fix: str) -> InputError:
    """What it came to, in words. fix: for what is no lack of room"""
    words = f"can't be written: {failure.strerror or failure}"
    return InputError(words, where=str(path), fix=fix_of(failure, fix))


def read_document(file: Path, made: Callable[[Any], T | None]) -> T | None:
    """What a document of ours is made into; None where there is none, or it is damaged. made: of its JSON; raises what
    Python raises for another shape"""
    try:
        return made(json.loads(file.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


FORMAT = 1


def looks_file(inventory: str) -> Path:
    """$XDG_STATE_HOME/l40s-deploy/doctor/ID.json, one for each inventory."""
    return named_file("doctor", str(Path(inventory).resolve()))


def keep_look(file: Path, at: float, findings: Sequence[Mapping[str, Any]]) -> None:
    """Replace it. at: our epoch seconds. Raises InputError where it can't be written."""
    write_document(file, {"format": FORMAT, "at": at, "findings": list(findings)})


def last_look(file: Path) -> tuple[float, list[dict[str, Any]]] | None:
    """(when, findings); None where there was no look, or it can't be read."""

    def made(document: Any) -> tuple[float, list[dict[str, Any]]] | None:
        findings = [dict(finding) for finding in document["findings"]]
        texts = (finding[key] for finding in findings for key in ("id", "severity", "node", "title", "fix"))
        sound = document["format"] == FORMAT and all(isinstance(text, str) for text in texts)
        return (float(document["at"]), findings) if sound else None

    return read_document(file, made)


def health_file(inventory: str, gang: str) -> Path:
    """$XDG_STATE_HOME/l40s-deploy/health/ID.json: what the doctor last said of a gang that serves, as `keep_look`."""
    return named_file("health", f"{Path(inventory).resolve()} {gang}")


def told_file(inventory: str) -> Path:
    """$XDG_STATE_HOME/l40s-deploy/told/ID.json, one for each inventory: by gang, what its people were told last."""
    return named_file("told", str(Path(inventory).resolve()))


def unheard_file(inventory: str) -> Path:
    """$XDG_STATE_HOME/l40s-deploy/unheard/ID.json: by receiver of notifications, why the last one did not arrive."""
    return named_file("unheard", str(Path(inventory).resolve()))


def read_told(file: Path) -> dict[str, str]:
    """Of either; empty where nothing is kept, or it can't be read."""
    return read_document(file, lambda kept: {str(gang): str(word) for gang, word in kept.items()}) or {}


def keep_told(file: Path, kept: dict[str, str]) -> None:
    """Replace it. If that fails, a message may be sent twice."""
    with contextlib.suppress(InputError):
        write_document(file, kept)


def last_start(gang: str, model: str, stack: str) -> dict[str, float]:
    """Seconds since staging at which each phase began; empty where nothing is kept, or it can't be read."""
    made = read_document(
        _file(gang, model, stack),
        lambda kept: {str(name): float(at) for name, at in kept["began"].items() if math.isfinite(at)},
    )
    return made or {}


def keep_start(gang: str, model: str, stack: str, began: Mapping[str, float]) -> None:
    """Replace it. A record that can't be written is none: the next start shows no time left at first."""
    seconds = {name: round(at, 1) for name, at in began.items()}
    with contextlib.suppress(InputError):
        write_document(_file(gang, model, stack), {"gang": gang, "model": model, "stack": stack, "began": seconds})


def least_free(gang: str, plan_id: str) -> int | None:
    """The least GPU memory that was ever seen free in a run of this plan, in bytes; None where nothing is kept."""
    return read_document(_free_file(gang, plan_id), lambda kept: int(kept["least_free_bytes"]))


def keep_least_free(gang: str, plan_id: str, free: int) -> None:
    """Unless less was seen. A record that can't be written is none: the next look writes it."""
    known = least_free(gang, plan_id)
    if known is None or free < known:
        with contextlib.suppress(InputError):
            document = {"gang": gang, "plan_id": plan_id, "least_free_bytes": free, "at": time.time()}
            write_document(_free_file(gang, plan_id), document)


def _free_file(gang: str, plan_id: str) -> Path:
    return named_file("least-free", f"{gang}\0{plan_id}")


def _file(gang: str, model: str, stack: str) -> Path:
    return named_file("starts", "\0".join((gang, model, stack)))


def named_file(folder: str, of: str) -> Path:
    """ID.json, a file for each inventory, start or plan."""
    return state_folder(folder) / f"{hashlib.sha256(of.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}.json"


def audit_file() -> Path:
    """$XDG_STATE_HOME/l40s-deploy/audit.jsonl, by default below ~/.local/state."""
    return state_folder() / "audit.jsonl"


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
        for folder in sorted(ours, key=lambda kept: kept.stat().st_mtime)[: max(0, len(ours) + 1 - KEPT)]:
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
