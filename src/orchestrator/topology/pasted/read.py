"""A pasted text as snapshots, one a machine: its sections are recognised, and put together by whose they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.model.snapshot import NOT_RECORDED, Snapshot
from orchestrator.topology.pasted import lspci, matrix, nccl, tools
from orchestrator.topology.pasted.facts import Line, PastedFacts, lines_of, runs
from orchestrator.topology.stated import PASTED

FORMS = (
    "nvidia-smi topo -m, lspci -vvv, -vvnn or -tv, NCCL's log with NCCL_DEBUG=INFO, ibv_devinfo -v, ibstat, show_gids,"
    " ip -br addr, nvidia-smi -q, check_env of SGLang, collect_env of vLLM"
)
_MOST_MACHINES = 64
_LEFT_OUT = " (of other GPUs: left out)"


@dataclass
class _PastedMachine:
    node: str
    file: str
    parts: list[PastedFacts] = field(default_factory=list)

    def has(self, form: str) -> bool:
        return any(part.form == form for part in self.parts)


def read_pasted(texts: Mapping[str, str], home: str) -> dict[str, Snapshot]:
    """Snapshots by node, {} where nothing is recognised. Any text is read; never raises.

    texts: by file; home: name of a machine that no text names. Where there are several, they are named as the files in
    which they begin
    """
    machines: list[_PastedMachine] = []
    for file, text in texts.items():
        lines = lines_of(text)
        parts = [*nccl.read(lines), *(part for own in runs(lines) for part in _read(own))]
        _put_together(file, sorted(parts, key=lambda part: part.line), machines)
    taken: dict[str, Snapshot] = {}
    for machine in machines:
        own = machine.node or (machine.file if len(machines) > 1 else home)
        name, number = own, 1
        while name in taken:
            number += 1
            name = f"{own}-{number}"
        taken[name] = _snapshot(name, machine.parts)
    return taken


def _read(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    for reader in (matrix, lspci, tools):
        yield from reader.read(lines)


def _put_together(file: str, parts: Sequence[PastedFacts], machines: list[_PastedMachine]) -> None:
    """A part goes to the machine that it names, else to the one before it, else to a new one where that one has such a
    part already and there are not too many."""
    for part in parts:
        mine = [machine for machine in machines if machine.node == part.node] if part.node else machines[-1:]
        if not mine and machines and not machines[-1].node and not machines[-1].has(part.form):
            mine = machines[-1:]
            mine[0].node = part.node
        if not mine or mine[-1].has(part.form):
            mine = [_PastedMachine(part.node, file)]
            machines += mine[: _MOST_MACHINES - len(machines)]
        mine[-1].parts.append(part)


def _snapshot(name: str, parts: Sequence[PastedFacts]) -> Snapshot:
    others = _of_other_gpus(parts)
    trees = sorted(filter(_is_tree, parts), key=lambda one: (id(one) in others, -len(one.areas)))
    kept = [part for part in parts if part not in trees[1:] and id(part) not in others]
    host: dict[str, Any] = {"hostname": name}
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for part in kept:
        host, files, links = host | part.host, files | part.files, links | part.links
    host[PASTED] = {
        "forms": [f"{part.form}{_LEFT_OUT * (id(part) in others)}" for part in parts],
        "areas": sorted({area.name for part in kept for area in part.areas}),
        "sockets": [name for part in kept for name in part.sockets],
        "stated": next((part.stated for part in parts if part.stated), None),
    }
    driver = next((part.driver for part in parts if part.driver), "")
    nvml = {"error": NOT_RECORDED, "devices": _gpus(kept), "driver": driver}
    return Snapshot(node=name, taken_at=0.0, files=files, links=links, nvml=nvml, host=host)


def _of_other_gpus(parts: Sequence[PastedFacts]) -> set[int]:
    """Ids of trees with more or fewer GPUs than the rest tells of: which is which can't be told."""
    told = {gpu["index"] for part in parts if not _is_tree(part) for gpu in part.gpus}
    trees = [part for part in parts if _is_tree(part) and part.gpus]
    return {id(part) for part in trees if told and len(part.gpus) != len(told)}


def _is_tree(part: PastedFacts) -> bool:
    return any(path.endswith("/class") for path in part.files)


def _gpus(parts: Sequence[PastedFacts]) -> list[dict[str, Any]]:
    """What the parts say of each GPU, by its index."""
    found: dict[int, dict[str, Any]] = {}
    for part in parts:
        for gpu in part.gpus:
            found.setdefault(gpu["index"], {}).update(gpu)
    return [found[index] for index in sorted(found)]
