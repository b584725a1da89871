"""Who may see what is on a node, and change nothing: members of a group that `prepare` gives the state directory to.

A state directory of that group hands the group on to all that is made in it (the set-group-ID bit, inode(7)); reports,
locks and audits are then readable by the group. Keys, launch scripts and what was staged never are; an engine's log
holds prompts, and is only where a file beside the gangs says so.
"""

from __future__ import annotations

import contextlib
import functools
import grp
import os
import pwd
import stat

from orchestrator.protocol.errors import DeployError

GROUP = "l40s-viewers"
NOT_OURS = "not-ours"
"""The kind of a refusal to who may only look, or not even that."""
LOGS_FILE = "viewers-logs"
"""In the state directory: they may read the engines' logs too."""
_READ = 0o040
_FOLDER, _FOLDER_SEEN = 0o711, 0o2751
"""0711: the engine's user may pass through to its launch script and see nothing else."""


@functools.lru_cache(maxsize=16)
def _is_group(number: int) -> bool:
    try:
        return grp.getgrgid(number).gr_name == GROUP
    except KeyError:
        return False


def see(folder: str) -> bool:
    """Whether a folder is the viewers' to look into."""
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return bool(found.st_mode & stat.S_ISGID) and _is_group(found.st_gid)


def folder_mode(state: str) -> int:
    """Of the folders between a state directory and a run's files."""
    return _FOLDER_SEEN if see(state) else _FOLDER


def file_mode(path: str) -> int:
    """Of a file that viewers may read, where there are any."""
    return 0o600 | (_READ if see(os.path.dirname(path)) else 0)


def log_mode(path: str) -> int:
    """Of an engine's log."""
    return file_mode(path) if os.path.exists(f"{_state_of(path)}/{LOGS_FILE}") else 0o600


def refuse_stranger(state: str) -> None:
    """Raises DeployError where we may not look into a state directory: what is not read is unknown, not absent."""
    gangs = f"{state}/gangs"
    try:
        owner = os.stat(gangs).st_uid
    except PermissionError:
        raise _unreadable(state, gangs) from None
    except OSError:
        return
    if not os.access(gangs, os.R_OK | os.X_OK):
        raise _unreadable(state, gangs)
    if owner != os.geteuid() != 0 and not os.path.exists("/proc/1/stat"):
        what = f"/proc shows {_me()} only his own processes (hidepid), so that nobody knows whether anything runs"
        raise DeployError(what, where="/proc", fix=f"mount -o remount,gid={GROUP} /proc", kind=NOT_OURS)


def refuse_unreadable_log(path: str) -> None:
    """Raises DeployError where there is a log that we may not read."""
    if _is_closed(path):
        what = f"{_me()} may not read the engine's log, which holds prompts"
        ask = "have `l40s_viewers_logs: true` set and `l40s-deploy prepare --tags viewers` run"
        fix = f"log in as {_owner(path)}, or {ask}"
        raise DeployError(what, where=path, fix=fix, kind=NOT_OURS)


def refuse_unreadable_plan(path: str) -> None:
    """The same of what was staged, which only its owner may carry out again."""
    if _is_closed(path):
        what = f"{_me()} may see this gang, and neither start nor change it: what was staged is {_owner(path)}'s alone"
        raise DeployError(
            what, where=path, fix=f"log in as {_owner(path)} (ansible_user, ansible_become)", kind=NOT_OURS
        )


def is_one() -> bool:
    """Whether we are a viewer."""
    return os.geteuid() != 0 and any(map(_is_group, os.getgroups()))


def only_looks(state: str) -> bool:
    """Whether we are a viewer of a state directory, which is another user's."""
    with contextlib.suppress(OSError):
        return is_one() and os.stat(state).st_uid != os.geteuid()
    return False


def refuse_changes(state: str) -> None:
    """Raises DeployError where a viewer asks for what only the owner of a state directory may do."""
    if only_looks(state):
        raise refuse_change(state)


def refuse_change(path: str) -> DeployError:
    """What a viewer is told who wants to change something."""
    what = f"{_me()} may see this gang, and not change it"
    return DeployError(what, where=path, fix=f"log in as {_owner(path)} (ansible_user, ansible_become)", kind=NOT_OURS)


def _is_closed(path: str) -> bool:
    return os.path.exists(path) and not os.access(path, os.R_OK)


def _unreadable(state: str, gangs: str) -> DeployError:
    what = f"{_me()} may not read {gangs}, so that nobody knows what runs"
    fix = (
        f"log in as {_owner(state)} (ansible_user, ansible_become); only to look: have `l40s_viewers: [{_me()}]` set"
        " and `l40s-deploy prepare --tags viewers` run"
    )
    return DeployError(what, where=state, fix=fix, kind=NOT_OURS)


def _state_of(path: str) -> str:
    return path.partition("/gangs/")[0]


def _me() -> str:
    return user_name(os.geteuid())


def _owner(path: str) -> str:
    """Whose it is; of what we can't look at, whose the folder above it is."""
    while path and not os.access(os.path.dirname(path), os.X_OK):
        path = os.path.dirname(path)
    try:
        return user_name(os.stat(path).st_uid)
    except OSError:
        return "root"


def user_name(number: int) -> str:
    """Of a user id; the number where it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
