"""What is left on the file system of a path that need not exist."""

from __future__ import annotations

import os


def existing_folder(path: str) -> str:
    """The nearest folder of a path that is there."""
    folder = os.path.abspath(path)
    while folder != "/" and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def is_without_inodes(where: str) -> bool:
    """Some file systems count none (statvfs(3): 0 files)."""
    try:
        room = os.statvfs(existing_folder(where))
    except OSError:
        return False
    return room.f_files > 0 and room.f_favail == 0 and room.f_bavail > 0
