"""The proof that two checkpoints dequantise to the same values, bit for bit.

An FP8 element's value is its byte's value times its block's scale. So two sides are equal where every weight byte is
equal and every element's scale is: source[i // a, j // a] == target[i // b, j // b]. That is checked for every block
of the target with an index looked up for it, not with the code that wrote it. Everything else, tensors and files,
must be the same bytes.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.directory import CONFIG, INDEX, Checkpoint, Shard, read_checkpoint, read_exactly
from orchestrator.checkpoint.on_node.reblock import (
    Job,
    Report,
    WorkMeter,
    new_config,
    plan,
    reblock,
    side_by_side,
    survey,
)
from orchestrator.checkpoint.on_node.target import TargetState, standing
from orchestrator.checkpoint.on_node.tensors import CODES, Tensor, is_scale, scale_shape
from orchestrator.node.failure import Failure, os_failures
from orchestrator.node.files import opened
from orchestrator.node.requests import TICK_S, reader_is_gone, request_of, tell
from orchestrator.protocol.jobs import Gravity, Progress, Proof, Reblocked, ReblockLine, ReblockRequest

_CHUNK_BYTES = 2 * 1024 * 1024
_FIX = "remove the target and re-block again; if that differs too, test the machine's memory and disk"


def prove(job: Job, target: Path, *, jobs: int, report: Report) -> Proof:
    """Compare a target with the source it was made from. Raises Failure('differs') that names tensor and element."""
    made = read_checkpoint(target)
    for fault in made.faults:
        if fault.severity is Gravity.STOP:
            raise _differs(target / fault.where, fault.what)
    _compare_config(job, made)
    _compare_index(job, made)
    _compare_names(job, made)
    for name, path in job.others.items():
        _compare_files(path, target / name)
    meter = WorkMeter(Progress(sum(shard.header.file_size for shard in made.shards), shards=len(made.shards)))
    homes = {tensor.name: (shard, tensor) for shard, tensor in job.checkpoint.tensors()}
    compare = partial(_compare_shard, job, homes, target, meter)
    side_by_side(compare, made.shards, meter, jobs=jobs, report=report)
    size = sum(shard.size for shard in made.shards)
    return Proof(len(homes), sum(map(is_scale, homes)), len(job.others) + 2, size)


def _compare_config(job: Job, made: Checkpoint) -> None:
    wanted = new_config(job.checkpoint.config, job.new)
    for key in sorted(wanted.keys() | made.config.keys()):
        if made.config.get(key) != wanted.get(key):
            what = f"{key} is {made.config.get(key)!r}, wanted {wanted.get(key)!r}"
            raise _differs(made.root / CONFIG, what)


def _compare_index(job: Job, made: Checkpoint) -> None:
    source = job.checkpoint
    where = made.root / INDEX
    if (made.weight_map is None) != (source.weight_map is None):
        raise _differs(where, "only one side has an index")
    if made.weight_map is None or source.weight_map is None:
        return
    if made.weight_map.keys() != source.weight_map.keys():
        odd = min(made.weight_map.keys() ^ source.weight_map.keys())
        raise _differs(where, f"only one side's weight_map has {odd}")
    wanted = {**source.index_metadata, "total_size": made.indexed_bytes()}
    if made.index_metadata != wanted:
        raise _differs(where, f"metadata is {dict(made.index_metadata)}, wanted {wanted}")


def _compare_names(job: Job, made: Checkpoint) -> None:
    names = {tensor.name for _, tensor in job.checkpoint.tensors()}
    found = {tensor.name for _, tensor in made.tensors()}
    if names != found:
        raise _differs(made.root, f"only one side has the tensor {min(names ^ found)}")
    metadata = {shard.name: shard.header.metadata for shard in job.checkpoint.shards}
    for shard in made.shards:
        if shard.name in metadata and shard.header.metadata != metadata[shard.name]:
            raise _differs(made.root / shard.name, "its __metadata__ differs from the source's")


def _compare_shard(
    job: Job, homes: Mapping[str, tuple[Shard, Tensor]], target: Path, meter: WorkMeter, shard: Shard
) -> None:
    with ExitStack() as files:
        made = _open(files, target / shard.name)
        opened: dict[str, int] = {}
        for tensor in shard.header.tensors:
            home, original = homes[tensor.name]
            if home.name not in opened:
                opened[home.name] = _open(files, job.checkpoint.root / home.name)
            sides = _Sides(
                source=opened[home.name],
                source_at=home.header.data_start + original.begin,
                target=made,
                target_at=shard.header.data_start + tensor.begin,
                where=f"{target / shard.name}: {tensor.name}",
            )
            if tensor.name in job.weights:
                _compare_scales(job, original, tensor, sides)
            else:
                _compare_tensor(original, tensor, sides)
            meter.add(tensor.nbytes)
    meter.add(shard.header.data_start, shards_done=1)


@dataclass(frozen=True, slots=True)
class _Sides:
    """Where one tensor's bytes are on both sides, and what to call it."""

    source: int
    source_at: int
    target: int
    target_at: int
    where: str


