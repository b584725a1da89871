"""Reads files below a root and keeps what they gave: text, links and errors, by the machine's own absolute paths.

They are read in a child process, which may hang: one wedged file of /sys costs its own deadline, not the entire probe.
A read that sleeps in the kernel can't be ended, so the child is left behind; it holds none of our descriptors. What it
touched last is known from shared memory: that path is recorded as ETIMEDOUT, and another child goes on without it.

A child that waits for a processor does not hang: what counts against a path is the time that the child sleeps there
(states D and S), and the processor time that it takes there.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import select
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from orchestrator.node import processes, supervision
from orchestrator.node.os_errors import errno_name

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
            self.files[self.real(path)] = data[: max(enough, len(data.rstrip(b"\0")))].hex()

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
        resolved, followed = "", 0
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


FILE_DEADLINE_S = 1.0
"""Asleep, or computing, at one path."""
DEADLINE_S = 10.0
"""By the wall clock, for everything: what is not read by then is unknown, on a busy machine too."""
_LONGEST_PATH = 1000
POLL_S = 0.1


class ProgressPage:
    """A page that two processes share: how many paths were touched, and the one that is touched now."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self._count = 0

    def begin(self, path: str) -> None:
        """Called by the child before it touches a path."""
        self._count += 1
        name = path.encode("utf-8", "surrogateescape")[:_LONGEST_PATH]
        self._page[: 10 + len(name)] = self._count.to_bytes(8, "little") + len(name).to_bytes(2, "little") + name

    def now(self) -> tuple[int, str]:
        """Called by the parent: (count, path)."""
        head = self._page[:10]
        length = int.from_bytes(head[8:], "little")
        return int.from_bytes(head[:8], "little"), self._page[10 : 10 + length].decode("utf-8", "surrogateescape")


class StallTimer:
    """How long a process has been at the same place, as far as it had what it needs to go on.

    Each look adds the time since the last one if the process sleeps (D, S, T: proc(5)), at most twice the pause that
    is meant between two looks, since whoever looks may have waited for a processor too; and the processor time that it
    used. One that is runnable and waits for its turn gets no older.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._place: object = None
        self.begin(None)

    def begin(self, place: object) -> None:
        """It moved: count anew."""
        self._place, self._last = place, time.monotonic()
        self._used, self._asleep_s = supervision.processor_s(self._pid), 0.0

    def spent_s(self, place: object) -> float:
        """Seconds that count against it at this place."""
        if place != self._place:
            self.begin(place)
            return 0.0
        now, process = time.monotonic(), processes.read(self._pid)
        if process is None or process.state in "DST":
            self._asleep_s += min(now - self._last, 2 * POLL_S)
        self._last = now
        return self._asleep_s + supervision.processor_s(self._pid) - self._used


HardwareParts = Mapping[str, Callable[[SnapshotReader], object]]
"""What a look reads, one kind of thing each, by their names for messages; parts do not depend on each other."""


def read_hardware(root: str, parts: HardwareParts, *, hung: dict[str, str] | None = None) -> dict[str, Any]:
    """{'files', 'links', 'errors'} of all parts.

    A path that hangs is an error of its own (ETIMEDOUT); parts that were not read before the deadline are named in
    errors under their own names. hung: paths that are known to hang, and those that are found to, for the next time.
    """
    gathered: dict[str, dict[str, str]] = {"files": {}, "links": {}, "errors": {}}
    skip: dict[str, str] = {} if hung is None else hung
    left = list(parts)
    end = time.monotonic() + DEADLINE_S
    while left and time.monotonic() < end:
        done, stuck = _one_child(root, {name: parts[name] for name in left}, skip, gathered, end)
        left = left[done:]
        if stuck and left:
            skip[stuck] = gathered["errors"][stuck] = "ETIMEDOUT"
        elif left and not done:  # it died without a word; it would die again
            gathered["errors"][left.pop(0)] = "ECHILD"
    gathered["errors"] |= dict.fromkeys(left, "ETIMEDOUT")
    return gathered


def _one_child(
    root: str, parts: HardwareParts, skip: dict[str, str], gathered: dict[str, dict[str, str]], end: float
) -> tuple[int, str]:
    """How many parts came back, and the path that a child hung at ('' where it did not)."""
    heartbeat = ProgressPage()
    reader = SnapshotReader(root=root, begin=heartbeat.begin, skip=skip)

    def read_parts(file: BinaryIO) -> None:
        """The child: one line of JSON for each part."""
        for read in parts.values():
            read(reader)
            file.write(json.dumps(reader.take(), separators=(",", ":")).encode("ascii") + b"\n")
            file.flush()

    child, reading = forked(read_parts)
    stuck, buffer, patience = "", bytearray(), StallTimer(child)
    try:
        while time.monotonic() <= end:
            if select.select([reading], [], [], POLL_S)[0]:
                if not (data := os.read(reading, 1 << 20)):
                    break
                buffer += data
                patience.begin(heartbeat.now())
            elif patience.spent_s(place := heartbeat.now()) > FILE_DEADLINE_S:
                stuck = place[1]
                break
    finally:
        os.close(reading)
        supervision.kill_child(child)
    lines = bytes(buffer).split(b"\n")[:-1]
    for line in lines:
        for key, values in json.loads(line).items():
            gathered[key].update(values)
    return len(lines), stuck


def forked(work: Callable[[BinaryIO], object]) -> tuple[int, int]:
    """(process id, descriptor to read) of a child of this process that does its work, then ends, whatever happens.

    It holds no other descriptor of ours: whoever waits for our output must not wait for a child that hangs.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    status = 1
    try:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(quiet, descriptor)
        os.closerange(3, writing)
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        with open(writing, "wb") as file:
            work(file)
        status = 0
    finally:
        os._exit(status)
