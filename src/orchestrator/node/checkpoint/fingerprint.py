"""Which weights a checkpoint holds, told from a few megabytes of it: never all of it is read."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchestrator.node.agent.weights import INDEX
from orchestrator.node.cache import weight_files
from orchestrator.node.checkpoint.header import LENGTH_BYTES, MAX_HEADER_BYTES

AT_ONCE = 8
SAMPLES = 4
SAMPLE_BYTES = 64 << 10
"""Another training of the same model has the same names, shapes and sizes: only the values differ, and nearly all of
them do. 163 files give 42 MB of samples; values that differ in a few tensors only may lie between them."""


def of_weights(folder: str) -> str:
    """The same for equal weight files wherever they lie: of the index, and of each file its name, size, header and
    samples of its data. '' where they can't be read; a file that the index names and that is not there counts too."""
    paths = weight_files.of_checkpoint(folder)
    sha = hashlib.sha256()
    try:
        index = Path(folder, INDEX)
        sha.update(hashlib.sha256(index.read_bytes()).digest() if index.exists() else b"")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for path, digest in zip(paths, pool.map(_of_file, paths), strict=True):
                sha.update(json.dumps([os.path.relpath(path, folder), digest]).encode())
    except OSError:
        return ""
    return sha.hexdigest()


def _of_file(path: str) -> str:
    sha = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            length = min(int.from_bytes(file.read(LENGTH_BYTES), "little"), MAX_HEADER_BYTES)
            sha.update(size.to_bytes(8, "little"))
            data = min(LENGTH_BYTES + length, size)
            for start in (0, *_samples(data, size)):
                sha.update(os.pread(file.fileno(), SAMPLE_BYTES if start else data, start))
    except FileNotFoundError:
        return "absent"
    return sha.hexdigest()


def _samples(start: int, end: int) -> list[int]:
    """Where they begin: at both ends of the data, and evenly between."""
    last = max(start, end - SAMPLE_BYTES)
    return [start + (last - start) * place // (SAMPLES - 1) for place in range(SAMPLES)]
