"""Checks that a checkpoint's weight files exist and are complete. It reads headers, not digests: seconds, not hours.

A safetensors file begins with the length of its header, and the header says where the data ends (safetensors README,
"Format"). So the header gives the file's length; an interrupted copy is shorter.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Sequence

from orchestrator.node import files
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.staging import repair

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
"""safetensors src/tensor.rs MAX_HEADER_SIZE."""
NAMED = 3

INDEX = "model.safetensors.index.json"
_NOTES = ("_name_or_path", "transformers_version", "_commit_hash")
"""Keys of a config.json that whoever wrote the copy adds (transformers, configuration_utils.py)."""


def told_apart(folder: str) -> dict[str, str]:
    """A digest by file name that two copies of one checkpoint share: of what config.json and the index say, however
    they are laid out, without the notes that a download leaves. What can't be read is left out; '' is no folder."""
    entries = {}
    for name, part in (("config.json", None), (INDEX, "weight_map")) if folder else ():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            document = files.json_of(pathlib.Path(folder, name))
            values = document[part] if part else {key: value for key, value in document.items() if key not in _NOTES}
            entries[name] = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    return entries


def _broken(folder: pathlib.Path, names: Sequence[str]) -> list[str]:
    """Each file that is not intact, with what is wrong with it."""
    return [f"{name} {fault}" for name in names if (fault := _fault(folder / name))]


def check(folder: pathlib.Path, fix: str = "") -> Iterator[DeployError]:
    """Faults of the weight files that the index names; none if there is no index, or no weights at all.

    fix: the command that repairs them, if the caller knows more than the folder
    """
    fix = fix or repair(folder)
    index = folder / INDEX
    if not index.is_file():
        return
    try:
        weight_map = files.json_of(index)["weight_map"]
        named = sorted({files.plain_path(name, hidden=True) for name in weight_map.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        yield DeployError(
            f"the weights' index can't be used: {wrong!r:.200}", where=str(index), fix=fix, kind="no-model"
        )
        return
    missing = [name for name in named if not os.path.exists(folder / name)]
    if len(missing) == len(named):
        return
    if missing:
        what = f"{len(missing)} of {len(named)} weight files are missing: {_some(missing)}"
        yield DeployError(what, where=str(folder), fix=fix, kind="no-model")
    there = [name for name in named if name not in missing]
    if broken := _broken(folder, there):
        what = f"{len(broken)} of {len(named)} weight files are not intact: {_some(broken)}"
        yield DeployError(what, where=str(folder), fix=fix, kind="no-model")


def _fault(path: pathlib.Path) -> str:
    """'' if a file is as long as its header says."""
    try:
        size = os.stat(path).st_size
        wanted = _wanted_bytes(path, size)
    except OSError as error:
        return f"can't be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError):
        return "has a damaged header"
    return "" if size == wanted else f"has {size} bytes of {wanted}"


def _wanted_bytes(path: pathlib.Path, size: int) -> int:
    with open(files.opened(path), "rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if size <= LENGTH_BYTES or not 0 < length <= MOST_HEADER_BYTES:
            raise ValueError
        header = json.loads(file.read(length))
    ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    return LENGTH_BYTES + length + max(ends, default=0)


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (" ..." if len(names) > NAMED else "")
