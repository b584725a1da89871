"""Free space of the file systems that a gang writes to or reads from, for the probe.

A path that does not exist yet is asked of the nearest directory above it that does.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.node.look.hardware import HardwarePart
from orchestrator.node.look.patience import read_hardware
from orchestrator.node.look.reading import SnapshotReader


def free_space(places: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """By the places' names: {"device": number of the file system, "bytes", "free_bytes": what its users may still
    write}, or {"error": errno name}. places: directories by name.

    A file system that hangs costs its deadline, as a file that hangs does.
    """
    read = read_hardware("/", parts=[HardwarePart(name, _asked(name, path)) for name, path in places.items()])
    hangs = {name: {"error": "ETIMEDOUT"} for name in places}
    return {**hangs, **{name: json.loads(text) for name, text in read["files"].items()}}


def _asked(name: str, path: str) -> Callable[[SnapshotReader], None]:
    def read(reader: SnapshotReader) -> None:
        reader.begin(name)
        reader.files[name] = json.dumps({"error": "ETIMEDOUT"} if name in reader.skip else _room(path))

    return read


def _room(path: str) -> dict[str, Any]:
    while True:
        try:
            size, device = os.statvfs(path), os.stat(path).st_dev
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path.rstrip("/")) or "/"
            continue
        except OSError as error:
            return {"error": errno.errorcode.get(error.errno or 0, "EIO")}
        unit = size.f_frsize
        return {"device": device, "bytes": unit * size.f_blocks, "free_bytes": unit * size.f_bavail}
