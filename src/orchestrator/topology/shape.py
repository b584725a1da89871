"""The shape of a node, as a short text: its switches, what is behind each, and the paths between its GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.model.topology import PathType, Switch, Topology
from orchestrator.topology.distance import Distances
from orchestrator.topology.paths import stated_groups
from orchestrator.topology.pci import nic_cards
from orchestrator.topology.switches import SwitchPlaces, homes

Chain = tuple[str, ...]
"""Keys of the switches above a GPU or a card, nearest first."""


@dataclass(frozen=True, slots=True)
class SwitchGroup:
    """What is behind one top switch and the switches nested below it: GPUs and NIC cards, whatever these are used for.

    inner: number of switches nested below it that have GPUs or cards
    """

    switch: str
    numa_node: int
    gpus: int
    nics: int
    inner: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """The top switches with GPUs behind them, the rest, and the path types between GPUs by NCCL's rules.

    inside: between GPUs behind the same top switch; across: between all others
    """

    groups: tuple[SwitchGroup, ...]
    gpus_elsewhere: int
    nics_elsewhere: int
    inside: tuple[PathType, ...]
    across: tuple[PathType, ...]
    stated: tuple[int, ...] | None = None
    """GPUs of each group that a text states to share a switch; None where the machine's own tree is known."""

    @property
    def words(self) -> str:
        """'2 switches with 4 GPUs + 1 NIC each, 1 NIC elsewhere; GPUs PIX inside, SYS across'."""
        if not self.groups and not self.gpus_elsewhere:
            return "no GPU"
        if self.stated is not None:
            behind = f", {' + '.join(map(str, self.stated))} behind a switch each" if self.stated else ""
            return f"{counted(self.gpus_elsewhere, 'GPU')}{behind}; between GPUs {_names(self.across) or 'not known'}"
        if self.groups:
            groups = [_group_words(group) for group in self.groups]
            alike = len(set(groups)) == 1 and len(groups) > 1
            words = f"{counted(len(groups), 'switch', 'es')} with "
            words += f"{groups[0]} each" if alike else " and ".join(groups)
            words += f", {self.gpus_elsewhere} GPUs elsewhere" if self.gpus_elsewhere else ""
            words += f", {counted(self.nics_elsewhere, 'NIC')} elsewhere"
        else:
            words = f"{counted(self.gpus_elsewhere, 'GPU')}, none behind a switch"
        paths = [f"{_names(self.inside)} inside"] if self.inside else []
        paths += [f"{_names(self.across)}{' across' if self.groups else ''}"] if self.across else []
        return words + (f"; between GPUs {', '.join(paths)}" if paths else "")


def counted(number: int, what: str, plural: str = "s") -> str:
    """'1 GPU', '2 GPUs'."""
    return f"{number} {what}{'' if number == 1 else plural}"


def _group_words(group: SwitchGroup) -> str:
    words = f"{counted(group.gpus, 'GPU')} + {counted(group.nics, 'NIC')}"
    return words + (f" ({group.inner} switches nested below)" if group.inner > 1 else "")


def _names(paths: tuple[PathType, ...]) -> str:
    return "/".join(path.name for path in paths)


def shape(topology: Topology) -> Shape:
    """The shape of one node."""
    places = SwitchPlaces(topology.switches)
    tops = {gpu: places.above(f"{home}/")[-1] if home else "" for gpu, home in homes(topology, places).items()}
    cards = [places.above(functions[0].key) for functions in nic_cards(topology).values()]
    groups = []
    for switch in topology.switches:
        gpus = [places.above(gpu) for gpu, top in tops.items() if top == switch.key]
        if gpus:
            groups.append(_group(switch, gpus, [chain for chain in cards if switch.key in chain]))
    inside, across = _between(topology, tops)
    return Shape(
        groups=tuple(groups),
        gpus_elsewhere=sum(not top for top in tops.values()),
        nics_elsewhere=sum(set(tops.values()).isdisjoint(chain) for chain in cards),
        inside=inside,
        across=across,
        stated=_stated(topology),
    )


def _stated(topology: Topology) -> tuple[int, ...] | None:
    placed = {device.key for device in topology.pci}
    if topology.stated is None or any(gpu.key in placed for gpu in topology.gpus):
        return None
    return tuple(len(group.gpus) for group in stated_groups(topology))


def _group(switch: Switch, gpus: Sequence[Chain], cards: Sequence[Chain]) -> SwitchGroup:
    inner = {key for chain in (*gpus, *cards) for key in chain} - {switch.key}
    return SwitchGroup(switch.address, switch.numa_node, len(gpus), len(cards), len(inner))


def _between(topology: Topology, tops: dict[str, str]) -> tuple[tuple[PathType, ...], tuple[PathType, ...]]:
    """Path types between GPUs behind the same top switch, and between all others."""
    distances = Distances(topology)
    inside: set[PathType] = set()
    across: set[PathType] = set()
    for number, gpu in enumerate(topology.gpus):
        for other in topology.gpus[number + 1 :]:
            together = tops[gpu.key] and tops[gpu.key] == tops[other.key]
            (inside if together else across).add(distances.path_type(gpu.key, other.key))
    return tuple(sorted(inside - {PathType.DIS})), tuple(sorted(across - {PathType.DIS}))