def _compare_tensor(source: Tensor, target: Tensor, sides: _Sides) -> None:
    if (source.dtype, source.shape) != (target.dtype, target.shape):
        what = f"is {target.dtype} {list(target.shape)}, the source's is {source.dtype} {list(source.shape)}"
        raise _differs(sides.where, what)
    if found := _first_difference(sides.source, sides.source_at, sides.target, sides.target_at, source.nbytes):
        at, ours, theirs = found
        element = _coordinates(at // source.element_bytes, source.shape)
        what = f"element {element} has byte 0x{theirs:02x}, the source's is 0x{ours:02x}"
        raise _differs(sides.where, what)


def _compare_scales(job: Job, source: Tensor, target: Tensor, sides: _Sides) -> None:
    weight = job.weights[source.name]
    wanted = scale_shape(weight, job.new)
    if (target.dtype, target.shape) != (source.dtype, wanted):
        what = f"is {target.dtype} {list(target.shape)}, wanted {source.dtype} {list(wanted)}"
        raise _differs(sides.where, what)
    code = CODES[source.element_bytes]
    ours = array(code, _read(sides.source, source.nbytes, sides.source_at))
    theirs = array(code, _read(sides.target, target.nbytes, sides.target_at))
    rows, columns = source.shape[-2:]
    new_rows, new_columns = wanted[-2:]
    column_of = [j * job.new[1] // job.old[1] for j in range(new_columns)]
    for line in range(prod(wanted[:-1])):
        matrix, row = divmod(line, new_rows)
        start = (matrix * rows + row * job.new[0] // job.old[0]) * columns
        expected = array(code, [ours[start + column] for column in column_of])
        found = theirs[line * new_columns : (line + 1) * new_columns]
        if found != expected:
            column = next(j for j in range(new_columns) if found[j] != expected[j])
            element = _coordinates(line * new_columns + column, wanted)
            what = f"scale {element} has bits 0x{found[column]:x}, the source's block has 0x{expected[column]:x}"
            raise _differs(sides.where, what)


def _compare_files(source: Path, target: Path) -> None:
    with ExitStack() as files:
        ours, theirs = _open(files, source), _open(files, target)
        size = os.fstat(ours).st_size
        if os.fstat(theirs).st_size != size:
            raise _differs(target, f"has {os.fstat(theirs).st_size} bytes, the source's has {size}")
        if found := _first_difference(ours, 0, theirs, 0, size):
            raise _differs(target, f"byte {found[0]} differs from the source's")


def _open(files: ExitStack, path: Path) -> int:
    try:
        descriptor = opened(path)
    except OSError as wrong:
        raise _differs(path, f"cannot be read: {wrong.strerror}") from None
    files.callback(os.close, descriptor)
    return descriptor


def _read(descriptor: int, length: int, offset: int) -> bytes:
    try:
        return read_exactly(descriptor, length, offset)
    except OSError as wrong:
        where = os.readlink(f"/proc/self/fd/{descriptor}")
        fix = "check its disk (`dmesg`)"
        raise Failure("unreadable", f"cannot be read: {wrong.strerror}", where, fix) from None


def _first_difference(one: int, one_at: int, other: int, other_at: int, length: int) -> tuple[int, int, int] | None:
    """The first byte at which two open files differ from these offsets on: where it is, and each one's."""
    for at in range(0, length, _CHUNK_BYTES):
        size = min(_CHUNK_BYTES, length - at)
        ours, theirs = _read(one, size, one_at + at), _read(other, size, other_at + at)
        if ours != theirs:
            byte = next(place for place in range(size) if ours[place] != theirs[place])
            return at + byte, ours[byte], theirs[byte]
    return None


def _coordinates(flat: int, shape: tuple[int, ...]) -> list[int]:
    found = []
    for size in reversed(shape):
        flat, position = divmod(flat, size)
        found.append(position)
    return found[::-1]


def _differs(where: object, what: str) -> Failure:
    return Failure("differs", what, str(where), _FIX)


def stream(request: dict[str, Any]) -> None:
    """Re-block, or say what that would do."""
    asked = request_of(ReblockRequest, request)
    with os_failures(asked.target):
        _reblock(asked, Path(asked.target))


def _reblock(asked: ReblockRequest, target: Path) -> None:
    job = plan(Path(asked.source), asked.block)
    if asked.dry_run:
        tell(ReblockLine(would=survey(job, target)).as_json())
        return
    outcome = reblocked(job, target, with_proof=asked.prove, jobs=asked.jobs, report=_Reporter())
    tell(ReblockLine(outcome=outcome).as_json())


def reblocked(
    job: Job, target: Path, *, with_proof: bool, jobs: int | None, report: Callable[[str, Progress], None]
) -> Reblocked:
    """Re-block, and compare where a proof is asked for. A finished target is then only compared.

    report: told what is being done ('re-blocking', 'proving') and how far it is
    """
    jobs = jobs or min(8, os.cpu_count() or 1)
    written = proof = None
    if not (with_proof and standing(target) is TargetState.FOREIGN):
        written = reblock(job, target, jobs=jobs, report=partial(report, "re-blocking"))
    if with_proof:
        proof = prove(job, target, jobs=jobs, report=partial(report, "proving"))
    return Reblocked(written=written, proof=proof, old_block=job.old, new_block=job.new)


class _Reporter:
    """Reports progress now and then; raises BrokenPipeError if the reader is gone, which stops the work."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def __call__(self, doing: str, progress: Progress) -> None:
        if reader_is_gone(0):
            raise BrokenPipeError
        now = time.monotonic()
        if now - self._told.get(doing, 0.0) >= TICK_S:
            self._told[doing] = now
            tell(ReblockLine(doing=doing, progress=progress).as_json())
