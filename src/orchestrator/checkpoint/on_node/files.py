"""The files of a checkpoint's directory: all of them, or a failure that names the one that can't be read."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.node.failure import Failure

_LOST = "lost+found"
"""Only root may look into it, at the top of a file system of its own."""


def files_below(root: Path, wanted: Callable[[str], bool] | None = None) -> Iterator[str]:
    """Paths of the regular files below a directory that are not hidden; links to files are followed.

    wanted: told a path, whether it matters (None: all do)
    Raises Failure: a folder or file that can't be read, a link to a file that is not there, or to a directory.
    """
    for folder, below, names in os.walk(root, onerror=_refuse):
        below[:] = sorted(name for name in below if not name.startswith(".") and name != _LOST)
        for name in below:
            if os.path.islink(os.path.join(folder, name)):
                what = "is a symbolic link to a directory, which is not followed"
                raise Failure("far-link", what, os.path.join(folder, name), "replace it with a directory: `cp -rL`")
        for name in sorted(names):
            path = Path(folder, name)
            relative = path.relative_to(root).as_posix()
            if not name.startswith(".") and (wanted is None or wanted(relative)) and _is_file(path):
                yield relative


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        what = f"is a symbolic link to {os.readlink(path)}, which does not exist"
        raise Failure("unfinished", what, str(path), "finish the download or copy, or remove the link") from None
    except OSError as wrong:
        _refuse(wrong)
        return False


def _refuse(wrong: OSError) -> None:
    what = f"can't be read: {wrong.strerror}"
    raise Failure("unreadable", what, str(wrong.filename), "check its owner and mode, and the disk (`dmesg`)") from None
