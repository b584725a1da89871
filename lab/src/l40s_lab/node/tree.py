"""A part of a file system as a value: what to show, before anything is written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from orchestrator.protocol.errors import InputError

_ZEROS = 4096
"""Size of an attribute according to sysfs."""


@dataclass(slots=True)
class FileTree:
    """Files, links and directories by absolute path, and what an overlay needs to know about them.

    files:    path -> content
    modes:    path -> permission bits if they are not 0644
    links:    path -> target of a symbolic link
    folders:  directories that exist even if they are empty
    opaque:   directories that hide what is below them in the real file system
    hidden:   paths of the real file system to hide
    borrowed: directory -> directory of the real file system whose content it shows besides its own
    einval:   files whose reading fails with EINVAL, as for an attribute without a value
    """

    files: dict[str, bytes] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    opaque: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)
    borrowed: dict[str, str] = field(default_factory=dict)
    einval: set[str] = field(default_factory=set)

    def put(self, path: str, content: str | bytes | int, mode: int | None = None) -> None:
        """Add one file; text gets a final newline, as every attribute of the kernel has."""
        if not isinstance(content, bytes):
            content = f"{content}\n".encode()
        self.files[path] = content
        if mode is not None:
            self.modes[path] = mode

    def put_all(self, folder: str, attributes: Mapping[str, str | bytes | int]) -> None:
        """Add several files to one directory."""
        for name, content in attributes.items():
            self.put(f"{folder}/{name}", content)

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link to an absolute path, written as a relative one, as in sysfs."""
        self.links[path] = os.path.relpath(target, os.path.dirname(path))  # noqa: PTH120 - pure text

    def update(self, other: FileTree) -> None:
        """Add everything in another tree."""
        for part in fields(self):
            getattr(self, part.name).update(getattr(other, part.name))


_BY_PATH, _PATHS = ("files", "links", "borrowed"), ("folders", "opaque", "hidden", "einval")


def split_common(trees: Iterable[FileTree]) -> tuple[FileTree, list[FileTree]]:
    """(what all trees have in common, the rest of each): 32 machines of one kind are written once."""
    all_trees = list(trees)
    first = all_trees[0]
    common = FileTree()
    for name in _BY_PATH:
        getattr(common, name).update(set.intersection(*(set(getattr(tree, name).items()) for tree in all_trees)))
    for name in _PATHS:
        getattr(common, name).update(set.intersection(*(getattr(tree, name) for tree in all_trees)))
    common.modes = {path: first.modes[path] for path in common.files if path in first.modes}
    return common, [_without(tree, common) for tree in all_trees]


def _without(tree: FileTree, common: FileTree) -> FileTree:
    own = FileTree()
    for name in _BY_PATH:
        shared = getattr(common, name)
        getattr(own, name).update((path, what) for path, what in getattr(tree, name).items() if path not in shared)
    for name in _PATHS:
        getattr(own, name).update(getattr(tree, name) - getattr(common, name))
    own.modes = {path: mode for path, mode in tree.modes.items() if path in own.files}
    return own


def write(tree: FileTree, root: Path) -> None:
    """Write a tree's files, links and directories below a directory; files with the same contents share one inode.

    To change such a file later, replace it: writing into it would change the others.
    """
    made: set[str] = set()
    inodes: dict[tuple[bytes, int], str] = {}
    base = str(root)

    def parent_of(path: str) -> str:
        if ".." in path.split("/"):
            raise InputError(
                f"the path {path!r} leaves the node's file system", where="recording", fix="record it again"
            )
        place = base + path
        folder = place[: place.rindex("/")]
        if folder not in made:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - thousands of files: Path costs half the time
            made.add(folder)
        return place

    for folder in tree.folders:
        parent_of(f"{folder}/.")
    for path, content in tree.files.items():
        place = parent_of(path)
        key = (content, tree.modes.get(path, 0o644))
        if key in inodes:
            os.link(inodes[key], place)
            continue
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, key[1])
        os.write(handle, content)
        os.close(handle)
        inodes[key] = place
    for path, target in tree.links.items():
        os.symlink(target, parent_of(path))  # noqa: PTH211


def write_layer(tree: FileTree, root: Path, *, einval_from: str = "") -> None:
    """Write a tree as a layer of an overlay over the real file system; needs root.

    einval_from: a file of the lowest layer that the kernel itself refuses to read with EINVAL; the layer's
                 `einval` files take their data from it (overlayfs' metacopy and redirect attributes)
    """
    write(tree, root)
    base = str(root)
    for path in tree.opaque:
        os.makedirs(base + path, exist_ok=True)  # noqa: PTH103
        os.setxattr(base + path, "trusted.overlay.opaque", b"y")
    for path, target in tree.borrowed.items():
        os.makedirs(base + path, exist_ok=True)  # noqa: PTH103
        os.setxattr(base + path, "trusted.overlay.redirect", target.encode())
    for path in tree.hidden:
        os.makedirs(base + path[: path.rindex("/")], exist_ok=True)  # noqa: PTH103
        os.mknod(base + path, 0o020000, os.makedev(0, 0))
    _write_refusals(sorted(tree.einval), base, einval_from)


def _write_refusals(paths: list[str], base: str, source: str) -> None:
    first = ""
    for path in paths:
        place = base + path
        os.makedirs(place[: place.rindex("/")], exist_ok=True)  # noqa: PTH103
        if first:
            os.link(first, place)
            continue
        first = place
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444))
        os.truncate(place, _ZEROS)
        os.setxattr(place, "trusted.overlay.metacopy", b"")
        os.setxattr(place, "trusted.overlay.redirect", source.encode())
