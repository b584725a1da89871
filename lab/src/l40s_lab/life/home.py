"""A lab's directory on this machine, and the lock on it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from l40s_lab import files
from l40s_lab.life.blueprint import Blueprint
from l40s_lab.processes import Identity, those
from orchestrator.loading.which import lab_root
from orchestrator.protocol.errors import InputError, LockHeld

SUPERVISOR = "supervisor.json"
_NAMESPACES = "l40s_lab.namespaces.supervisor"
SUPERVISORS = {0: "l40s_lab.loopback.supervisor", 1: _NAMESPACES, 2: _NAMESPACES}
"""Level -> the module of the process that a lab runs below."""
INVENTORY = "inventory.yml"
LOG = "log"
_LOCK_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Home:
    """The directory of one lab, whether or not the lab exists."""

    name: str
    path: Path

    @property
    def mark(self) -> str:
        """Label of this lab's kernel objects; always the same for a directory."""
        return hashlib.sha256(str(self.path).encode()).hexdigest()[:8]

    @property
    def inventory(self) -> Path:
        """Written last: it exists only once the lab can be used."""
        return self.path / INVENTORY

    def blueprint(self) -> Blueprint | None:
        """The lab's blueprint, None if it can't be read (for example, if another version of ours wrote it)."""
        try:
            return Blueprint.read(self.path)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def supervisor(self) -> Identity | None:
        """The process that all of the lab runs below, None if none was recorded."""
        try:
            return Identity(**json.loads((self.path / SUPERVISOR).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def strays(self) -> list[Identity]:
        """Supervisors of this very directory, found by command line: those of a lab whose files were removed."""
        wanted = [[b"-m", module.encode(), os.fsencode(self.path), b""] for module in SUPERVISORS.values()]
        return list(those(lambda entry: (entry / "cmdline").read_bytes().split(b"\0")[-4:] in wanted))

    def record_supervisor(self, pid: int) -> None:
        """Record the process that the lab runs below."""
        identity = Identity.of(pid)
        if identity is None:
            raise OSError(f"process {pid} ended immediately")
        files.put(self.path / SUPERVISOR, json.dumps(asdict(identity)))

    def log_tail(self, lines: int = 4) -> str:
        """The last lines written by the lab's own processes."""
        try:
            return " / ".join((self.path / LOG).read_text(errors="replace").strip().splitlines()[-lines:])
        except OSError:
            return ""


def home(name: str) -> Home:
    """The directory of a lab with this name."""
    return Home(name, lab_root() / name)


@contextmanager
def held() -> Iterator[None]:
    """One `lab up` or `lab down` at a time on this machine, so that two labs don't take the same addresses."""
    root = lab_root()
    handle = _lock(root)
    try:
        yield
    finally:
        with suppress(OSError):
            root.rmdir()  # works only once the last lab is gone
        os.close(handle)


def _lock(root: Path) -> int:
    end = time.monotonic() + _LOCK_DEADLINE_S
    while True:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        _refuse_strangers(root)
        try:
            handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if _try_lock(handle) and _is_still(root, handle):
            return handle
        os.close(handle)
        if time.monotonic() > end:
            raise LockHeld("another `lab up` or `lab down` is running", where=str(root), fix="wait for it, or stop it")
        time.sleep(0.02)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(root: Path, handle: int) -> bool:
    """The directory that we locked has not been removed by the previous holder."""
    try:
        there, ours = root.stat(), os.fstat(handle)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _refuse_strangers(root: Path) -> None:
    owner = root.stat().st_uid if root.exists() else os.geteuid()
    if owner not in (os.geteuid(), 0):
        raise InputError(
            f"belongs to user {owner}, not to the current user",
            where=str(root),
            fix="set L40S_LAB_ROOT to a directory of your own",
        )
