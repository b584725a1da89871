"""A node of a level-2 lab: the real systemd as PID 1, on the root file system made for it."""

from __future__ import annotations

import os
import select
import shutil
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from l40s_lab import syscalls
from l40s_lab.life.blueprint import Blueprint
from l40s_lab.namespaces import cgroups
from l40s_lab.namespaces.layers import Shared
from l40s_lab.namespaces.node import PATH, Node
from l40s_lab.processes import to_nothing

_SYSTEMD = "/lib/systemd/systemd"
_BOOTED = "/run/l40s-lab/booted"
"""Socket on which systemd reports that it has booted, as to a container's manager (sd_notify(3), READY=1)."""


class SystemdNode(Node):
    """Started and released like any node; it is ready when its default target has been reached."""

    separate = ()

    def __init__(self, blueprint: Blueprint, index: int, shared: Shared, groups: Path) -> None:
        super().__init__(blueprint, index, shared)
        self._group = groups / self.name
        self._booted = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._booted_path = shared.memory / f"{self.name}.booted"
        self._booted.bind(str(self._booted_path))

    def live(self) -> None:
        """Child: become the node; never returns."""
        cgroups.enter(self._group)
        super().live()

    def is_built(self) -> bool:
        """Supervisor: wait until systemd has started all units of the boot; False if it ended before."""
        with self._booted:
            ended, says = os.pidfd_open(self.pid), self._booted.fileno()
            try:
                while says in select.select([says, ended], [], [])[0]:
                    if b"READY=1" in self._booted.recv(4096).splitlines():
                        return True
                return False
            finally:
                os.close(ended)

    def _hide_home(self) -> None:
        """Its home directories are its own: nothing to hide."""

    def _mount_kernel_files(self, own: Path) -> None:
        super()._mount_kernel_files(own)
        cgroups.show(self._root / "sys/fs/cgroup")

    def _write_run(self) -> None:
        super()._write_run()
        place = self._root / _BOOTED.lstrip("/")
        place.touch()
        syscalls.bind(self._booted_path, place)

    def _write_ssh(self, folder: Path) -> None:
        """The keys are where the distribution's own ssh.service expects them."""
        folder = self._root / "etc/ssh"
        for old in folder.glob("ssh_host_*"):
            old.unlink()
        shutil.copy(self.blueprint.path / "nodes" / self.name / "host_key", folder / "ssh_host_ed25519_key")
        (folder / "ssh_host_ed25519_key").chmod(0o600)
        shutil.copy(self.blueprint.path / "client.pub", folder / "authorized_keys")

    def _boot(self) -> NoReturn:
        with suppress(OSError):
            sys.stderr.flush()
        to_nothing(0, 1, 2)
        os.setsid()
        os.execve(  # noqa: S606 - a program, no shell
            _SYSTEMD,
            [_SYSTEMD, "--system", "--log-target=journal", "--show-status=no"],
            {"container": "l40s-lab", "PATH": PATH, "TERM": "dumb", "NOTIFY_SOCKET": _BOOTED},
        )
