"""One node's part of a run as the controller staged it, its gang's secrets, and the check that nothing was changed.

Secrets belong to the gang, not to one run, so that somebody who does not have them can start the same plan again: files
for the engine's user, and the agent's own. All have mode 0600.

Root executes files from here (its own application, and a container's launch script), so nobody but root may be able to
write to them, or replace a file or folder: that is checked before every start.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import pwd
import re
import stat
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.node import files
from orchestrator.node.engine import logfile
from orchestrator.node.files import LAUNCH_FILE, RUN_FILE
from orchestrator.node.viewers import user_name
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.message import Unreadable, schema
from orchestrator.protocol.staging import Secrets, StagingRequest, launch_digest

SECRETS_FILE = "secrets.json"
BEFORE_FILE = "secrets.before.json"
"""Secrets that the newest plan replaced, for a rollback to the plan before it; `of_run`: whose they were."""
_AGAIN = "find out who changed it, then stage it again by `up` with --gang and --model"
_MOVE = "set l40s_state_dir to a directory that only root can write to, or remove it (default: /var/lib/l40s-deploy)"


@schema(frozen=True, slots=True, kw_only=True)
class Run(StagingRequest):
    """The staged data, and its folder. Key and secrets are in separate files there."""

    folder: str

    def path(self, name: str) -> str:
        """A file in the run's folder."""
        return f"{self.folder}/{name}"

    @property
    def state(self) -> str:
        """The state directory that it lies in."""
        return self.folder.partition("/gangs/")[0]

    @property
    def unit_name(self) -> str:
        """Name of the run's transient unit or container, in characters that systemd and Docker allow. The nodes of a
        lab may share one systemd or Docker."""
        return "l40s-deploy-" + re.sub(r"[^A-Za-z0-9_.-]", "_", f"{self.gang}-{self.node}-{self.run_id}")

    def owner(self) -> tuple[int, int] | None:
        """User and group of the engine's user, where files are to be given to him; None for our own.

        Raises KeyError where there is none.
        """
        if self.engine_user is None or os.geteuid() != 0:
            return None
        user = pwd.getpwnam(self.engine_user)
        return user.pw_uid, user.pw_gid

    def link_key(self) -> bytes:
        """The run's secret for the leader link."""
        text = files.read_text(self.path(files.KEY_FILE))
        if not text:
            raise DeployError(
                "the run's key is missing", where=self.path(files.KEY_FILE), fix="run `up` again", kind="no-key"
            )
        return bytes.fromhex(text.strip())

    def hidden_words(self) -> tuple[str, ...]:
        """Words that must not appear in the engine's log."""
        return logfile.secrets_of(self.env, self.flags, kept_secrets(self.gang_dir).redact)

    def authorization(self) -> str:
        """The header that the engine's HTTP requires, '' for none."""
        return kept_secrets(self.gang_dir).authorization

    def secret_file(self, name: str) -> str:
        """Path of one of the gang's secret files; '' for none."""
        return secret_path(self.gang_dir, name)

    @property
    def gang_dir(self) -> str:
        """Folder for files of the gang, not of one run."""
        return os.path.dirname(os.path.dirname(self.folder))


def staged_in(folder: str) -> Run:
    """The run that was staged in a folder. Raises DeployError if there is none."""
    return run_of(files.read_json(f"{folder}/{files.RUN_FILE}"), folder)


def run_of(request: Mapping[str, Any], folder: str) -> Run:
    """From a staging request. Raises DeployError for a field that is missing or unreadable, naming it."""
    staged = Run.read({**request, "folder": folder})
    if isinstance(staged, Unreadable):
        raise DeployError(f"no staging request: {staged}", where=folder, fix="run `up` again", kind="bad-request")
    words = (*staged.argv, *staged.env, *staged.env.values(), staged.model_path, staged.working_dir, staged.venv_python)
    if any("\0" in word for word in words):
        raise DeployError(
            "the command line contains a NUL byte", where=folder, fix="run `up` again", kind="bad-request"
        )
    return staged


def keep_secrets(gang_dir: str, asked: Secrets, owner: tuple[int, int] | None, *, before: str = "") -> None:
    """Write the secrets of a staging request; the ones that they replace are kept as those of the run `before`."""
    replaced = f"{gang_dir}/{BEFORE_FILE}"
    if asked.of_run is not None:
        former = files.read_as(Secrets, replaced)
        if former is not None and former.of_run == asked.of_run:
            _write_secrets(gang_dir, replace(former, of_run=None), owner)
            files.remove(replaced)
        return
    had = kept_secrets(gang_dir)
    if before and had != asked:
        files.write_json(replaced, replace(had, of_run=before).as_json())
    _write_secrets(gang_dir, asked, owner)


