"""Verb `tune`: install tuned configs where this node's engine looks, or undo that. Completely or not at all.

Request: protocol.jobs.TuneRequest; places are below the engine's root, or absolute.
Answer: {"root", "triton", "written", "unchanged", "restored", "removed": [places], "left": {place: why}, "folders":
[made]}.
With `check` nothing is changed and the answer says what would be.

What was put is kept in `VENV/share/l40s-tuning/`: record.json with the digest of each file of ours, and the originals
that they replaced. It is written before a file is, so that a kill in between leaves nothing unknown.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.node import below, files
from orchestrator.node.failure import Failure
from orchestrator.node.look import installed
from orchestrator.node.requests import request_of
from orchestrator.protocol.jobs import TuneRequest
from orchestrator.tuning.on_node import tuned

RECORD = "share/l40s-tuning"
_NAME = re.compile(r"[EN]=\d+,[NK]=\d+,device_name=[^/]*\.json")
_RELEASE = re.compile(r"\d+(?:\.\d+)*")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Put or take back, or say what that would do."""
    asked = request_of(TuneRequest, request)
    venv = pathlib.Path(asked.venv)
    root = tuned.engine_root(venv)
    if root is None:
        fix = "install the stack with `l40s-deploy prepare`, or set l40s_venv to its virtual environment"
        raise Failure("no-stack", "no engine is installed in this environment", str(venv), fix)
    versions = installed.versions(venv)
    with files.state_failures(str(venv)), _Keeping(venv, dry=asked.check) as kept:
        if asked.remove:
            _take_back(kept)
        else:
            _refuse_another_engine(versions, asked, venv)
            for place, text in _places(root, asked).items():
                _put(kept, place, text)
    return {"root": str(root), "triton": versions.get("triton", ""), **kept.done()}


@dataclass
class _Done:
    """The files by what happened to them, and those left alone with the reason."""

    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


