"""A node with real GPUs of this machine: this machine's /sys and driver, and a /dev with only the node's GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from l40s_lab import syscalls
from l40s_lab.life.blueprint import Show
from l40s_lab.namespaces import kernel_files
from l40s_lab.namespaces.node import Node, overlay
from l40s_lab.node import files as node_files
from l40s_lab.node import host_gpus

_QUIET = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
_PROGRAMS = ("/bin", "/lib", "/lib64", "/opt", "/sbin", "/usr")
"""A container's runtime mounts the driver's libraries below these, one by one."""


class HostNode(Node):
    """Like a node with emulated hardware, without the hardware."""

    def _mount_kernel_files(self, _: Path) -> None:
        syscalls.mount("proc", self._root / "proc", "proc", _QUIET)
        syscalls.mount("sysfs", self._root / "sys", "sysfs", _QUIET | syscalls.MS_RDONLY)

    def _mount_devices(self) -> None:
        devices = self._root / "dev"
        kernel_files.mount_devices(devices, ())
        for device in self.blueprint.devices[self.index]:
            _bind_file(device, devices / host_gpus.inside(device))

    def _show_all(self) -> None:
        for point in _mounted_below(_PROGRAMS, self.separate):
            if not any(point.startswith(show.inside) for show in self.blueprint.shows):
                self._show_point(point)
        for show in self.blueprint.shows:
            if show.inside == host_gpus.MODELS or not self._overlay_show(show):
                self._show(show)

    def _overlay_show(self, show: Show) -> bool:
        """Show it below a writable layer of the node's own: `tuning push` writes to the engine's environment. False if
        no layer can be put above it."""
        target, name = self._root / show.inside.lstrip("/"), show.inside.strip("/").replace("/", "-")
        upper, work = (self._disk / f"{kind}-{name}" for kind in ("upper", "work"))
        for folder in (target, upper, work):
            folder.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            overlay(show.outside, target, upper=upper, work=work)
            return True
        return False

    def _show_point(self, point: str) -> None:
        if Path(point).is_dir():
            self._show(Show(outside=point, inside=point))
        else:
            _bind_file(point, self._root / point.lstrip("/"))

    def _write_lab_folder(self, folder: Path) -> None:
        node_files.write_name(folder, self.name)

    def _cover_proc(self) -> None:
        kernel_files.protect(self._root / "proc")
        parameters = self._root / host_gpus.PARAMETERS.lstrip("/")
        if parameters.exists():
            own = self._root / "run/l40s-lab/nvidia-params"
            own.write_text(host_gpus.without_new_files(parameters.read_text()))
            syscalls.bind(own, parameters)


def _bind_file(source: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        target.touch()
    syscalls.bind(source, target)


def _mounted_below(folders: tuple[str, ...], itself: tuple[str, ...]) -> Iterator[str]:
    """Mount points below these folders of this machine, in the order of mounting, that can be reached by their
    paths."""
    seen = set()
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        point = line.split()[4].encode().decode("unicode_escape")
        if point in seen or point in itself or not point.startswith(tuple(f"{folder}/" for folder in folders)):
            continue
        seen.add(point)
        if os.path.realpath(point) == point and Path(point).exists():
            yield point
