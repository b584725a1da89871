"""Files that a run's engine leaves outside its folder: temporary files, and files in shared memory.

Each run has its own TMPDIR, which is removed with the run. Names in /dev/shm that contain the id of one of our
processes are removed once that process is dead (`sem.loky-13485-45r7sj5i`). Other names are removed if the engine's
family is known to create them (`sglang_loads_7d535b4ba690_469f67e4.shm`), the file is newer than our engine's start,
and no process has it open.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import pwd
import re
import shutil
import stat
from collections.abc import Collection

from orchestrator.node import processes
from orchestrator.node.agent.staged_run import Run
from orchestrator.node.files import RUN_FILE

LONGEST = 74
"""Longest path of a folder for sockets: sun_path holds 107 characters (unix(7)), and Python's multiprocessing adds 33
(`/pymp-XXXXXXXX/listener-XXXXXXXX`)."""
SHARED = "/dev/shm"  # noqa: S108 - where POSIX shared memory is (shm_overview(7))
_NUMBER = re.compile(r"(?<![0-9A-Za-z])\d{2,7}(?![0-9A-Za-z])")


def place(folder: str) -> str:
    """The TMPDIR of the run in this folder: below the state directory, or in /tmp if that path would be too long."""
    name = hashlib.sha256(folder.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    state = pathlib.Path(folder).parents[3]
    ours = str(state / "tmp" / name)
    return ours if len(ours) <= LONGEST else f"/tmp/l40s-deploy-{name}"  # noqa: S108 - made by mkdir, or not used


def make(run: Run) -> dict[str, str]:
    """Make the folder for the engine's user. Returns the variable that names it, {} if it can't be made."""
    path = pathlib.Path(place(run.folder))
    try:
        if not path.parent.is_dir():
            path.parent.mkdir()
            path.parent.chmod(0o711)  # the engine's user must be able to pass through
        path.mkdir(mode=0o700)
        if (owner := run.owner()) is not None:
            os.chown(path, *owner, follow_symlinks=False)
    except (OSError, KeyError):
        return {}
    return {"TMPDIR": str(path)}


def remove(folder: str) -> None:
    """Remove the folder that `make` made for the run in this folder; files that can't be removed stay."""
    path = place(folder)
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, ignore_errors=True)


def forget_shared(pids: Collection[int], user: str | None, where: str = SHARED) -> list[str]:
    """Remove files that our dead processes have left in shared memory; returns their names.

    pids: all our processes, past and present; user: the engine's user, None for ours
    """
    removed = []
    for path in _files_of(user, where):
        of = {int(number) for number in _NUMBER.findall(path.name)} & set(pids)
        if of and not any(processes.lives(pid) for pid in of):
            with contextlib.suppress(OSError):
                path.unlink()
                removed.append(path.name)
    return removed


def forget_named(run: Run, where: str = SHARED) -> list[str]:
    """Remove files with names of the engine's family that are newer than the run's staging and that no process has
    open.

    Returns their names.
    """
    try:
        since = os.stat(run.path(RUN_FILE)).st_mtime
    except OSError:
        return []
    patterns = run.watch.shared_names
    ours = [path for path in _files_of(run.engine_user, where) if any(path.match(pattern) for pattern in patterns)]
    had = _had_by_anybody(where) if ours else set()
    removed = []
    for path in ours:
        with contextlib.suppress(OSError):
            if path.lstat().st_ctime >= since and str(path) not in had:
                path.unlink()
                removed.append(path.name)
    return removed


def _had_by_anybody(where: str) -> set[str]:
    """Files in this folder that a living process has open or mapped (proc(5)), as far as we may look."""
    had: set[str] = set()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            lines = (process / "maps").read_text(errors="surrogateescape").splitlines()
            had.update(line[line.index("/") :] for line in lines if f" {where}/" in line)
        with contextlib.suppress(OSError):
            for entry in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    had.add(os.readlink(entry))
    return had


def _files_of(user: str | None, where: str) -> list[pathlib.Path]:
    try:
        owner = os.geteuid() if user is None else pwd.getpwnam(user).pw_uid
        entries = [(path, path.lstat()) for path in sorted(pathlib.Path(where).iterdir())]
    except (OSError, KeyError):
        return []  # the folder is gone: the next run's end looks again
    return [path for path, seen in entries if stat.S_ISREG(seen.st_mode) and seen.st_uid == owner]
