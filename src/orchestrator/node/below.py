"""Paths that another machine's answer names: they stay below the folder that they are for, or they are refused.

Both ends ask the same: the controller before it acts on a node's list, and every node before it acts on the
controller's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from orchestrator.node.failure import Failure

LONGEST = 1024
"""Characters of one path; a hub's deepest has 200."""
FIX = "nothing was written there. A node that sends such a list is faulty or compromised: inspect it, then try again"


def plain_path(found: object, *, hidden: bool = False) -> str:
    """A relative path, as it is. hidden: whether a part may begin with a dot.

    Raises ValueError: absolute, `..`, empty parts, control characters (NUL too), undecodable, too long.
    """
    if not isinstance(found, str):
        raise ValueError(f"{_shown(found)} is not a path")  # noqa: TRY004 - told like every other odd path
    if not found or len(found) > LONGEST:
        raise ValueError(f"a path of {len(found)} characters ({_shown(found)}): wanted 1 to {LONGEST}")
    if not found.isprintable():
        raise ValueError(f"the path {_shown(found)} has characters that are not allowed in a checkpoint's file names")
    for part in found.split("/"):
        if part in ("", ".", ".."):
            raise ValueError(f"the path {_shown(found)} leaves its directory, or is not in its simplest form")
        if part.startswith(".") and not hidden:
            raise ValueError(f"the path {_shown(found)} has a hidden part")
    return found


def refuse_clashes(paths: Iterable[str]) -> None:
    """Raises ValueError where a path comes twice, or is a file for one and a folder for another."""
    found: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        if path in found:
            raise ValueError(f"the path {_shown(path)} is listed twice")
        found.add(path)
        parts = path.split("/")
        folders |= {"/".join(parts[:depth]) for depth in range(1, len(parts))}
    if both := sorted(found & folders):
        raise ValueError(f"the path {_shown(both[0])} is both a file and a directory")


def refuse_links(root: Path, path: str) -> None:
    """Raises Failure where root is a link, or a folder between root and root/path is one (whatever it leads to).

    The last part is not judged: a file is replaced by name, which never writes through a link.
    """
    at = root
    for part in ("", *path.split("/")[:-1]):
        at = at / part
        if os.path.islink(at):
            what = f"is a symbolic link to {os.readlink(at)}, but files must be written below it"
            raise Failure("outside", what, str(at), "replace the link with a directory")


def _shown(found: object) -> str:
    text = repr(found)
    return text if len(text) <= 80 else f"{text[:77]}..."
