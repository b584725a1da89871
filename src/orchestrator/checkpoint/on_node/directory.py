"""A checkpoint directory: config, index, shards' headers, and everything that is wrong with it; its files.

Nothing but headers is read, so 163 shards of 4 GB take a second or two. Faults are values: `checkpoint
check` shows all, `reblock` refuses at the first that would give a wrong result. Verb `inspect` answers with the facts.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.tensors import (
    LENGTH_BYTES,
    Block,
    Header,
    HeaderError,
    Tensor,
    header_length,
    misfits,
    parse_header,
)
from orchestrator.node.files import opened, plain_path
from orchestrator.node.os_errors import os_failures
from orchestrator.node.requests import request_of
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.jobs import CheckpointFinding, InspectRequest
from orchestrator.protocol.severity import Severity
from orchestrator.protocol.staging import repair

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LOOSE_MTP = "mtp.safetensors"
"""sglang 0.5.23 loads it beside the index's files (srt/model_loader/weight_utils.py, maybe_add_mtp_safetensors)."""
JOURNAL = ".l40s-reblock.json"
"""In a directory whose re-blocking has not ended."""
WHICH = "specify the directory that contains config.json"
_AGAIN = "download it again"
LARGEST_BLOCK = 65536
LONGEST_NAME = 255
"""Bytes: NAME_MAX of the file systems that hold checkpoints."""
MAX_JSON_BYTES = 256 * 1024 * 1024
_LAYER = re.compile(r"(?:model\.|language_model\.){0,2}layers\.(\d{1,9})\.(?:[^.]+\.experts\.(\d{1,9})\.)?")
"""A tensor of the language model's layer; vision towers name theirs otherwise."""
_LOST = "lost+found"
"""Only root may look into it, at the top of a file system of its own."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One weight file whose header could be read; size in bytes and mtime tell whether it is still the same."""

    name: str
    header: Header
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a directory holds.

    weight_map: tensor name -> shard name as the index says; None where there is no index (a single file)
    unused:     safetensors files that the index does not name
    """

    root: Path
    config: Mapping[str, Any]
    index_metadata: Mapping[str, Any]
    weight_map: Mapping[str, str] | None
    shards: tuple[Shard, ...]
    named: int
    """Number of shards that there should be."""
    unused: tuple[str, ...]
    faults: tuple[CheckpointFinding, ...]

    def tensors(self) -> Iterator[tuple[Shard, Tensor]]:
        """Every tensor with the shard that holds it."""
        return ((shard, tensor) for shard in self.shards for tensor in shard.header.tensors)

    def indexed_bytes(self, changed: Mapping[str, int] | None = None) -> int:
        """The index's total_size: bytes of the tensors in its files, some of them with another size."""
        loose = set() if self.weight_map is None else {s.name for s in self.shards} - set(self.weight_map.values())
        sizes = changed or {}
        return sum(sizes.get(t.name, t.nbytes) for shard, t in self.tensors() if shard.name not in loose)

    def by_name(self) -> dict[str, Tensor]:
        """Every tensor by its name; where two shards hold one name, the last in the files' order."""
        return {tensor.name: tensor for _, tensor in self.tensors()}


def read_checkpoint(root: Path) -> Checkpoint:
    """Read a directory. Raises DeployError only where there is no directory; everything else is a fault."""
    if not root.is_dir():
        raise DeployError("no such directory", where=str(root), fix=WHICH, kind="no-checkpoint")
    faults: list[CheckpointFinding] = []
    present = sorted(path.name for path in root.glob("*.safetensors"))
    config = _object(root / CONFIG, faults, broken="CONFIG-BROKEN", missing="CONFIG-MISSING")
    index = _object(root / INDEX, faults, broken="INDEX-BROKEN")
    weight_map = _weight_map(index, faults)
    names = _shard_names(root, weight_map, faults)
    shards = tuple(shard for name in names if (shard := _shard(root, name, faults)) is not None)
    checkpoint = Checkpoint(
        root=root,
        config=config or {},
        index_metadata=_metadata(index),
        weight_map=weight_map,
        shards=shards,
        named=len(names),
        unused=tuple(name for name in present if name not in names),
        faults=(),
    )
    faults += _index_faults(checkpoint)
    if len(shards) == len(names) and (block := quantised_block(checkpoint.config)):
        faults += misfits(checkpoint.by_name(), block)
    faults += [
        CheckpointFinding("SHARD-UNUSED", Severity.NOTE, name, "it is not in the index") for name in checkpoint.unused
    ]
    return replace(checkpoint, faults=tuple(faults))