def _write_secrets(gang_dir: str, asked: Secrets, owner: tuple[int, int] | None) -> None:
    wanted = {files.plain(file.name, "secret file"): file.text for file in asked.files}
    for file in kept_secrets(gang_dir).files:
        if file.name not in wanted:
            files.remove(secret_path(gang_dir, file.name))
    for name, text in wanted.items():
        files.write(f"{gang_dir}/{name}", text, owner=owner)
    if asked == Secrets():
        files.remove(f"{gang_dir}/{SECRETS_FILE}")
    else:
        files.write_json(f"{gang_dir}/{SECRETS_FILE}", asked.as_json())


def kept_secrets(gang_dir: str) -> Secrets:
    """A gang's secrets; empty if none were kept. Of the engine's files an older release noted the names alone."""
    raw = files.read_json(f"{gang_dir}/{SECRETS_FILE}")
    if isinstance(noted := raw.get("files"), list):
        texts = {name: files.read_text(secret_path(gang_dir, name)) for name in noted if isinstance(name, str)}
        raw["files"] = [
            {"name": entry, "text": texts[entry] or ""} if isinstance(entry, str) else entry for entry in noted
        ]
    secrets = Secrets.read(raw)
    return Secrets() if isinstance(secrets, Unreadable) else secrets


def secret_path(gang_dir: str, name: str) -> str:
    """Path of one of the gang's secret files; '' for none."""
    return f"{gang_dir}/{files.plain(name, 'secret file')}" if name else ""


def digest_of(request: StagingRequest) -> str:
    """Digest of the script in a staging request, also from an older controller. Raises DeployError if the request's own
    digest differs."""
    digest = launch_digest(request.launch_script)
    if request.launch_sha256 not in ("", digest):
        raise DeployError(
            "the launch script is not the plan's: its SHA-256 differs", where="request", fix=_AGAIN, kind="bad-request"
        )
    return digest


def refuse_others_folder(folder: str) -> None:
    """As root: raises DeployError if another user could put a file into the folder, or replace the folder. In a
    directory with the sticky bit, root's entries are safe (inode(7))."""
    if os.geteuid() != 0:
        return
    path = pathlib.Path(folder)
    real = pathlib.Path(os.path.realpath(folder))
    for part in (path, *path.parents, real, *real.parents):
        try:
            state = os.lstat(part)
        except FileNotFoundError:
            continue  # we will create it, in a folder that is checked here
        if state.st_uid != 0:
            raise _others(part, f"belongs to {user_name(state.st_uid)}")
        if not stat.S_ISLNK(state.st_mode) and state.st_mode & 0o022 and not state.st_mode & stat.S_ISVTX:
            raise _others(part, "can be written by users other than its owner")


def _others(part: pathlib.Path, what: str) -> DeployError:
    return DeployError(
        f"{what}, and root would execute files below it", where=str(part), fix=_MOVE, kind="not-root-alone"
    )


def script_of(run: Run) -> bytes:
    """The launch script's text. Raises DeployError if a staged file has changed, or if another user can change it."""
    refuse_others_folder(run.folder)
    _read(run.path(RUN_FILE))
    text = _read(run.path(LAUNCH_FILE))
    if run.launch_sha256 and hashlib.sha256(text).hexdigest() != run.launch_sha256:
        what = "was changed since it was staged: its SHA-256 is not the plan's"
        raise DeployError(what, where=run.path(LAUNCH_FILE), fix=_AGAIN, kind="changed")
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
        raise DeployError(f"can't be read: {error.strerror}", where=path, fix=_AGAIN, kind="changed") from None
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if state.st_uid != os.geteuid():
            what = f"belongs to {user_name(state.st_uid)}, and {user_name(os.geteuid())} would execute it"
            raise DeployError(what, where=path, fix=_AGAIN, kind="not-root-alone")
        if state.st_mode & 0o022 or not stat.S_ISREG(state.st_mode):
            raise DeployError(
                "can be written by users other than its owner", where=path, fix=_AGAIN, kind="not-root-alone"
            )
        return file.read()
