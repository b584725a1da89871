"""Where a gang's files are on a node, how they are written (completely or not at all), and which paths are refused.

Paths that another machine's answer names stay below the folder that they are for: the controller asks this before it
acts on a node's list, and every node before it acts on the controller's.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.node import viewers
from orchestrator.node.os_errors import FULL, no_room
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.message import M, Unreadable, parsed
from orchestrator.protocol.verbs import GangRequest

PAST_FILE = "past.jsonl"
"""In a gang's folder: the reports of runs whose folders are gone, the newest last."""
BEGUN_FILE = "begun.json"
"""In a gang's folder: what a command has begun on the gang and not finished."""
RUN_FILE = "run.json"
KEY_FILE = "key"
LAUNCH_FILE = "launch.sh"
REPORT_FILE = "report.json"
AGENT_FILE = "agent.json"
PROCESSES_FILE = "processes.json"
GOAL_FILE = "goal.json"
ENGINE_LOG = "engine.log"
AGENT_LOG = "agent.log"
EVENTS_LOG = "events.jsonl"
TRANSPORT_FILE = "transport.json"
HANG_FILE = "hang.json"
"""These are in a run's folder."""
SEEN = frozenset({
    "current", BEGUN_FILE, REPORT_FILE, AGENT_FILE, PROCESSES_FILE, GOAL_FILE, TRANSPORT_FILE, HANG_FILE,
})  # fmt: skip
"""What viewers may read, beside locks and audits."""
BLOCK = 4096
"""Bytes that a file system gives a file at a time, or a multiple of them."""
_READS, _REREAD_S = 3, 0.01
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def state_dir(asked: str | None) -> str:
    """The one that was asked for, else /var/lib/l40s-deploy for root and ~/.local/state/l40s-deploy for others. Raises
    DeployError where we may not look into it."""
    state = asked or _usual_state_dir()
    viewers.refuse_stranger(state)
    return state


def _usual_state_dir() -> str:
    if os.geteuid() == 0:
        return "/var/lib/l40s-deploy"
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return f"{base}/l40s-deploy"


def gang_dir(state: str, gang: object) -> str:
    """Folder of one gang; a name that could leave the folder is refused."""
    return f"{state}/gangs/{plain(gang, 'gang')}"


def run_dir(state: str, gang: object, run_id: object) -> str:
    """Folder of one run of a gang."""
    return f"{gang_dir(state, gang)}/runs/{plain(run_id, 'run_id')}"


def gangs(state: str) -> list[str]:
    """Names of the gangs that have ever been staged here."""
    try:
        return sorted(name for name in os.listdir(f"{state}/gangs") if _NAME.fullmatch(name))
    except FileNotFoundError:
        return []


def current_run(state: str, gang: object) -> str | None:
    """Folder of the run that was staged last, None where there is none."""
    name = read_text(f"{gang_dir(state, gang)}/current")
    return run_dir(state, gang, name.strip()) if name and _NAME.fullmatch(name.strip()) else None


def wanted_run(asked: GangRequest) -> str:
    """Folder of the run that a request names by gang and run_id, or the gang's current one."""
    state, gang = state_dir(asked.state_dir), asked.gang
    folder = run_dir(state, gang, asked.run_id) if asked.run_id else current_run(state, gang) or ""
    if not folder or not os.path.isdir(folder):
        if asked.run_id:
            what, fix = f"the files of run {asked.run_id} of gang {gang!r} are not kept here", "l40s-deploy history"
            raise DeployError(what, where=f"{state}/gangs", fix=fix, kind="no-run")
        raise DeployError(
            f"no run of gang {gang!r} is staged", where=f"{state}/gangs", fix="run `up` again", kind="no-run"
        )
    return folder


def read_text(path: str) -> str | None:
    """A file's text; None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None


def read_json(path: str) -> dict[str, Any]:
    """A JSON object from a file; empty if there is none. Files are replaced atomically; only on a full disk one is
    written over in its place, so that what can't be read is read again a moment later."""
    for _ in range(_READS):
        text = read_text(path) or ""
        value = parsed(text)
        if not text or isinstance(value, dict):
            break
        time.sleep(_REREAD_S)
    return value if isinstance(value, dict) else {}


def read_as(kind: type[M], path: str) -> M | None:
    """A message from a file; None where there is none, or nothing that can be read as one."""
    document = kind.read(read_json(path))
    return None if isinstance(document, Unreadable) else document


def opened(path: str | os.PathLike[str]) -> int:
    """A descriptor of a regular file, to read. Raises OSError for what is none: a pipe would be waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.ENXIO, "not a regular file", os.fspath(path))


def json_of(path: str | os.PathLike[str]) -> Any:
    """What a regular file of somebody else's says. Raises OSError and ValueError."""
    with open(opened(path), "rb") as file:
        return json.load(file)