def quantised_block(config: Mapping[str, Any]) -> Block | None:
    """The FP8 block that config.json names, or None where the checkpoint is quantised otherwise or not at all."""
    quantisation = config.get("quantization_config")
    if not isinstance(quantisation, dict) or "fp8" not in str(quantisation.get("quant_method", "")):
        return None
    block = quantisation.get("weight_block_size")
    if not isinstance(block, list) or len(block) != 2:
        return None
    return (block[0], block[1]) if all(type(side) is int and 0 < side <= LARGEST_BLOCK for side in block) else None


def read_exactly(descriptor: int, length: int, offset: int) -> bytes:
    """Bytes at an offset. Raises OSError where the file ends before."""
    parts = []
    while length > 0:
        if not (part := os.pread(descriptor, length, offset)):
            raise OSError(errno.EIO, "the file is shorter than its header states")
        parts.append(part)
        length -= len(part)
        offset += len(part)
    return b"".join(parts)


def _object(path: Path, faults: list[CheckpointFinding], *, broken: str, missing: str = "") -> dict[str, Any] | None:
    """A JSON object's file, or None with the fault noted. missing: id where there is no file, '' to allow that."""
    try:
        with open(opened(path), "rb") as file:
            text = file.read(MAX_JSON_BYTES + 1)
        document = json.loads(text) if len(text) <= MAX_JSON_BYTES else None
        if isinstance(document, dict):
            return document
        what = f"not a JSON object of at most {MAX_JSON_BYTES >> 20} MiB"
    except FileNotFoundError:
        if missing:
            faults.append(_stop(missing, path.name, "no such file", _AGAIN))
        return None
    except (OSError, ValueError, RecursionError) as wrong:
        what = str(wrong)
    faults.append(_stop(broken, path.name, f"cannot be read: {what}", _AGAIN))
    return None


def _stop(fault: str, where: str, what: str, fix: str = "") -> CheckpointFinding:
    return CheckpointFinding(fault, Severity.STOP, where, what, fix)


def _weight_map(index: Mapping[str, Any] | None, faults: list[CheckpointFinding]) -> Mapping[str, str] | None:
    if index is None:
        return None
    raw = index.get("weight_map")
    if not isinstance(raw, dict) or not all(isinstance(name, str) for name in raw.values()):
        faults.append(_stop("INDEX-BROKEN", INDEX, "weight_map does not map names to files", _AGAIN))
        return {}
    return {sys.intern(tensor): sys.intern(shard) for tensor, shard in raw.items()}


def _shard_names(root: Path, weight_map: Mapping[str, str] | None, faults: list[CheckpointFinding]) -> list[str]:
    """The files that an engine loads, in the order of their names."""
    single = [SINGLE] if (root / SINGLE).is_file() else []
    names = single if weight_map is None else sorted(set(weight_map.values()))
    for name in [name for name in names if not _is_plain(name)]:
        faults.append(_stop("INDEX-BROKEN", INDEX, f"lists a file outside the directory: {name!r:.80}"))
        names.remove(name)
    if names and LOOSE_MTP not in names and (root / LOOSE_MTP).is_file():
        names.append(LOOSE_MTP)
    if not names and not faults:
        what = f"neither {INDEX} nor {SINGLE}: not a safetensors checkpoint"
        faults.append(_stop("NO-WEIGHTS", str(root), what, "specify the directory that contains the weights"))
    return names


def _is_plain(name: str) -> bool:
    """A file right in the directory, of a name that a file can have."""
    try:
        return "/" not in plain_path(name) and len(name.encode()) <= LONGEST_NAME
    except ValueError:
        return False


