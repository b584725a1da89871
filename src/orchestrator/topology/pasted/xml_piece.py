"""A piece of NCCL's topology file that somebody cut out of its middle: what hangs below which of its bridges."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from orchestrator.topology.pasted.facts import Line, PastedFacts
from orchestrator.topology.pci import GPU_CLASSES, known_part, normal_address, number

_TAG = re.compile(r"<(?P<end>/?)(?P<tag>pci|gpu|nic|net)\b(?P<attributes>[^<>]{0,1500}?)(?P<empty>/?)>")
_ATTRIBUTE = re.compile(r'(\w{2,24})="([^"]{0,128})"')
_MOST = 1024


@dataclass
class _OpenElements:
    """open: tags with their attributes; gpus: attributes by address; behind: names by the nearest bridge above"""

    open: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    gpus: dict[str, dict[str, str]] = field(default_factory=dict)
    behind: dict[str, list[str]] = field(default_factory=dict)

    def read(self, match: re.Match[str]) -> None:
        """A tag."""
        attributes = dict(_ATTRIBUTE.findall(match["attributes"]))
        if not match["end"]:
            self.take(match["tag"], attributes)
            self.open.append((match["tag"], attributes))
        if match["end"] or match["empty"]:
            self.leave(match["tag"])

    def take(self, tag: str, attributes: dict[str, str]) -> None:
        """An element that begins."""
        if tag == "pci" and attributes.get("class", "")[:6] in GPU_CLASSES:
            self.gpus.setdefault(attributes.get("busid", ""), {}).update(attributes)
        above = [own for name, own in self.open if name == "pci"]
        if tag == "gpu" and above:
            self.gpus.setdefault(above[-1].get("busid", ""), {}).update(above[-1] | attributes)
        if tag == "net" and attributes.get("port") != "0" and len(above) > 1:
            self._hang(above, attributes.get("name", ""))

    def leave(self, tag: str) -> None:
        """An element that ends; one that began before the piece ends it all."""
        while self.open:
            name, attributes = self.open.pop()
            if name == "pci" and attributes.get("busid", "") in self.gpus:
                self._hang([*(own for kind, own in self.open if kind == "pci"), attributes], attributes["busid"])
            if name == tag:
                return

    def _hang(self, above: Sequence[Mapping[str, str]], name: str) -> None:
        if len(above) > 1:
            self.behind.setdefault(above[-2].get("busid", ""), []).append(name)


def read(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """The GPUs and cards of one node's lines, without their places: how much is above them is not in the text."""
    own = [line for line in lines if "<pci busid=" in line.text]
    if not own:
        return
    piece = _OpenElements()
    for match in chain.from_iterable(_TAG.finditer(line.text) for line in lines):
        piece.read(match)
    piece.leave("")
    gpus = _gpus(piece.gpus)
    if gpus or piece.behind:
        called = {gpu["pci_bus_id"]: f"GPU{gpu['index']}" for gpu in gpus}
        behind = {bridge: [called.get(name, name) for name in names] for bridge, names in piece.behind.items()}
        first = own[0]
        yield PastedFacts("a piece of NCCL's topology", first.number, first.node, gpus=gpus, also={"behind": behind})


def _gpus(raw: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """As NVML's; by its index where each has one."""
    numbers = [number(attributes.get("dev", ""), otherwise=-1) for attributes in raw.values()]
    indices = numbers if len({*numbers}) == len(numbers) and min(numbers, default=-1) >= 0 else range(len(numbers))
    return [
        {
            "index": index,
            "pci_bus_id": normal_address(address),
            "name": known_part(number(attributes.get("vendor", ""), 16), number(attributes.get("device", ""), 16)),
        }
        for index, (address, attributes) in zip(indices, [*raw.items()][:_MOST], strict=False)
    ]