def size(path: str | os.PathLike[str]) -> int:
    """Bytes, -1 where there is no such file."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def identity(path: str) -> tuple[int, int] | None:
    """(inode, time of its last change in ns): another one after the file was replaced; None where there is none."""
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns


def write(path: str, text: str, *, mode: int = 0o600, owner: tuple[int, int] | None = None) -> None:
    """Replace a file by name; readers see the old text or the new, and never with wider rights."""
    temporary = f"{path}.{os.getpid()}.new"
    if mode == 0o600 and _is_seen(path):
        mode = viewers.file_mode(path)
    remove(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        os.fchmod(descriptor, mode)
        if owner is not None:
            os.fchown(descriptor, *owner)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _is_seen(path: str) -> bool:
    name = os.path.basename(path)
    return name in SEEN or name.startswith("lock.")


def write_json(path: str, value: Any, *, mode: int = 0o600) -> None:
    """Replace a JSON file."""
    write(path, _compact(value) + "\n", mode=mode)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def write_in_any_case(path: str, text: str) -> None:
    """Replace a file by name; on a full disk, write over the old one in its own place, where that has the room. Blanks
    fill its last block, so that it has room for a longer text later. Nobody else may write it at the time."""
    whole = text.encode("utf-8", "surrogateescape")
    blanks = -len(whole) % BLOCK
    try:
        write(path, text.ljust(len(text) + blanks))
    except OSError as error:
        room = size(path)
        if error.errno not in FULL or len(whole) > room:
            raise
        with open(path, "r+b", buffering=0) as file:
            file.write(whole.ljust(room))


def write_json_in_any_case(path: str, value: Any) -> None:
    """The same for a JSON file; readers ask for it by `read_json`, since it may be half written for a moment."""
    write_in_any_case(path, _compact(value) + "\n")


def remove(path: str) -> None:
    """Take a file away that may be gone already. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


@contextlib.contextmanager
def state_failures(where: str) -> Iterator[None]:
    """Turn an operating system error into a failure in words."""
    try:
        yield
    except OSError as error:
        if (failure := no_room(error, str(error.filename or where))) is not None:
            raise failure from None
        if isinstance(error, PermissionError) and viewers.is_one():
            raise viewers.refuse_change(where) from None
        raise DeployError(
            f"{error.strerror or error} ({error.filename or where})",
            where=where,
            fix="give the SSH user write access (or set `ansible_become: true`), or set another l40s_state_dir",
            kind="no-access",
        ) from None


def plain(name: object, what: str) -> str:
    """A name that stays in its folder; anything else is refused."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DeployError(f"{what} {name!r} is not a plain name", where="request", fix="", kind="bad-request")
    return name


LONGEST = 1024
"""Characters of one path; a hub's deepest has 200."""
FIX = "nothing was written there. A node that sends such a list is faulty or compromised: inspect it, then try again"


def plain_path(value: object, *, hidden: bool = False) -> str:
    """A relative path, as it is. hidden: whether a part may begin with a dot.

    Raises ValueError: absolute, `..`, empty parts, control characters (NUL too), undecodable, too long.
    """
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not a path")  # noqa: TRY004 - told like every other odd path
    if not value or len(value) > LONGEST:
        raise ValueError(f"a path of {len(value)} characters ({_shown(value)}): wanted 1 to {LONGEST}")
    if not value.isprintable():
        raise ValueError(f"the path {_shown(value)} has characters that are not allowed in a checkpoint's file names")
    for part in value.split("/"):
        if part in ("", ".", ".."):
            raise ValueError(f"the path {_shown(value)} leaves its directory, or is not in its simplest form")
        if part.startswith(".") and not hidden:
            raise ValueError(f"the path {_shown(value)} has a hidden part")
    return value


def refuse_clashes(paths: Iterable[str]) -> None:
    """Raises ValueError where a path comes twice, or is a file for one and a folder for another."""
    names: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        if path in names:
            raise ValueError(f"the path {_shown(path)} is listed twice")
        names.add(path)
        parts = path.split("/")
        folders |= {"/".join(parts[:depth]) for depth in range(1, len(parts))}
    if both := sorted(names & folders):
        raise ValueError(f"the path {_shown(both[0])} is both a file and a directory")


def refuse_links(root: str | os.PathLike[str], path: str) -> None:
    """Raises DeployError where root is a link, or a folder between root and root/path is one (whatever it leads to).

    The last part is not judged: a file is replaced by name, which never writes through a link.
    """
    at = os.fspath(root)
    for part in ("", *path.split("/")[:-1]):
        at = os.path.join(at, part) if part else at
        if os.path.islink(at):
            what = f"is a symbolic link to {os.readlink(at)}, but files must be written below it"
            raise DeployError(what, where=at, fix="replace the link with a directory", kind="outside")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