def _shard(root: Path, name: str, faults: list[CheckpointFinding]) -> Shard | None:
    try:
        shard = read_shard(root / name)
    except FileNotFoundError:
        fault, what = "SHARD-MISSING", "it is in the index, but missing"
    except OSError as wrong:
        fault, what = "SHARD-BROKEN", f"cannot be read: {wrong.strerror}"
    except HeaderError as wrong:
        fault, what = "SHARD-BROKEN", str(wrong)
    else:
        if shard.size == shard.header.file_size:
            return shard
        word = "truncated" if shard.size < shard.header.file_size else "too long"
        fault, what = "SHARD-TRUNCATED", f"{word}: {shard.size} bytes, but its header states {shard.header.file_size}"
    fix = f"download this file again, or copy it from another node: {repair(root)}"
    faults.append(_stop(fault, name, what, fix))
    return None


def read_shard(path: Path) -> Shard:
    """A weight file's header and size. Raises OSError or HeaderError; does not judge the size."""
    descriptor = opened(path)
    try:
        status = os.fstat(descriptor)
        length = header_length(os.pread(descriptor, LENGTH_BYTES, 0))
        if LENGTH_BYTES + length > status.st_size:
            raise HeaderError(f"truncated: {status.st_size} bytes, but its header alone has {LENGTH_BYTES + length}")
        header = parse_header(read_exactly(descriptor, length, LENGTH_BYTES))
        return Shard(path.name, header, status.st_size, status.st_mtime_ns)
    finally:
        os.close(descriptor)


def _metadata(index: Mapping[str, Any] | None) -> dict[str, Any]:
    metadata = index.get("metadata") if index else None
    return metadata if isinstance(metadata, dict) else {}


def _index_faults(checkpoint: Checkpoint) -> list[CheckpointFinding]:
    """Where index and shards contradict each other."""
    faults = []
    homes: dict[str, str] = {}
    for shard, tensor in checkpoint.tensors():
        if tensor.name in homes:
            what = f"{homes[tensor.name]} contains it as well: an engine loads both and keeps the last"
            faults.append(_stop("TENSOR-TWICE", f"{shard.name}: {tensor.name}", what))
        homes[tensor.name] = shard.name
    if checkpoint.weight_map is None:
        return faults
    readable = {shard.name for shard in checkpoint.shards}
    for name, shard_name in checkpoint.weight_map.items():
        if shard_name in readable and homes.get(name) != shard_name:
            what = f"the index lists it in {shard_name}, which does not contain it"
            faults.append(_stop("TENSOR-MISSING", name, what, "download the index and the shard again"))
    if strays := [name for name, home in homes.items() if name not in checkpoint.weight_map and home != LOOSE_MTP]:
        what = f"{len(strays)} tensors are in the shards but not in the index; an engine loads them anyway"
        faults.append(CheckpointFinding("TENSOR-UNLISTED", Severity.NOTE, strays[0], what))
    return [*faults, *_another_size(checkpoint)]


