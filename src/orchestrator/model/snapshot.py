"""A snapshot: the raw text that one node's files and NVML gave, exactly as read.

It is what the probe ships, what `discover --save` writes, what a bug report carries and what tests are
made of. It behaves like a small read-only file system; everything that is parsed is parsed from here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

FORMAT = 1
NOT_RECORDED = "not recorded"
"""NVML's error in a snapshot of a machine that was recorded without NVML."""
ANSWERS = frozenset({"ENOENT", "ENOTDIR", "EISDIR", "EINVAL", "EOPNOTSUPP", "ENOTSUP", "ENODATA"})
"""Errors by which the kernel says that there is no such file, or no value. All others (no rights, a hang, no time)
say nothing of what is there."""
_MAX_LINKS = 40  # as Linux: MAXSYMLINKS in include/linux/namei.h
_DEEP = 64  # folders above a path that are placed one in the other; a hostile node's path may have thousands


def part(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What facts say under a name, where that is a mapping; {} for anything else."""
    found = facts.get(name)
    return found if isinstance(found, Mapping) else {}


class Unread(Exception):
    """A path that was asked for and could not be read; `reason` is the errno name or 'not collected'."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True)
class Snapshot:
    """One node's raw facts.

    node:     name in the inventory
    taken_at: seconds since the epoch, by the node's own clock
    files:    absolute path -> text (undecodable bytes as surrogate escapes), at its real path
    links:    absolute path -> the symbolic link's target, as read
    errors:   absolute path -> errno name (EACCES, EINVAL, ...) where reading failed
    nvml:     what NVML answered, by its function names: {'driver': ..., 'devices': [{...}]}, or {'error': ...}
    host:     facts that are no file: uname, python version, limits, addresses by interface, clock
    """

    node: str
    taken_at: float
    files: Mapping[str, str]
    links: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    nvml: Mapping[str, Any] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _children(self) -> dict[str, set[str]]:
        children: dict[str, set[str]] = {}
        for path in (*self.files, *self.links, *self.errors):
            current = path
            while current not in ("/", ""):
                parent, slash, name = current.rpartition("/")
                current = parent or slash
                beside = children.get(current)
                if beside is not None:
                    beside.add(name)
                    break
                children[current] = {name}
        return children

    @cached_property
    def _folders(self) -> dict[str, str]:
        """Folders that were resolved before: most files lie beside others that are asked for."""
        return {}

    def realpath(self, path: str) -> str:
        """The path with every symbolic link resolved; a loop ends where Linux would end it."""
        place = self._placed(path)
        if place and place not in self.links:
            return place
        ahead = place and self._placed(_followed(place, self.links[place]))
        return ahead if ahead and ahead not in self.links else self._resolved(path)

    def _placed(self, path: str) -> str:
        """The path in its folder's real place, '' where its last part is no name."""
        folder, _, name = path.rpartition("/")
        if not folder or name in ("", ".", ".."):
            return ""
        known = self._folders.get(folder)
        if known is None:
            place = self._placed(folder) if folder.count("/") <= _DEEP else ""
            known = place if place and place not in self.links else self._resolved(folder).rstrip("/")
            self._folders[folder] = known
        return f"{known}/{name}"

    def _resolved(self, path: str) -> str:
        parts = [part for part in reversed(path.split("/")) if part]
        resolved = ""
        followed = 0
        while parts:
            part = parts.pop()
            if part == ".":
                continue
            if part == "..":
                resolved = resolved.rpartition("/")[0]
                continue
            candidate = f"{resolved}/{part}"
            target = self.links.get(candidate)
            if target is None or followed >= _MAX_LINKS:
                resolved = candidate
                continue
            followed += 1
            if target.startswith("/"):
                resolved = ""
            parts += [piece for piece in reversed(target.split("/")) if piece]
        return resolved or "/"

    def read(self, path: str) -> str:
        """The text at a path, links followed, without the trailing newline. Raises Unread."""
        real = self.realpath(path)
        try:
            return self.files[real].rstrip("\n")
        except KeyError:
            raise Unread(path, self.errors.get(real, "not collected")) from None

    def text(self, path: str, default: str = "") -> str:
        """The stripped text at a path, or the default where it was not readable."""
        try:
            return self.read(path).strip()
        except Unread:
            return default

    def unread(self, path: str) -> str:
        """Why nothing is known of a path, or of a folder above it; '' where it was read, or the kernel answered that
        there is nothing."""
        for place in (path, self.realpath(path)):
            parts = place.split("/")
            for count in range(len(parts), 0, -1):
                reason = self.errors.get("/".join(parts[:count]), "ENOENT")
                if reason not in ANSWERS:
                    return reason
        return ""

    def names(self, path: str) -> tuple[str, ...]:
        """Names inside a directory, sorted; empty where there is none."""
        return tuple(sorted(self._children.get(self.realpath(path), ())))

    def exists(self, path: str) -> bool:
        real = self.realpath(path)
        return real in self.files or real in self._children

    def walk(self, path: str) -> Iterator[str]:
        """Every readable file below a directory, by its real path."""
        top = self.realpath(path)
        for name in sorted(self._children.get(top, ())):
            below = posixpath.join(top, name)
            if below in self.files:
                yield below
            elif below not in self.links:
                yield from self.walk(below)


def _followed(place: str, target: str) -> str:
    """Where a link at a real path leads."""
    if target.startswith("/"):
        return target
    folder = place.rpartition("/")[0]
    while target.startswith("../"):
        folder, target = folder.rpartition("/")[0], target[3:]
    return f"{folder}/{target}"


def snapshot_json(snapshot: Snapshot) -> dict[str, Any]:
    """The document; strings may hold lone surrogates (bytes that are no UTF-8), so it is written as ASCII."""
    return {
        "format": FORMAT,
        "node": snapshot.node,
        "taken_at": snapshot.taken_at,
        "files": dict(snapshot.files),
        "links": dict(snapshot.links),
        "errors": dict(snapshot.errors),
        "nvml": dict(snapshot.nvml),
        "host": dict(snapshot.host),
    }


def snapshot_from_json(raw: Any) -> Snapshot:
    """Read the document. Raises ValueError if it is not a snapshot or has another format."""
    if not isinstance(raw, Mapping):
        raise _refusal("found no JSON object")
    if raw.get("format") != FORMAT:
        raise _refusal(f"found format {raw.get('format')!r}, wanted {FORMAT}")
    taken_at = raw.get("taken_at", 0.0)
    if not isinstance(taken_at, (int, float)) or isinstance(taken_at, bool):
        raise _refusal(f"found taken_at {taken_at!r}, wanted seconds since the epoch")
    try:
        taken_at = float(taken_at)
    except OverflowError:
        raise _refusal("found a taken_at beyond any time") from None
    return Snapshot(
        node=str(raw.get("node") or ""),
        taken_at=taken_at,
        files=_texts(raw, "files"),
        links=_texts(raw, "links"),
        errors=_texts(raw, "errors"),
        nvml=_object(raw, "nvml"),
        host=_object(raw, "host"),
    )


def _object(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key) or {}
    if not isinstance(value, dict):
        raise _refusal(f"found {key} that is no object")
    if _beyond(value):
        raise _refusal(f"found a number beyond 64 bits in {key}")
    return value


def _beyond(value: Any) -> bool:
    """Some number inside is larger than any that a machine has: rules calculate with them."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, list):
            left += one
        elif isinstance(one, int) and abs(one) >> 64:
            return True
    return False


def _texts(raw: Mapping[str, Any], key: str) -> dict[str, str]:
    values = _object(raw, key)
    for path, text in values.items():
        if not isinstance(text, str):
            raise _refusal(f"found {key}[{path!r}] that is no text")
    return values


def _refusal(words: str) -> ValueError:
    """One kind of refusal, whatever is wrong with the document."""
    return ValueError(words)
