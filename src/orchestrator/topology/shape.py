"""The shape of a node in a few words: its switches, what is behind each, and how far the GPUs are from each other."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.model.topology import PathType, Topology
from orchestrator.topology.distance import Distances
from orchestrator.topology.draw import nic_cards
from orchestrator.topology.switches import SwitchPlaces


@dataclass(frozen=True, slots=True)
class SwitchGroup:
    """What is behind one switch: GPUs and NIC cards, whatever these are used for."""

    switch: str
    numa_node: int
    gpus: int
    nics: int


@dataclass(frozen=True, slots=True)
class Shape:
    """The switches with GPUs behind them, the rest, and the path types between GPUs, by NCCL's rules.

    inside: between GPUs behind one switch; across: between all others
    """

    groups: tuple[SwitchGroup, ...]
    gpus_elsewhere: int
    nics_elsewhere: int
    inside: tuple[PathType, ...]
    across: tuple[PathType, ...]

    @property
    def words(self) -> str:
        """'2 switches with 4 GPUs + 1 NIC each, 1 NIC elsewhere; GPUs PIX inside, SYS across'."""
        if not self.groups:
            return f"{self.gpus_elsewhere} GPUs, none behind a switch" if self.gpus_elsewhere else "no GPU"
        groups = [f"{group.gpus} GPUs + {group.nics} NIC{'' if group.nics == 1 else 's'}" for group in self.groups]
        alike = len(set(groups)) == 1 and len(groups) > 1
        count = f"{len(groups)} switch{'es' if len(groups) > 1 else ''} with "
        words = count + (f"{groups[0]} each" if alike else " and ".join(groups))
        words += f", {self.gpus_elsewhere} GPUs elsewhere" if self.gpus_elsewhere else ""
        words += f", {self.nics_elsewhere} NIC{'' if self.nics_elsewhere == 1 else 's'} elsewhere"
        paths = [f"{_names(self.inside)} inside"] if self.inside else []
        paths += [f"{_names(self.across)} across"] if self.across else []
        return words + (f"; between GPUs {', '.join(paths)}" if paths else "")


def _names(paths: tuple[PathType, ...]) -> str:
    return "/".join(path.name for path in paths)


def shape(topology: Topology) -> Shape:
    """The shape of one node."""
    places = SwitchPlaces(topology.switches)
    cards = [places.nearest(functions[0].key) for functions in nic_cards(topology).values()]
    held = [gpu.switch for gpu in topology.gpus]
    groups = tuple(
        SwitchGroup(switch.address, switch.numa_node, held.count(switch.key), cards.count(switch.key))
        for switch in topology.switches
        if switch.key in held
    )
    distances = Distances(topology)
    inside: set[PathType] = set()
    across: set[PathType] = set()
    for number, gpu in enumerate(topology.gpus):
        for other in topology.gpus[number + 1 :]:
            together = gpu.switch and gpu.switch == other.switch
            (inside if together else across).add(distances.path_type(gpu.key, other.key))
    return Shape(
        groups=groups,
        gpus_elsewhere=held.count(""),
        nics_elsewhere=len(cards) - sum(group.nics for group in groups),
        inside=tuple(sorted(inside)),
        across=tuple(sorted(across)),
    )
