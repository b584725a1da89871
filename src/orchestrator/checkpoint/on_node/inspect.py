"""The facts of a checkpoint directory as JSON-able values: what `checkpoint inspect` judges and shows."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.directory import Checkpoint, quantised_block, read_checkpoint
from orchestrator.checkpoint.on_node.target import JOURNAL
from orchestrator.node.failure import os_failures
from orchestrator.node.requests import request_of
from orchestrator.protocol.jobs import Fault, Gravity, InspectRequest

_LAYER = re.compile(r"(?:model\.|language_model\.){0,2}layers\.(\d{1,9})\.(?:[^.]+\.experts\.(\d{1,9})\.)?")
"""A tensor of the language model's layer; vision towers name theirs otherwise."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Verb `inspect`: as `look`, with the configuration as text, as InspectAnswer of protocol/jobs.py."""
    directory = Path(request_of(InspectRequest, request).directory)
    with os_failures(str(directory)):
        found = look(directory)
    return {**found, "config": json.dumps(found["config"])}


def look(directory: Path) -> dict[str, Any]:
    """Read a directory. Raises Failure where there is none; faults are listed, not raised.

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


def _unfinished(directory: Path) -> list[Fault]:
    if not (directory / JOURNAL).exists():
        return []
    what = "re-blocking into this directory was interrupted, or is in progress"
    return [
        Fault(
            "UNFINISHED", Gravity.STOP, JOURNAL, what, "run the same `l40s-deploy checkpoint reblock` again to continue"
        )
    ]


def _by_dtype(checkpoint: Checkpoint) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for _, tensor in checkpoint.tensors():
        counts[tensor.dtype] += 1
        sizes[tensor.dtype] += tensor.nbytes
    kinds = {dtype: {"count": counts[dtype], "bytes": sizes[dtype]} for dtype in sorted(counts)}
    return {"count": counts.total(), "by_dtype": kinds}


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
