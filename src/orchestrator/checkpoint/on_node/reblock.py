"""FP8 checkpoints with a finer block: new headers, new scales, and weights copied by the kernel."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import gcd, prod
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node import target as target_files
from orchestrator.checkpoint.on_node.directory import (
    CONFIG,
    INDEX,
    Checkpoint,
    Shard,
    files_below,
    quantised_block,
    read_checkpoint,
    read_exactly,
)
from orchestrator.checkpoint.on_node.shard import (
    Carrier,
    NewScale,
    Piece,
    ShardLayout,
    SourceUnreadable,
    can_share,
    lay_out,
    open_source,
    write_at,
)
from orchestrator.checkpoint.on_node.target import PARTIAL, TargetState
from orchestrator.checkpoint.on_node.tensors import (
    SCALE_TYPES,
    Block,
    Tensor,
    finer,
    is_scale,
    odd_scale,
    scale_shape,
    weight_of,
)
from orchestrator.checkpoint.on_node.work import FileWork, Report
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.jobs import Progress, WouldReblock
from orchestrator.protocol.severity import Severity

_NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json", PARTIAL)
"""Weights that are no part of the re-blocked checkpoint, and what interrupted downloads leave."""


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that a run will do, worked out before the first byte is written.

    layouts: the new shard for each shard's name; others: files copied as they are, by their path in the checkpoint
    """

    checkpoint: Checkpoint
    old: Block
    new: Block
    layouts: Mapping[str, ShardLayout]
    weights: Mapping[str, tuple[int, ...]]
    """Shape of the weight of every scale, by the scale's name."""
    others: Mapping[str, Path]
    texts: Mapping[str, bytes]
    """What is written in place of the source's, by name, in this order: the index if there is one, and config.json."""
    accept_scales: bool = False
    """Write scales too that no quantisation gives."""


def plan(source: Path, block: int, *, accept_scales: bool = False) -> Job:
    """Read the source and work the run out. Raises DeployError where the source can't be re-blocked that way."""
    checkpoint = read_checkpoint(source)
    new = (block, block)
    old = _old_block(checkpoint, new)
    _refuse_faults(checkpoint)
    tensors = checkpoint.by_name()
    weights = {name: tensors[weight_of(name)].shape for name in tensors if is_scale(name)}
    shapes = {name: scale_shape(weight, new) for name, weight in weights.items()}
    layouts = {shard.name: lay_out(shard.header, shapes) for shard in checkpoint.shards}
    return Job(
        checkpoint=checkpoint,
        old=old,
        new=new,
        layouts=layouts,
        weights=weights,
        others=other_files(checkpoint.root),
        texts={**_new_index(checkpoint, shapes), CONFIG: _json(new_config(checkpoint.config, new))},
        accept_scales=accept_scales,
    )


def reblock(job: Job, target: Path, *, jobs: int, report: Report) -> Progress:
    """Write the target, or continue writing it; where it is complete already, nothing is written.

    jobs: shards at a time. What it wrote is on the disk, not only in the page cache, when this returns.
    Raises DeployError, after which the same call continues where this one stopped. The source is only read.
    """
    target_files.check_apart(job.checkpoint.root, target)
    if target_files.target_state(target) is TargetState.FOREIGN:
        _check_is_result(job, target)
        return _progress(job, [])
    with target_files.target_failures(target), target_files.held(target, _request(job)):
        for left in target.rglob(f".*{PARTIAL}"):
            left.unlink()
        todo = _todo(job, target)
        with _opened(job.checkpoint.root / job.checkpoint.shards[0].name) as source:
            share = can_share(source, target)
        layouts = [job.layouts[shard.name] for shard in todo]
        shared = sum(layout.shareable for layout in layouts) if share else 0
        needed = sum(layout.size for layout in layouts) - shared + _small(job, target)
        target_files.check_space(target, needed, shared)
        work = FileWork(_progress(job, todo))
        work.on(todo, partial(_write_shard, job, target, share, work), report, most=jobs)
        for name, path in job.others.items():
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            with _opened(path) as source, target_files.growing(copy) as descriptor:
                carrier = Carrier(source, descriptor, share=share, moved=lambda _, count: work.add(0, copied=count))
                carrier.carry(Piece(0, 0, os.fstat(source).st_size))
        target_files.finish(target, job.texts)
    return work.now


