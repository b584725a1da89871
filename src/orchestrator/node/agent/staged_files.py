"""Checks before every start that the files are those that were staged: owner, mode and digest.

Root executes files from here (its own application, and a container's launch script), so nobody but root may be able to
write to them, or replace a file or folder.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import pwd
import stat

from orchestrator.node.agent.run import Run
from orchestrator.node.failure import Failure
from orchestrator.node.files import LAUNCH_FILE, RUN_FILE
from orchestrator.protocol.staging import StagingRequest, launch_digest

_AGAIN = "find out who changed it, then stage it again with `l40s-deploy up --model NAME --gang GANG`"
_MOVE = "set l40s_state_dir to a directory that only root can write to, or remove it (default: /var/lib/l40s-deploy)"


def digest_of(request: StagingRequest) -> str:
    """Digest of the script in a staging request, also from an older controller. Raises Failure if the request's own
    digest differs."""
    found = launch_digest(request.launch_script)
    if request.launch_sha256 not in ("", found):
        raise Failure("bad-request", "the launch script is not the plan's: its SHA-256 differs", "request", _AGAIN)
    return found


def refuse_others_folder(folder: str) -> None:
    """As root: raises Failure if another user could put a file into the folder, or replace the folder. In a directory
    with the sticky bit, root's entries are safe (inode(7))."""
    if os.geteuid() != 0:
        return
    path = pathlib.Path(folder)
    real = pathlib.Path(os.path.realpath(folder))
    for part in (path, *path.parents, real, *real.parents):
        try:
            found = os.lstat(part)
        except FileNotFoundError:
            continue  # we will create it, in a folder that is checked here
        if found.st_uid != 0:
            raise _others(part, f"belongs to {_name(found.st_uid)}")
        if not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            raise _others(part, "can be written by users other than its owner")


def _others(part: pathlib.Path, what: str) -> Failure:
    return Failure("not-root-alone", f"{what}, and root would execute files below it", str(part), _MOVE)


def check(run: Run) -> None:
    """Raises Failure if a staged file has changed, or if another user can change it."""
    script(run)


def script(run: Run) -> bytes:
    """The launch script's text. Raises Failure if it is not the one that was staged."""
    refuse_others_folder(run.folder)
    _read(run.path(RUN_FILE))
    text = _read(run.path(LAUNCH_FILE))
    if run.launch_sha256 and hashlib.sha256(text).hexdigest() != run.launch_sha256:
        what = "was changed since it was staged: its SHA-256 is not the plan's"
        raise Failure("changed", what, run.path(LAUNCH_FILE), _AGAIN)
    return text


def in_memory(text: bytes) -> int:
    """A file descriptor from which an interpreter reads exactly this text. It can't be changed (memfd_create(2))."""
    import fcntl

    descriptor = os.memfd_create("launch.sh", os.MFD_ALLOW_SEALING)
    os.write(descriptor, text)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise Failure("changed", f"can't be read: {error.strerror}", path, _AGAIN) from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            what = f"belongs to {_name(found.st_uid)}, and {_name(os.geteuid())} would execute it"
            raise Failure("not-root-alone", what, path, _AGAIN)
        if found.st_mode & 0o022 or not stat.S_ISREG(found.st_mode):
            raise Failure("not-root-alone", "can be written by users other than its owner", path, _AGAIN)
        return file.read()


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
