"""Tuned kernel configs of this node's engine. Verb `tuned`: which there are, as raw text; changes and executes nothing.
Verb `tune`: install some where the engine looks, or undo that, completely or not at all.

Places are below the engine's root, or absolute. With `check` nothing is changed and the answer says what would be.

What was put is kept in `VENV/share/l40s-tuning/`: record.json with the digest of each file of ours, and the originals
that they replaced. It is written before a file is, so that a kill in between leaves nothing unknown.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.node import files
from orchestrator.node.look import environment
from orchestrator.node.os_errors import errno_name
from orchestrator.node.requests import request_of
from orchestrator.node.viewers import user_name
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.jobs import TuneAnswer, TuneRequest
from orchestrator.protocol.looks import Holdings, TunedRequest

PACKAGE = "sglang"
MOST_BYTES = 1 << 20
"""Of one file; a config for 18 batch sizes has three kilobytes."""
MOST_FILES = 4096
RECORD = "share/l40s-tuning"
_NAME = re.compile(r"[EN]=\d+,[NK]=\d+,device_name=[^/]*\.json")
_RELEASE = re.compile(r"\d+(?:\.\d+)*")


def held(request: dict[str, Any]) -> dict[str, Any]:
    """Verb `tuned`: read one environment."""
    asked = request_of(TunedRequest, request)
    venv, folders = pathlib.Path(asked.venv), asked.folders
    root = engine_root(venv)
    look = _FoldersRead(root, folders.device)
    if root is not None or folders.moe.startswith("/"):
        if folders.by_triton:
            for name in look.names(folders.moe) or ():
                if name.startswith("triton_"):
                    look.folder(f"{folders.moe}/{name}")
        else:
            look.folder(folders.moe)
    if root is not None:
        look.folder(folders.linear)
    return Holdings(
        root=str(root) if root else "",
        versions=environment.versions(venv),
        folders=look.folders,
        absent=tuple(look.absent),
        errors=look.errors,
    ).as_json()


def engine_root(venv: pathlib.Path) -> pathlib.Path | None:
    """The folder that holds the package `sglang`: site-packages, or what a .pth file of a source install names."""
    for site in environment.site_packages(venv):
        for candidate in (site, *_named_by_pth(site)):
            if (candidate / PACKAGE / "srt").is_dir():
                return candidate
    return None


def _named_by_pth(site: pathlib.Path) -> Iterator[pathlib.Path]:
    for file in sorted(site.glob("*.pth")):
        with contextlib.suppress(OSError), open(files.opened(file), encoding="utf-8", errors="replace") as opened:
            yield from [pathlib.Path(line) for line in opened.read(MOST_BYTES).splitlines() if line.startswith("/")]


class _FoldersRead:
    """What was read so far."""

    def __init__(self, root: pathlib.Path | None, device: str) -> None:
        self._root, self._files = root or pathlib.Path("/"), 0
        self._named = re.compile(rf"[EN]=\d+,[NK]=\d+,device_name={re.escape(device)}(,.*|_down)?\.json")
        self.folders: dict[str, dict[str, str]] = {}
        self.absent: list[str] = []
        self.errors: dict[str, str] = {}

    def names(self, folder: str) -> list[str] | None:
        """None where it can't be listed, or is not there."""
        try:
            return sorted(os.listdir(self._root / folder))
        except OSError as error:
            self.absent.append(folder)
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                self.errors[folder] = errno_name(error)
            return None

    def folder(self, folder: str) -> None:
        """Every config for this GPU in one folder."""
        if (names := self.names(folder)) is None:
            return
        texts = self.folders.setdefault(folder, {})
        for name in filter(self._named.fullmatch, names):
            if self._files < MOST_FILES and (text := self._text(f"{folder}/{name}")) is not None:
                self._files += 1
                texts[name] = text

    def _text(self, path: str) -> str | None:
        try:
            with open(files.opened(self._root / path), "rb") as file:
                data = file.read(MOST_BYTES + 1)
        except OSError as error:
            self.errors[path] = errno_name(error)
            return None
        if len(data) > MOST_BYTES:
            self.errors[path] = "EFBIG"
            return None
        return data.decode("utf-8", "surrogateescape")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Verb `tune`: put or take back, or say what that would do."""
    asked = request_of(TuneRequest, request)
    venv = pathlib.Path(asked.venv)
    if (root := engine_root(venv)) is None:
        fix = "install the stack with `l40s-deploy prepare`, or set l40s_venv to its virtual environment"
        raise DeployError("no engine is installed in this environment", where=str(venv), fix=fix, kind="no-stack")
    versions = environment.versions(venv)
    with files.state_failures(str(venv)), _Keeping(venv, dry=asked.check) as kept:
        if asked.remove:
            _take_back(kept)
        else:
            _refuse_another_engine(versions, asked, venv)
            for place in asked.files:  # before anything is touched
                _refuse_elsewhere(root, root / place)
            for place, text in asked.files.items():
                _put(kept, str(root / place), text)
    done = {what: tuple(places) for what, places in kept.done.items()}
    return TuneAnswer(triton=versions.get("triton", ""), left=kept.left, **done).as_json()


class _Keeping:
    """The record of what is ours, held by one process at a time. dry: nothing is changed.

    done: the files by what happened to them; left: those left alone, with the reason
    """

    def __init__(self, venv: pathlib.Path, *, dry: bool) -> None:
        self.folder, self.dry = venv / RECORD, dry
        self.done: dict[str, list[str]] = {"written": [], "unchanged": [], "restored": [], "removed": []}
        self.left: dict[str, str] = {}
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
            what, fix = "another command is changing the tuned configs here", "wait for the other `tuning push`"
            raise DeployError(what, where=str(self.folder), fix=fix, kind="lock-held") from None
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

    def before(self, place: str) -> str:
        """Its digest; '' where ours replaced none."""
        return _digest_of(str(self.original(place))) if self.ours.get(place, {}).get("original") else ""

    def _forget(self) -> None:
        for name in ("record.json", "lock"):
            (self.folder / name).unlink(missing_ok=True)
        for folder in (self.folder / "originals", self.folder, self.folder.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _refuse_another_engine(versions: Mapping[str, str], asked: TuneRequest, venv: pathlib.Path) -> None:
    wanted, installed = asked.engine_version, versions.get("sglang", "")
    if wanted and installed and _RELEASE.findall(wanted)[:1] != _RELEASE.findall(installed)[:1]:
        what = f"sglang {installed} is installed, but the pack is for {wanted}: other versions use other file names"
        raise DeployError(
            what, where=str(venv), fix="pull a pack from a node with this version, or tune for it", kind="wrong-stack"
        )


def _refuse_elsewhere(root: pathlib.Path, path: pathlib.Path) -> None:
    """A config's name, in a folder that is what it is called. Raises DeployError."""
    try:
        files.plain_path(str(path).lstrip("/"), hidden=True)
    except ValueError as wrong:
        raise DeployError(str(wrong), where="request", fix=files.FIX, kind="bad-request") from None
    if not _NAME.fullmatch(path.name):
        raise DeployError(
            f"{str(path)!r} is not a path for a tuned config", where="request", fix=files.FIX, kind="bad-request"
        )
    if root in path.parents:
        files.refuse_links(root, path.relative_to(root).as_posix())
    if path.is_symlink():
        what, fix = "is a symbolic link that `tuning push` did not make", "remove the link, then push again"
        raise DeployError(what, where=str(path), fix=fix, kind="outside")