def survey(job: Job, target: Path) -> WouldReblock:
    """What `reblock` would do; writes nothing. Raises the DeployError that it would begin with."""
    target_files.check_apart(job.checkpoint.root, target)
    state = target_files.target_state(target)
    if written := state is TargetState.FOREIGN:
        _check_is_result(job, target)
    todo = [] if written else _todo(job, target)
    place = next(path for path in (target, *target.absolute().parents) if path.is_dir())
    disk = os.statvfs(place)
    size = sum(job.layouts[shard.name].size for shard in todo) + (0 if written else _small(job, target))
    return WouldReblock(
        state=state.value,
        shards=len(job.layouts),
        todo=len(todo),
        bytes=size,
        free=disk.f_bavail * disk.f_frsize,
        old_block=tuple(job.old),
        new_block=tuple(job.new),
    )


def new_config(config: Mapping[str, Any], block: Block) -> dict[str, Any]:
    """config.json with the new block; nothing else changes."""
    return {**config, "quantization_config": {**config["quantization_config"], "weight_block_size": list(block)}}


def _old_block(checkpoint: Checkpoint, new: Block) -> Block:
    """The source's; refused where it does not divide into the new one's."""
    if broken := [fault for fault in checkpoint.faults if fault.id.startswith("CONFIG")]:
        raise DeployError(
            f"{broken[0].where}: {broken[0].what}", where=str(checkpoint.root), fix=broken[0].fix, kind="broken-source"
        )
    block = quantised_block(checkpoint.config)
    where = str(checkpoint.root / CONFIG)
    if block is None:
        quantization = checkpoint.config.get("quantization_config")
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        what = f"quantisation is {method or 'none'}; only FP8 checkpoints with a weight_block_size can be re-blocked"
        raise DeployError(what, where=where, fix="specify an FP8 checkpoint with block scales", kind="not-fp8-block")
    if block == new:
        what = f"weight_block_size is already {list(block)}"
        raise DeployError(
            what, where=where, fix="no re-blocking is needed: serve this checkpoint as it is", kind="already"
        )
    if new[0] < 1 or block[0] % new[0] or block[1] % new[1]:
        what = f"the block {list(block)} is not divisible by {new[0]}"
        raise DeployError(what, where=where, fix=f"use --block with a divisor of {gcd(*block)}", kind="not-a-divisor")
    return block


def _refuse_faults(checkpoint: Checkpoint) -> None:
    """A fault that would make a wrong target is the end; the first is told, and how many there are."""
    if stops := [fault for fault in checkpoint.faults if fault.severity is Severity.STOP]:
        more = f" (and {len(stops) - 1} more: `checkpoint check` lists them)" if len(stops) > 1 else ""
        where = str(checkpoint.root / stops[0].where)
        raise DeployError(
            f"{stops[0].what}{more}",
            where=where,
            fix=stops[0].fix or "download the checkpoint again",
            kind="broken-source",
        )


def other_files(root: Path) -> dict[str, Path]:
    """Files that travel with the weights, by their path below the root: tokenizer, code, licence.

    Raises DeployError for a link that leads out of it.
    """
    travels = files_below(root, lambda path: not path.endswith(_NOT_COPIED) and path != CONFIG)
    return {path: root / path for path in travels}


def _new_index(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, bytes]:
    if checkpoint.weight_map is None:
        return {}
    widths = {tensor.name: tensor.element_bytes for _, tensor in checkpoint.tensors() if tensor.name in shapes}
    total = checkpoint.indexed_bytes({name: prod(shape) * widths[name] for name, shape in shapes.items()})
    metadata = {**checkpoint.index_metadata, "total_size": total}
    return {INDEX: _json({"metadata": metadata, "weight_map": checkpoint.weight_map})}


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _request(job: Job) -> dict[str, Any]:
    """What identifies a run: the block, and every source file by size and mtime. source is only for messages: the same
    files mounted elsewhere are the same source."""
    root = job.checkpoint.root
    statuses = {name: (root / name).stat() for name in (*job.others, *job.texts)}
    files = {shard.name: [shard.size, shard.mtime_ns] for shard in job.checkpoint.shards}
    files |= {name: [status.st_size, status.st_mtime_ns] for name, status in statuses.items()}
    return {"format": 1, "source": str(root), "block": list(job.new), "files": dict(sorted(files.items()))}


