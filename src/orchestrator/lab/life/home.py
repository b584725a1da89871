"""Where a lab keeps itself on this machine, and one hand at a time on it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.lab import files
from orchestrator.lab.life.blueprint import Blueprint
from orchestrator.lab.processes import Identity
from orchestrator.loading.which import lab_root
from orchestrator.model.errors import InputError, LockHeld

SUPERVISOR = "supervisor.json"
_NAMESPACES = "orchestrator.lab.namespaces.supervisor"
SUPERVISORS = {0: "orchestrator.lab.loopback.supervisor", 1: _NAMESPACES, 2: _NAMESPACES}
"""Level -> the module that a lab's processes live below."""
INVENTORY = "inventory.yml"
LOG = "log"
_LOCK_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Home:
    """The directory of one lab, whether or not the lab is there."""

    name: str
    path: Path

    @property
    def mark(self) -> str:
        """What the kernel's things that belong to this lab are named by; the same for the same directory."""
        return hashlib.sha256(str(self.path).encode()).hexdigest()[:8]

    @property
    def inventory(self) -> Path:
        """Written last, so that it is only there when the lab can be driven."""
        return self.path / INVENTORY

    def blueprint(self) -> Blueprint | None:
        """The lab's blueprint, None if it can't be read (for example, another version of ours wrote it)."""
        try:
            return Blueprint.read(self.path)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def supervisor(self) -> Identity | None:
        """The process that all of the lab runs below, None if none was ever recorded."""
        try:
            return Identity(**json.loads((self.path / SUPERVISOR).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def strays(self) -> list[Identity]:
        """Supervisors of this very directory, found by their command line: a lab whose files were removed."""
        wanted = [[b"-m", module.encode(), os.fsencode(self.path), b""] for module in SUPERVISORS.values()]
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):  # another user's, or gone
                identity = Identity.of(int(entry.name))
                if identity and (entry / "cmdline").read_bytes().split(b"\0")[-4:] in wanted:
                    found.append(identity)
        return found

    def record_supervisor(self, pid: int) -> None:
        """Say which process the lab lives below."""
        identity = Identity.of(pid)
        if identity is None:
            raise OSError(f"process {pid} ended immediately")
        files.put(
            self.path / SUPERVISOR,
            json.dumps({"pid": identity.pid, "start": identity.start, "boot": identity.boot}),
        )

    def log_tail(self, lines: int = 4) -> str:
        """The last lines that the lab's own processes wrote."""
        try:
            return " / ".join((self.path / LOG).read_text(errors="replace").strip().splitlines()[-lines:])
        except OSError:
            return ""


def home(name: str) -> Home:
    """The place of a lab of this name."""
    return Home(name, lab_root() / name)


@contextmanager
def held() -> Iterator[None]:
    """One `lab up` or `lab down` at a time on this machine, so that two labs don't take one address range."""
    root = lab_root()
    handle = _lock(root)
    try:
        yield
    finally:
        with suppress(OSError):
            root.rmdir()  # only when the last lab has gone
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
    """The directory that we locked has not been removed by who held it before."""
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