def _another_size(checkpoint: Checkpoint) -> Iterator[CheckpointFinding]:
    """Where every shard is there, and they hold another number of bytes than the index says."""
    total = checkpoint.index_metadata.get("total_size")
    held = checkpoint.indexed_bytes()
    if total is not None and total != held and len(checkpoint.shards) == checkpoint.named:
        what = f"total_size is {total}, but the shards contain {held} bytes"
        yield CheckpointFinding("INDEX-SIZE", Severity.NOTE, INDEX, what)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Verb `inspect`: as `look`, with the configuration as text, as InspectAnswer of protocol/jobs.py."""
    directory = Path(request_of(InspectRequest, request).directory)
    with os_failures(str(directory)):
        facts = look(directory)
    return {**facts, "config": json.dumps(facts["config"])}


def look(directory: Path) -> dict[str, Any]:
    """Read a directory. Raises DeployError where there is none; faults are listed, not raised.

    Keys: path, config, block, shards {named, readable, unused}, bytes {files, tensors},
    tensors {count, by_dtype}, layers {layer: tensors}, experts {layer: experts}, faults.
    """
    checkpoint = read_checkpoint(directory)
    block = quantised_block(checkpoint.config)
    layers, experts = _layers(checkpoint)
    return {
        "path": str(directory),
        "config": dict(checkpoint.config),
        "block": list(block) if block else None,
        "shards": {
            "named": checkpoint.named,
            "readable": len(checkpoint.shards),
            "unused": list(checkpoint.unused),
        },
        "bytes": {
            "files": sum(shard.size for shard in checkpoint.shards),
            "tensors": sum(tensor.nbytes for _, tensor in checkpoint.tensors()),
        },
        "tensors": _by_dtype(checkpoint),
        "layers": layers,
        "experts": experts,
        "faults": [fault.as_json() for fault in (*_unfinished(directory), *checkpoint.faults)],
    }


def _unfinished(directory: Path) -> list[CheckpointFinding]:
    if not (directory / JOURNAL).exists():
        return []
    what = "re-blocking into this directory was interrupted, or is in progress"
    fix = "run the same `checkpoint reblock` again to continue"
    return [_stop("UNFINISHED", JOURNAL, what, fix)]


def _by_dtype(checkpoint: Checkpoint) -> dict[str, Any]:
    sizes = defaultdict[str, list[int]](list)
    for _, tensor in checkpoint.tensors():
        sizes[tensor.dtype].append(tensor.nbytes)
    kinds = {dtype: {"count": len(counts), "bytes": sum(counts)} for dtype, counts in sorted(sizes.items())}
    return {"count": sum(map(len, sizes.values())), "by_dtype": kinds}


def _layers(checkpoint: Checkpoint) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Number of tensors of every layer, and of experts where it has any."""
    tensors: Counter[int] = Counter()
    experts: dict[int, set[int]] = defaultdict(set)
    for _, tensor in checkpoint.tensors():
        if layer := _LAYER.match(tensor.name):
            tensors[int(layer[1])] += 1
            if layer[2]:
                experts[int(layer[1])].add(int(layer[2]))
    return dict(sorted(tensors.items())), {layer: len(numbers) for layer, numbers in sorted(experts.items())}


def listed(directory: Path) -> list[str]:
    """Paths of the files that belong to a checkpoint, sorted. Raises DeployError: none, or one that can't be sent."""
    paths = sorted(files_below(directory))
    for path in paths:
        if not path.isprintable():
            raise DeployError(
                f"has a file name that can't be sent: {path!r}", where=str(directory), fix="rename", kind="odd-name"
            )
    if not paths:
        raise DeployError("contains no files", where=str(directory), fix=WHICH, kind="no-checkpoint")
    return paths


def refuse_unfinished(directory: Path) -> None:
    """Raises DeployError for a directory whose re-blocking has not ended."""
    if (directory / JOURNAL).exists():
        what = "its re-blocking was interrupted"
        raise DeployError(
            what,
            where=str(directory),
            fix="run the same `checkpoint reblock` again to continue",
            kind="unfinished",
        )


def files_below(root: Path, wanted: Callable[[str], bool] | None = None) -> Iterator[str]:
    """Paths of the regular files below a directory that are not hidden; links to files are followed.

    wanted: told a path, whether it matters (None: all do)
    Raises DeployError: a folder or file that can't be read, a link to a file that is not there, or to a directory.
    """
    for folder, below, names in os.walk(root, onerror=_refuse):
        below[:] = sorted(name for name in below if not name.startswith(".") and name != _LOST)
        for name in below:
            if os.path.islink(os.path.join(folder, name)):
                what = "is a symbolic link to a directory, which is not followed"
                raise DeployError(
                    what, where=os.path.join(folder, name), fix="replace it with a directory: `cp -rL`", kind="far-link"
                )
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
        raise DeployError(
            what, where=str(path), fix="finish the download or copy, or remove the link", kind="unfinished"
        ) from None
    except OSError as wrong:
        _refuse(wrong)
        return False


def _refuse(wrong: OSError) -> None:
    what = f"can't be read: {wrong.strerror}"
    raise DeployError(
        what, where=str(wrong.filename), fix="check its owner and mode, and the disk (`dmesg`)", kind="unreadable"
    ) from None