class _Keeping:
    """The record of what is ours, held by one process at a time. dry: nothing is changed."""

    def __init__(self, venv: pathlib.Path, *, dry: bool) -> None:
        self.folder, self.dry, self.said = venv / RECORD, dry, _Done()
        raw = files.read_json(str(self.folder / "record.json"))
        self.ours: dict[str, dict[str, str]] = dict(raw.get("files") or {})
        for place in self.ours:
            _refuse_elsewhere(venv, pathlib.Path(place))
        self.made: list[str] = list(raw.get("folders") or [])
        self._lock: int | None = None

    def __enter__(self) -> _Keeping:
        if self.dry:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            fix = "wait for the other `tuning push` to finish"
            raise Failure(
                "lock-held", "another command is changing the tuned configs here", str(self.folder), fix
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            if not self.ours and not self.made:
                self._forget()
            os.close(self._lock)

    def save(self) -> None:
        """Readable by all: it says nothing that the files beside the engine don't."""
        if not self.dry:
            files.write_json(str(self.folder / "record.json"), {"files": self.ours, "folders": self.made}, mode=0o644)

    def original(self, place: str) -> pathlib.Path:
        """Where the file that ours replaced is kept."""
        return self.folder / "originals" / f"{hashlib.sha256(place.encode()).hexdigest()[:32]}.json"

    def done(self) -> dict[str, Any]:
        return {**vars(self.said), "folders": self.made}

    def _forget(self) -> None:
        for name in ("record.json", "lock"):
            (self.folder / name).unlink(missing_ok=True)
        for folder in (self.folder / "originals", self.folder, self.folder.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _refuse_another_engine(versions: Mapping[str, str], asked: TuneRequest, venv: pathlib.Path) -> None:
    wanted, found = asked.engine_version, versions.get("sglang", "")
    if wanted and found and _release(wanted) != _release(found):
        raise Failure(
            "wrong-stack",
            f"sglang {found} is installed, but the pack is for {wanted}: other versions use other file names",
            str(venv),
            "pull a pack from a node with this version, or tune for it",
        )


def _release(version: str) -> str:
    match = _RELEASE.match(version)
    return match[0] if match else version


def _places(root: pathlib.Path, asked: TuneRequest) -> dict[str, str]:
    """Absolute path -> text; a name that is no config's is refused before anything is touched."""
    places = {}
    for place, text in asked.files.items():
        path = root / place
        _refuse_elsewhere(root, path)
        places[str(path)] = text
    return places


def _refuse_elsewhere(root: pathlib.Path, path: pathlib.Path) -> None:
    """A config's name, in a folder that is what it is called. Raises Failure."""
    try:
        below.plain_path(str(path).lstrip("/"), hidden=True)
    except ValueError as wrong:
        raise Failure("bad-request", str(wrong), "request", below.FIX) from None
    if not _NAME.fullmatch(path.name):
        raise Failure("bad-request", f"{str(path)!r} is not a path for a tuned config", "request", below.FIX)
    if root in path.parents:
        below.refuse_links(root, path.relative_to(root).as_posix())
    if path.is_symlink():
        raise Failure(
            "outside",
            "is a symbolic link that `tuning push` did not make",
            str(path),
            "remove the link, then push again",
        )


def _put(kept: _Keeping, place: str, text: str) -> None:
    now, fresh = _digest_of(place), _digest(text)
    if now == fresh:
        kept.said.unchanged.append(place)
        return
    own = kept.ours.get(place)
    before = _digest_of(str(kept.original(place))) if own and own["original"] else ""
    if own and now not in (own["sha256"], before, ""):
        raise Failure(
            "changed",
            "this file was installed by `tuning push`, and has been changed since",
            place,
            "save a copy elsewhere, delete the file, then push again",
        )
    kept.said.written.append(place)
    folder = os.path.dirname(place)
    if kept.dry:
        for needed in (folder, str(kept.folder)):
            _refuse_unwritable(needed)
        return
    if not own and now:
        kept.original(place).parent.mkdir(exist_ok=True)
        files.write(str(kept.original(place)), _read(place), mode=0o644)
    kept.ours[place] = {"sha256": fresh, "original": own["original"] if own else ("yes" if now else "")}
    kept.made += [made for made in _absent(folder) if made not in kept.made]
    kept.save()
    os.makedirs(folder, exist_ok=True)
    files.write(place, text, mode=0o644, owner=_owner(folder))


_KEPT = (
    "; the original is in %s: to restore it, delete the changed file and run `l40s-deploy tuning push --remove` again"
)


def _take_back(kept: _Keeping) -> None:
    for place in list(kept.ours):
        own, now = kept.ours[place], _digest_of(place)
        saved = kept.original(place)
        before = _digest_of(str(saved)) if own["original"] else ""
        changed = now not in (own["sha256"], before, "")
        if changed:
            kept.said.left[place] = "it has been changed since, and is left unchanged" + (
                _KEPT % saved if before else ""
            )
        elif own["original"]:
            kept.said.restored.append(place)
        else:
            kept.said.removed.append(place)
        if kept.dry:
            _refuse_unwritable(os.path.dirname(place))
            continue
        if changed and before:
            continue
        if not changed and own["original"] and now != before:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            files.write(place, _read(str(saved)), mode=0o644, owner=_owner(os.path.dirname(place)))
        elif now == own["sha256"]:
            pathlib.Path(place).unlink(missing_ok=True)
        del kept.ours[place]
        kept.save()
        saved.unlink(missing_ok=True)
    if not kept.dry:
        _remove_made(kept)


def _remove_made(kept: _Keeping) -> None:
    """Folders that we created, innermost first; one that has other files now stays."""
    for folder in sorted(kept.made, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    kept.made = []
    kept.save()


def _absent(folder: str) -> Iterator[str]:
    """The folders above and including this one that are not there yet."""
    path = pathlib.Path(folder)
    while not path.exists():
        yield str(path)
        path = path.parent


def _refuse_unwritable(folder: str) -> None:
    """What would be made is made in the nearest folder that exists."""
    path = pathlib.Path(folder)
    while not path.exists():
        path = path.parent
    if not os.access(path, os.W_OK | os.X_OK):
        raise Failure(
            "no-access",
            f"{_user()} can't write to this directory",
            str(path),
            "set `ansible_become: true` for this node, or log in as the environment's owner",
        )


def _owner(folder: str) -> tuple[int, int] | None:
    """As root: whom the folder belongs to, so that the environment stays its owner's."""
    if os.geteuid() != 0:
        return None
    status = os.stat(folder)
    return status.st_uid, status.st_gid


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def _read(path: str) -> str:
    with open(files.opened(path), encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _digest_of(path: str) -> str:
    """'' where there is no such file."""
    try:
        return _digest(_read(path))
    except FileNotFoundError:
        return ""
