"""A snapshot: the raw text that one node's files and NVML gave, exactly as read.

It is what the probe ships, what `discover --save` writes, what a bug report carries and what tests are
made of. It behaves like a small read-only file system; everything that is parsed is parsed from here.
"""

from __future__ import annotations

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


def part(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What facts say under a name, where that is a mapping; {} for anything else."""
    section = facts.get(name)
    return section if isinstance(section, Mapping) else {}


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
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            self._folders[folder] = self._resolved("", folder)
        return self._resolved(self._folders[folder], name) or "/"

    def _resolved(self, place: str, ahead: str) -> str:
        """Where a path leads from a real place, '' for the root."""
        parts, followed = ahead.split("/")[::-1], 0
        while parts:
            name = parts.pop()
            target = self.links.get(f"{place}/{name}") if followed < _MAX_LINKS else None
            if name == "..":
                place = place.rpartition("/")[0]
            elif name in ("", "."):
                continue
            elif target is None:
                place = f"{place}/{name}"
            else:
                followed += 1
                place = "" if target.startswith("/") else place
                parts += target.split("/")[::-1]
        return place

    def text(self, path: str) -> str:
        """The stripped text at a path, links followed; '' where it was not readable."""
        return self.files.get(self.realpath(path), "").strip()

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


_FACTS = ("files", "links", "errors", "nvml", "host")


def snapshot_json(snapshot: Snapshot) -> dict[str, Any]:
    """The document; strings may hold lone surrogates (bytes that are no UTF-8), so it is written as ASCII."""
    head = {"format": FORMAT, "node": snapshot.node, "taken_at": snapshot.taken_at}
    return head | {name: dict(getattr(snapshot, name)) for name in _FACTS}


def snapshot_from_json(raw: Any) -> Snapshot:
    """Read the document. Raises ValueError if it is not a snapshot or has another format."""
    for words in _complaints(raw):
        raise ValueError(f"found {words}")
    facts = {name: raw.get(name) or {} for name in _FACTS}
    return Snapshot(node=str(raw.get("node") or ""), taken_at=float(raw.get("taken_at", 0.0)), **facts)


def _complaints(raw: Any) -> Iterator[str]:
    if not isinstance(raw, Mapping):
        yield "no JSON object"
        return
    if raw.get("format") != FORMAT:
        yield f"format {raw.get('format')!r}, wanted {FORMAT}"
    taken_at = raw.get("taken_at", 0.0)
    if type(taken_at) not in (int, float) or _beyond(taken_at):
        yield f"taken_at {taken_at!r:.60}, wanted seconds since the epoch"
    for name in _FACTS:
        value = raw.get(name) or {}
        if not isinstance(value, dict):
            yield f"{name} that is no object"
        elif _beyond(value):
            yield f"a number beyond 64 bits in {name}"
        elif name not in ("nvml", "host"):
            yield from (f"{name}[{path!r}] that is no text" for path, text in value.items() if type(text) is not str)


def _beyond(value: Any) -> bool:
    """Some number inside is larger than any that a machine has: rules calculate with them."""
    left = [value]
    while left:
        inner = left.pop()
        if isinstance(inner, Mapping):
            left += inner.values()
        elif isinstance(inner, list):
            left += inner
        elif isinstance(inner, int) and abs(inner) >> 64:
            return True
    return False
