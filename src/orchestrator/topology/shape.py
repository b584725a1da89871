"""The shape of a node in a few words: its switches, what is behind each, and how far the GPUs are from each other."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.model.topology import PathType, Topology
from orchestrator.topology.cards import nic_cards
from orchestrator.topology.distance import Distances
from orchestrator.topology.homes import homes
from orchestrator.topology.switches import SwitchPlaces


@dataclass(frozen=True, slots=True)
class SwitchGroup:
    """What is behind one top switch and the switches nested below it: GPUs and NIC cards, whatever these are used for.

    inner: how many switches with GPUs or cards are nested below it
    """

    switch: str
    numa_node: int
    gpus: int
    nics: int
    inner: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """The top switches with GPUs behind them, the rest, and the path types between GPUs, by NCCL's rules.

    inside: between GPUs behind one top switch; across: between all others
    """

    groups: tuple[SwitchGroup, ...]
    gpus_elsewhere: int
    nics_elsewhere: int
    inside: tuple[PathType, ...]
    across: tuple[PathType, ...]

    @property
    def words(self) -> str:
        """'2 switches with 4 GPUs + 1 NIC each, 1 NIC elsewhere; GPUs PIX inside, SYS across'."""
        if not self.groups and not self.gpus_elsewhere:
            return "no GPU"
        if self.groups:
            groups = [_group_words(group) for group in self.groups]
            alike = len(set(groups)) == 1 and len(groups) > 1
            count = f"{len(groups)} switch{'es' if len(groups) > 1 else ''} with "
            words = count + (f"{groups[0]} each" if alike else " and ".join(groups))
            words += f", {self.gpus_elsewhere} GPUs elsewhere" if self.gpus_elsewhere else ""
            words += f", {self.nics_elsewhere} NIC{'' if self.nics_elsewhere == 1 else 's'} elsewhere"
        else:
            words = f"{self.gpus_elsewhere} GPU{'' if self.gpus_elsewhere == 1 else 's'}, none behind a switch"
        paths = [f"{_names(self.inside)} inside"] if self.inside else []
        paths += [f"{_names(self.across)}{' across' if self.groups else ''}"] if self.across else []
        return words + (f"; between GPUs {', '.join(paths)}" if paths else "")


def _group_words(group: SwitchGroup) -> str:
    words = f"{group.gpus} GPU{'' if group.gpus == 1 else 's'} + {group.nics} NIC{'' if group.nics == 1 else 's'}"
    return words + (f" ({group.inner} switches nested below)" if group.inner > 1 else "")


def _names(paths: tuple[PathType, ...]) -> str:
    return "/".join(path.name for path in paths)


def shape(topology: Topology) -> Shape:
    """The shape of one node."""
    places = SwitchPlaces(topology.switches)
    home = homes(topology, places)
    tops = {key: places.above(f"{switch}/")[-1] if switch else "" for key, switch in home.items()}
    cards = [places.above(functions[0].key) for functions in nic_cards(topology).values()]
    groups = []
    for switch in topology.switches:
        gpus = sum(top == switch.key for top in tops.values())
        if gpus:
            chains = [places.above(gpu.key) for gpu in topology.gpus if tops[gpu.key] == switch.key]
            inside = [chain for chain in cards if switch.key in chain]
            inner = {key for chain in (*chains, *inside) for key in chain if key != switch.key}
            groups.append(SwitchGroup(switch.address, switch.numa_node, gpus, len(inside), len(inner)))
    known = {switch.key for switch in topology.switches if any(top == switch.key for top in tops.values())}
    inside_types, across = _between(topology, tops)
    return Shape(
        groups=tuple(groups),
        gpus_elsewhere=sum(not top for top in tops.values()),
        nics_elsewhere=sum(known.isdisjoint(chain) for chain in cards),
        inside=inside_types,
        across=across,
    )


def _between(topology: Topology, tops: dict[str, str]) -> tuple[tuple[PathType, ...], tuple[PathType, ...]]:
    """Path types between GPUs behind one top switch, and between all others."""
    distances = Distances(topology)
    inside: set[PathType] = set()
    across: set[PathType] = set()
    for number, gpu in enumerate(topology.gpus):
        for other in topology.gpus[number + 1 :]:
            together = tops[gpu.key] and tops[gpu.key] == tops[other.key]
            (inside if together else across).add(distances.path_type(gpu.key, other.key))
    return tuple(sorted(inside)), tuple(sorted(across))
