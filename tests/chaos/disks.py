"""Other file systems in place of a node's state directory: a separate disk that is really frozen (FIFREEZE), and
a directory that two nodes share, like homes on NFS."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.rows import NotHere

from l40s_lab.namespaces.mounts import Spaces, in_child
from l40s_lab.node.living import find_node
from l40s_lab.syscalls import attach, clone_tree, detach

STATE = "/var/lib/l40s-deploy"
_FIFREEZE, _FITHAW = 0xC0045877, 0xC0045878
"""linux/fs.h"""
_SIZE = 256 << 20


@dataclass
class Disks:
    """File systems mounted over the state directories of a lab's nodes. A separate disk stays until its node goes."""

    lab: str
    _own: dict[str, int] = field(default_factory=dict)
    """By node: its file system's root directory, open."""
    _shared: tuple[str, ...] = ()

    def give(self, node: str) -> None:
        """A new ext4 in place of its state directory, if it has none yet; empty."""
        if node in self._own:
            return
        with tempfile.TemporaryDirectory(prefix="l40s-disk-") as folder:
            image, place = Path(folder, "image"), Path(folder, "mounted")
            place.mkdir()
            with image.open("wb") as file:
                file.truncate(_SIZE)
            for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(place)]):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise NotHere(f"{command[0]}: {done.stderr.strip()}")
            try:
                self._own[node] = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
                self._over(node, place)
            finally:
                subprocess.run(["umount", "--lazy", place], check=True)

    def freeze(self, node: str) -> None:
        """Every writer blocks (fsfreeze(8))."""
        fcntl.ioctl(self._own[node], _FIFREEZE, 0)

    def thaw(self, node: str) -> None:
        fcntl.ioctl(self._own[node], _FITHAW, 0)

    def share(self, nodes: Sequence[str]) -> None:
        """One empty directory in place of all their state directories."""
        with tempfile.TemporaryDirectory(prefix="l40s-shared-", ignore_cleanup_errors=True) as folder:
            place = Path(folder)
            place.chmod(0o755)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "shared", place], check=True)
            try:
                for node in nodes:
                    self._over(node, place)
                    self._shared = (*self._shared, node)
            finally:
                subprocess.run(["umount", "--lazy", place], check=True)

    def part(self) -> None:
        """Give each node its own directory again."""
        for node in self._shared:
            self._in(node, lambda: detach(STATE))
        self._shared = ()

    def close(self) -> None:
        """Thaw everything, and release everything."""
        for node, root in self._own.items():
            with suppress(OSError):
                self.thaw(node)
            os.close(root)
        self._own = {}

    def _over(self, node: str, place: Path) -> None:
        tree = clone_tree(place)

        def put() -> None:
            Path(STATE).mkdir(parents=True, exist_ok=True)
            attach(tree, STATE)

        try:
            self._in(node, put)
        finally:
            os.close(tree)

    def _in(self, node: str, work: Callable[[], None]) -> None:
        def inside() -> None:
            spaces.join()
            work()

        with Spaces(find_node(self.lab, node).pid, ["mnt"]) as spaces:
            in_child(inside)
