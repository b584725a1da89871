"""A pasted text as snapshots, one a machine: its sections are recognised, and put together by whose they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import NOT_RECORDED, Snapshot
from orchestrator.topology.pasted import lspci, matrix, nccl, tools
from orchestrator.topology.pasted.facts import PastedFacts, lines_of
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
        parts = [*nccl.read(lines)]
        for own in collected((line.node, line) for line in lines).values():  # pdsh mixes those of several
            parts += (*matrix.read(own), *lspci.read(own), *tools.read(own))
        _put_together(file, sorted(parts, key=lambda part: part.line), machines)
    taken: dict[str, Snapshot] = {}
    for machine in machines:
        called = machine.node or (machine.file if len(machines) > 1 else home)
        names = (called, *(f"{called}-{number}" for number in range(2, _MOST_MACHINES + 1)))
        name = next(one for one in names if one not in taken)
        taken[name] = _snapshot(name, machine.parts)
    return taken


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
    trees = [part for part in parts if any(path.endswith("/class") for path in part.files)]
    others = _of_other_gpus(trees, parts)
    trees.sort(key=lambda part: (part in others, -len(part.areas)))
    whole = PastedFacts("", 0)
    gpus: dict[int, dict[str, Any]] = {}
    for part in parts:
        if part not in (*others, *trees[1:]):
            whole.files |= part.files
            whole.links |= part.links
            whole.host |= part.host
            whole.also |= part.also
            whole.areas |= part.areas
            whole.driver = whole.driver or part.driver
            for gpu in part.gpus:
                gpus.setdefault(gpu["index"], {}).update(gpu)
    forms = [f"{part.form}{_LEFT_OUT * (part in others)}" for part in parts]
    told = {"forms": forms, "areas": sorted(area.name for area in whole.areas), **whole.also}
    nvml = {"error": NOT_RECORDED, "devices": [gpus[index] for index in sorted(gpus)], "driver": whole.driver}
    host = {"hostname": name, **whole.host, PASTED: told}
    return Snapshot(node=name, taken_at=0.0, files=whole.files, links=whole.links, nvml=nvml, host=host)


def _of_other_gpus(trees: Sequence[PastedFacts], parts: Sequence[PastedFacts]) -> list[PastedFacts]:
    """Trees with more or fewer GPUs than the rest tells of: which is which can't be told."""
    told = {gpu["index"] for part in parts if part not in trees for gpu in part.gpus}
    return [part for part in trees if told and part.gpus and len(part.gpus) != len(told)]
