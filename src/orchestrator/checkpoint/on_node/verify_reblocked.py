"""The proof that two checkpoints dequantise to the same values, bit for bit.

An FP8 element's value is its byte's value times its block's scale. So two sides are equal where every weight byte is
equal and every element's scale is: source[i // a, j // a] == target[i // b, j // b]. That is checked for every block
of the target with an index looked up for it, not with the code that wrote it. Everything else, tensors and files,
must be the same bytes.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.directory import CONFIG, INDEX, Checkpoint, Shard, read_checkpoint, read_exactly
from orchestrator.checkpoint.on_node.reblock import Job, new_config, plan, reblock, survey
from orchestrator.checkpoint.on_node.target import TargetState, target_state
from orchestrator.checkpoint.on_node.tensors import CODES, Tensor, is_scale, scale_shape
from orchestrator.checkpoint.on_node.work import AT_ONCE, FileWork, Report, say
from orchestrator.node.files import opened
from orchestrator.node.os_errors import os_failures
from orchestrator.node.requests import request_of, tell
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.jobs import Progress, Proof, Reblocked, ReblockLine, ReblockRequest
from orchestrator.protocol.severity import Severity

_CHUNK_BYTES = 2 * 1024 * 1024
_FIX = "remove the target and re-block again; if that differs too, test the machine's memory and disk"


def verify(job: Job, target: Path, *, jobs: int, report: Report) -> Proof:
    """Compare a target with the source it was made from. Raises DeployError of kind `differs`: tensor and element."""
    made = read_checkpoint(target)
    for fault in made.faults:
        if fault.severity is Severity.STOP:
            raise _differs(target / fault.where, fault.what)
    _compare_config(job, made)
    _compare_index(job, made)
    _compare_names(job, made)
    for name, path in job.others.items():
        _compare_files(path, target / name)
    work = FileWork(Progress(sum(shard.size for shard in made.shards), shards=len(made.shards)))
    homes = {tensor.name: (shard, tensor) for shard, tensor in job.checkpoint.tensors()}
    work.on(made.shards, partial(_compare_shard, job, homes, target, work), report, most=jobs)
    return Proof(len(homes), sum(map(is_scale, homes)), len(job.others) + 2, work.now.total)


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
    if made.index_metadata != (wanted := {**source.index_metadata, "total_size": made.indexed_bytes()}):
        raise _differs(where, f"metadata is {dict(made.index_metadata)}, wanted {wanted}")


def _compare_names(job: Job, made: Checkpoint) -> None:
    names = {tensor.name for _, tensor in job.checkpoint.tensors()}
    made_names = {tensor.name for _, tensor in made.tensors()}
    if names != made_names:
        raise _differs(made.root, f"only one side has the tensor {min(names ^ made_names)}")
    metadata = {shard.name: shard.header.metadata for shard in job.checkpoint.shards}
    for shard in made.shards:
        if shard.name in metadata and shard.header.metadata != metadata[shard.name]:
            raise _differs(made.root / shard.name, "its __metadata__ differs from the source's")


def _compare_shard(
    job: Job, homes: Mapping[str, tuple[Shard, Tensor]], target: Path, work: FileWork, shard: Shard
) -> None:
    with ExitStack() as files:
        made = _open(files, target / shard.name)
        sources: dict[str, int] = {}
        for tensor in shard.header.tensors:
            home, original = homes[tensor.name]
            if home.name not in sources:
                sources[home.name] = _open(files, job.checkpoint.root / home.name)
            ours = _Stored(sources[home.name], home.header.data_start + original.begin, original)
            theirs = _Stored(made, shard.header.data_start + tensor.begin, tensor)
            weight = job.weights.get(tensor.name)
            if weight is None:
                difference = _tensor_differs(ours, theirs)
            else:
                difference = _scales_differ(job, weight, ours, theirs)
            if difference:
                raise _differs(f"{target / shard.name}: {tensor.name}", difference)
            work.add(tensor.nbytes)
    work.add(shard.header.data_start, shards_done=1)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor, the open file that has it, and where in it."""

    file: int
    at: int
    tensor: Tensor

    @property
    def kind(self) -> str:
        return f"{self.tensor.dtype} {list(self.tensor.shape)}"