def _check_is_result(job: Job, target: Path) -> None:
    """A directory with files and no journal is either exactly this result or not ours."""
    wrong = [name for name, layout in job.layouts.items() if not target_files.is_whole(target / name, layout)]
    wrong += [name for name, text in job.texts.items() if not _holds(target / name, text)]
    wrong += [name for name in job.others if not (target / name).is_file()]
    if wrong:
        what = f"is not empty, and differs from what this run would write: {wrong[0]} differs or is missing"
        fix = "specify an empty or new directory (--verify compares this one with the source and writes nothing)"
        raise DeployError(what, where=str(target), fix=fix, kind="target-exists")


def _holds(path: Path, text: bytes) -> bool:
    with suppress(OSError):
        return path.stat().st_size == len(text) and path.read_bytes() == text
    return False


def _todo(job: Job, target: Path) -> list[Shard]:
    return [s for s in job.checkpoint.shards if not target_files.is_whole(target / s.name, job.layouts[s.name])]


def _small(job: Job, target: Path) -> int:
    """Bytes of what is written beside the shards."""
    others = sum(path.stat().st_size for name, path in job.others.items() if not (target / name).exists())
    return others + sum(map(len, job.texts.values()))


def _progress(job: Job, todo: Sequence[Shard]) -> Progress:
    """Before the first byte. todo: shards that are not written yet"""
    total = sum(layout.size for layout in job.layouts.values())
    resumed = total - sum(job.layouts[shard.name].size for shard in todo)
    return Progress(total, resumed, len(job.layouts), len(job.layouts) - len(todo), resumed)


def _write_shard(job: Job, target: Path, share: bool, work: FileWork, shard: Shard) -> None:
    layout = job.layouts[shard.name]
    with (
        _opened(job.checkpoint.root / shard.name, shard) as source,
        target_files.growing(target / shard.name) as descriptor,
    ):
        os.ftruncate(descriptor, layout.size)
        write_at(descriptor, layout.head, 0)
        for scale in layout.scales:
            old = _read_scale(source, shard, scale)
            if not job.accept_scales:
                _refuse_odd_scale(old, scale.source, job.checkpoint.root / shard.name)
            new = finer(old, job.weights[scale.source.name], scale.source.element_bytes, job.old, job.new)
            write_at(descriptor, new, scale.target)
            work.add(len(new), scales=len(new))
        carrier = Carrier(source, descriptor, share=share, moved=lambda how, count: work.add(count, **{how: count}))
        for piece in layout.pieces:
            carrier.carry(piece)
    work.add(len(layout.head), shards_done=1)


def _read_scale(source: int, shard: Shard, scale: NewScale) -> bytes:
    try:
        return read_exactly(source, scale.source.nbytes, shard.header.data_start + scale.source.begin)
    except OSError as wrong:
        raise SourceUnreadable(wrong.errno, wrong.strerror) from None


def _refuse_odd_scale(raw: bytes, tensor: Tensor, file: Path) -> None:
    """Raises DeployError that names the tensor."""
    fix = "download the checkpoint again; to write such scales as they are: --accept-scales"
    if tensor.dtype not in SCALE_TYPES:
        what = f"{tensor.name} has scales of the type {tensor.dtype}, which no quantisation gives"
        raise DeployError(what, where=str(file), fix=fix, kind="odd-scale")
    if (odd := odd_scale(raw, tensor.dtype)) is not None:
        at, kind = odd
        what = f"{tensor.name} has a scale that is {kind} at element {at}, which no quantisation gives"
        raise DeployError(what, where=str(file), fix=fix, kind="odd-scale")


@contextmanager
def _opened(path: Path, shard: Shard | None = None) -> Iterator[int]:
    """A file of the source; a shard is the same from the first to the last byte that is read of it. An error of the
    source names the source, not the target that was being written."""
    try:
        descriptor = open_source(path)
        try:
            _check_unchanged(descriptor, path, shard)
            yield descriptor
            _check_unchanged(descriptor, path, shard)
        finally:
            os.close(descriptor)
    except SourceUnreadable as wrong:
        fix = "check its owner and mode, and the disk (`dmesg`)"
        raise DeployError(f"cannot be read: {wrong.strerror}", where=str(path), fix=fix, kind="unreadable") from None


def _check_unchanged(descriptor: int, path: Path, shard: Shard | None) -> None:
    status = os.fstat(descriptor)
    if shard is not None and (status.st_size, status.st_mtime_ns) != (shard.size, shard.mtime_ns):
        fix = "wait until no process writes to the source, then start with a new target"
        raise DeployError("the file changed while it was being read", where=str(path), fix=fix, kind="source-changed")