def _put(kept: _Keeping, place: str, text: str) -> None:
    now, fresh = _digest_of(place), _digest(text)
    if now == fresh:
        kept.done["unchanged"].append(place)
        return
    own = kept.ours.get(place)
    if own and now not in (own["sha256"], kept.before(place), ""):
        what = "this file was installed by `tuning push`, and has been changed since"
        raise DeployError(
            what, where=place, fix="save a copy elsewhere, delete the file, then push again", kind="changed"
        )
    kept.done["written"].append(place)
    folder = os.path.dirname(place)
    if kept.dry:
        for needed in (folder, str(kept.folder)):
            _refuse_unwritable(needed)
        return
    if not own and now:
        kept.original(place).parent.mkdir(exist_ok=True)
        files.write(str(kept.original(place)), _read(place), mode=0o644)
    original = "yes" if now else ""
    kept.ours[place] = {"sha256": fresh, "original": own["original"] if own else original}
    kept.made += [made for made in _absent(folder) if made not in kept.made]
    kept.save()
    _write(place, text)


def _write(place: str, text: str) -> None:
    """As root: for whom the folder belongs to, so that the environment stays its owner's."""
    folder = os.path.dirname(place)
    os.makedirs(folder, exist_ok=True)
    status = os.stat(folder)
    files.write(place, text, mode=0o644, owner=(status.st_uid, status.st_gid) if os.geteuid() == 0 else None)


_KEPT = (
    "; the original is in %s: to restore it, delete the changed file and run `l40s-deploy tuning push --remove` again"
)


def _advice(saved: pathlib.Path, before: str) -> str:
    """Where the original is, if there was one."""
    return _KEPT % saved if before else ""


def _take_back(kept: _Keeping) -> None:
    for place in list(kept.ours):
        own, now, saved, before = kept.ours[place], _digest_of(place), kept.original(place), kept.before(place)
        if changed := now not in (own["sha256"], before, ""):
            advice = _advice(saved, before)
            kept.left[place] = f"it has been changed since, and is left unchanged{advice}"
        else:
            kept.done["restored" if own["original"] else "removed"].append(place)
        if kept.dry:
            _refuse_unwritable(os.path.dirname(place))
            continue
        if changed and before:
            continue
        if not changed and own["original"] and now != before:
            _write(place, _read(str(saved)))
        elif now == own["sha256"]:
            pathlib.Path(place).unlink(missing_ok=True)
        del kept.ours[place]
        kept.save()
        saved.unlink(missing_ok=True)
    if kept.dry:
        return
    _remove_made(kept)


def _remove_made(kept: _Keeping) -> None:
    for folder in sorted(kept.made, key=len, reverse=True):  # those that we made; one that has other files now stays
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    kept.made = []
    kept.save()


def _absent(folder: str) -> list[str]:
    """The folders above and including this one that are not there yet."""
    path = pathlib.Path(folder)
    return [str(folder_above) for folder_above in (path, *path.parents) if not folder_above.exists()]


def _refuse_unwritable(folder: str) -> None:
    """What would be made is made in the nearest folder that exists."""
    path = next(
        folder_above for folder_above in (pathlib.Path(folder), *pathlib.Path(folder).parents) if folder_above.exists()
    )
    if not os.access(path, os.W_OK | os.X_OK):
        fix = "set `ansible_become: true` for this node, or log in as the environment's owner"
        raise DeployError(
            f"{user_name(os.geteuid())} can't write to this directory", where=str(path), fix=fix, kind="no-access"
        )


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