def _tensor_differs(ours: _Stored, theirs: _Stored) -> str:
    """How, in words; '' where they are the same."""
    if ours.kind != theirs.kind:
        return f"is {theirs.kind}, the source's is {ours.kind}"
    if difference := _first_difference(ours.file, ours.at, theirs.file, theirs.at, ours.tensor.nbytes):
        at, our_byte, their_byte = difference
        element = _coordinates(at // ours.tensor.element_bytes, ours.tensor.shape)
        return f"element {element} has byte 0x{their_byte:02x}, the source's is 0x{our_byte:02x}"
    return ""


def _scales_differ(job: Job, weight: tuple[int, ...], ours: _Stored, theirs: _Stored) -> str:
    """As for other tensors, of the scales of a weight of this shape."""
    wanted = scale_shape(weight, job.new)
    if theirs.kind != (kind := f"{ours.tensor.dtype} {list(wanted)}"):
        return f"is {theirs.kind}, wanted {kind}"
    code = CODES[ours.tensor.element_bytes]
    source, target = (array(code, _read(side.file, side.tensor.nbytes, side.at)) for side in (ours, theirs))
    rows, columns = ours.tensor.shape[-2:]
    new_rows, new_columns = wanted[-2:]
    column_of = [j * job.new[1] // job.old[1] for j in range(new_columns)]
    for line in range(prod(wanted[:-1])):
        matrix, row = divmod(line, new_rows)
        start = (matrix * rows + row * job.new[0] // job.old[0]) * columns
        expected = array(code, [source[start + column] for column in column_of])
        if (scales := target[line * new_columns : (line + 1) * new_columns]) != expected:
            column = next(j for j in range(new_columns) if scales[j] != expected[j])
            element = _coordinates(line * new_columns + column, wanted)
            return f"scale {element} has bits 0x{scales[column]:x}, the source's block has 0x{expected[column]:x}"
    return ""


def _compare_files(source: Path, target: Path) -> None:
    with ExitStack() as files:
        ours, theirs = _open(files, source), _open(files, target)
        size = os.fstat(ours).st_size
        if os.fstat(theirs).st_size != size:
            raise _differs(target, f"has {os.fstat(theirs).st_size} bytes, the source's has {size}")
        if difference := _first_difference(ours, 0, theirs, 0, size):
            raise _differs(target, f"byte {difference[0]} differs from the source's")


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
        raise DeployError(f"cannot be read: {wrong.strerror}", where=where, fix=fix, kind="unreadable") from None


def _first_difference(first: int, one_at: int, other: int, other_at: int, length: int) -> tuple[int, int, int] | None:
    """The first byte at which two open files differ from these offsets on: where it is, and each one's."""
    for at in range(0, length, _CHUNK_BYTES):
        size = min(_CHUNK_BYTES, length - at)
        ours, theirs = _read(first, size, one_at + at), _read(other, size, other_at + at)
        if ours != theirs:
            byte = next(place for place in range(size) if ours[place] != theirs[place])
            return at + byte, ours[byte], theirs[byte]
    return None


def _coordinates(flat: int, shape: tuple[int, ...]) -> list[int]:
    coordinates = []
    for size in reversed(shape):
        flat, position = divmod(flat, size)
        coordinates.append(position)
    return coordinates[::-1]


def _differs(where: object, what: str) -> DeployError:
    return DeployError(what, where=str(where), fix=_FIX, kind="differs")


def stream(request: dict[str, Any]) -> None:
    """Re-block, and compare where a proof is asked for, or say what that would do. A finished target of a run with a
    proof is only compared."""
    asked = request_of(ReblockRequest, request)
    target, jobs = Path(asked.target), asked.jobs or AT_ONCE
    with os_failures(asked.target):
        job = plan(Path(asked.source), asked.block, accept_scales=asked.accept_scales)
        if asked.dry_run:
            tell(ReblockLine(would=survey(job, target)).as_json())
            return
        written = proof = None
        if not (asked.verify and target_state(target) is TargetState.FOREIGN):
            written = reblock(job, target, jobs=jobs, report=partial(_say, "re-blocking"))
        if asked.verify:
            proof = verify(job, target, jobs=jobs, report=partial(_say, "verifying"))
    outcome = Reblocked(written=written, proof=proof, old_block=job.old, new_block=job.new)
    tell(ReblockLine(outcome=outcome).as_json())


def _say(doing: str, now: Progress) -> None:
    say(ReblockLine(doing=doing, progress=now))
