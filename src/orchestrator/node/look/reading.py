"""Reads files below a root and keeps what they gave: text, links and errors, by the machine's own absolute paths."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.node.failure import errno_name

LARGEST_TEXT = 64 * 1024
"""Bytes kept of one file; nothing that is asked for is longer."""
_MAX_LINKS = 40  # as Linux: MAXSYMLINKS in include/linux/namei.h


def _unwatched(_: str) -> None:
    """Nobody waits for this reader."""


@dataclass
class SnapshotReader:
    """Gathers a snapshot's files, links and errors.

    root:  where the machine's file system is, '/' for the running one
    mount: the part of it that the root holds, '' for all of it ('/sys' where the root is a copy of /sys alone)
    begin: called with each path before it is touched, so that somebody else can tell where a read hangs
    skip:  paths that are not touched any more, with the reason that is recorded for them
    """

    root: str = "/"
    mount: str = ""
    begin: Callable[[str], None] = _unwatched
    skip: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    _plain: set[str] = field(default_factory=set)
    _folders: dict[str, str] = field(default_factory=dict)

    def text(self, path: str) -> str | None:
        """Keep a file's text; None where it can't be read. A missing file leaves no trace, any other error does."""
        data = self._bytes(path, LARGEST_TEXT)
        if data is None:
            return None
        text = data.decode("utf-8", "surrogateescape")
        self.files[self.real(path)] = text
        return text

    def search(self, path: str, wanted: str) -> None:
        """Record whether a file of any length contains a text: the text, or a message that it does not."""
        real = self.real(path)
        if self._skipped(real):
            return
        self.begin(real)
        try:
            with open(self._at(real), "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                there = content.find(wanted.encode()) >= 0
                self.files[real] = wanted if there else f"{len(content)} bytes without it"
        except ValueError:  # mmap: an empty file
            self.files[real] = "0 bytes without it"
        except OSError as error:
            self._failed(real, error)

    def texts(self, folder: str, names: Iterable[str]) -> None:
        """Keep several files of one folder."""
        for name in names:
            self.text(f"{folder}/{name}")

    def folder(self, path: str) -> None:
        """Keep every file directly in a folder."""
        self.texts(path, self.names(path))

    def below(self, path: str, depth: int) -> None:
        """Keep every file and link below a folder, down to a depth."""
        for name in self.names(path):
            inner = f"{path}/{name}"
            if self.link(inner):
                continue
            if self.is_folder(inner):
                if depth > 1:
                    self.below(inner, depth - 1)
            else:
                self.text(inner)

    def config_space(self, path: str, *, enough: int) -> None:
        """Keep a PCI configuration space as hexadecimal digits.

        What an unprivileged reader gets ends at 64 bytes. Zeros at the end of a full one are not kept beyond `enough`.
        """
        data = self._bytes(path, 4096)
        if data is not None:
            kept = data[: max(enough, len(data.rstrip(b"\0")))]
            self.files[self.real(path)] = kept.hex()

    def link(self, path: str) -> str:
        """Keep a symbolic link; returns the real path that it leads to, '' where there is none."""
        parent, _, name = path.rpartition("/")
        place = f"{self.real(parent)}/{name}" if parent else path
        return self.real(place) if self._target(place) is not None else ""

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted; none where it can't be listed."""
        if self._skipped(path):
            return []
        self.begin(path)
        try:
            return sorted(os.listdir(self._at(self.real(path))))
        except OSError as error:
            self._failed(path, error)
            return []

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder at a path; a link to one counts. False for a path that is skipped."""
        if self._skipped(path):
            return False
        self.begin(path)
        return os.path.isdir(self._at(self.real(path)))

    def real(self, path: str) -> str:
        """The path with its links resolved inside the root, each of them kept."""
        folder, _, name = path.rpartition("/")
        if not name or name in (".", ".."):
            return self._resolved(path)
        known = self._folders.get(folder)
        if known is None:
            known = self._folders[folder] = self._resolved(folder).rstrip("/")
        place = f"{known}/{name}"
        return place if self._target(place) is None else self._resolved(place)

    def _resolved(self, path: str) -> str:
        parts = [part for part in path.split("/") if part]
        resolved = ""
        followed = 0
        while parts:
            part = parts.pop(0)
            if part == ".":
                continue
            if part == "..":
                resolved = resolved.rpartition("/")[0]
                continue
            here = f"{resolved}/{part}"
            target = self._target(here) if followed < _MAX_LINKS else None
            if target is None:
                resolved = here
                continue
            followed += 1
            if target.startswith("/"):
                resolved = ""
            parts = [piece for piece in target.split("/") if piece] + parts
        return resolved or "/"

    def take(self) -> dict[str, Any]:
        """What was gathered since the last time, as the parts of a snapshot."""
        taken = {"files": self.files, "links": dict(self.links), "errors": self.errors}
        self.files, self.errors = {}, {}
        return taken

    def _target(self, path: str) -> str | None:
        if path in self._plain or self._skipped(path):
            return None
        if path in self.links:
            return self.links[path]
        self.begin(path)
        try:
            target = os.readlink(self._at(path))
        except OSError as error:
            if error.errno == errno.EINVAL:  # not a link
                self._plain.add(path)
            return None
        self.links[path] = target
        return target

    def _bytes(self, path: str, most: int) -> bytes | None:
        if self._skipped(path):
            return None
        real = self.real(path)
        self.begin(real)
        try:
            descriptor = os.open(self._at(real), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self._failed(real, error)
            return None
        try:
            return _whole(descriptor, most)
        except OSError as error:
            self._failed(real, error)
            return None
        finally:
            os.close(descriptor)

    def _at(self, path: str) -> str:
        below = path[len(self.mount) :] if path == self.mount or path.startswith(f"{self.mount}/") else "/.outside"
        return f"{self.root.rstrip('/')}{below}" or "/"

    def _skipped(self, path: str) -> bool:
        reason = self.skip.get(path)
        if reason is not None:
            self.errors[path] = reason
        return reason is not None

    def _failed(self, path: str, error: OSError) -> None:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
            self.errors[path] = errno_name(error)


def _whole(descriptor: int, most: int) -> bytes:
    """Files of /proc give their text in pieces; files of /sys in one."""
    data = os.read(descriptor, most)
    while 0 < len(data) < most:
        more = os.read(descriptor, most - len(data))
        if not more:
            break
        data += more
    return data
