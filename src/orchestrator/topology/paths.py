"""Path types between GPUs and from GPUs to NICs: as NCCL names them, and as `nvidia-smi topo -m` lays them out; and the
shape of a node in a short text: its switches, what is behind each, and the path types between its GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.model.per_node import collected
from orchestrator.model.topology import Area, NumaDomain, PathType, Topology
from orchestrator.model.words import counted
from orchestrator.topology.build import cpulist, cpumap
from orchestrator.topology.distance import Distances, end_key
from orchestrator.topology.pci import card, nic_cards
from orchestrator.topology.switches import SwitchPlaces, homes


@dataclass(frozen=True, slots=True)
class PathEnd:
    """A GPU or a NIC: its name (GPU0, mlx5_0) and the key of its PCI function, '' where it has none."""

    name: str
    key: str
    numa_node: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Two ends and the path type between them as NCCL names it; None where a PCI function is not known."""

    one: str
    other: str
    type: PathType | None


def gpu_ends(topology: Topology) -> tuple[PathEnd, ...]:
    """Every GPU, by index; one that NVML does not show is named by its address."""
    return tuple(
        PathEnd(
            f"GPU{gpu.index}" if gpu.index >= 0 else f"GPU@{gpu.address}",
            gpu.key if gpu.key in topology.devices or topology.stated else "",
            gpu.numa_node,
        )
        for gpu in topology.gpus
    )


def nic_ends(topology: Topology) -> tuple[PathEnd, ...]:
    """Every RDMA device in order of name; where the machine shows none, its network cards by interface or address."""
    return _rdma_ends(topology) if topology.rdma else _card_ends(topology)


def _rdma_ends(topology: Topology) -> tuple[PathEnd, ...]:
    ports = {name: own[0] for name, own in collected((port.device, port) for port in topology.rdma).items()}
    order = [name for name in topology.stated.nics if name in ports] if topology.stated else []
    ends = {name: ports[name] for name in (*order, *ports)}
    return tuple(
        PathEnd(name, end_key(port) if topology.stated else port.key, port.numa_node) for name, port in ends.items()
    )


def _card_ends(topology: Topology) -> tuple[PathEnd, ...]:
    names = {interface.key: interface.name for interface in topology.interfaces if interface.key}
    firsts = [functions[0] for functions in nic_cards(topology).values()]
    return tuple(
        PathEnd(names.get(function.key) or card(function.address), function.key, function.numa_node)
        for function in firsts
    )


def paths(topology: Topology) -> tuple[Pair, ...]:
    """Every pair of GPUs and of a GPU and a NIC once, the lower index first and the GPU before the NIC."""
    distances = Distances(topology)

    def pair(first: PathEnd, other: PathEnd) -> Pair:
        known = first.key and other.key
        path = distances.path_type(first.key, other.key) if known else _by_domains(topology, first, other)
        return Pair(first.name, other.name, None if path is PathType.DIS else path)

    gpus = gpu_ends(topology)
    between = itertools.starmap(pair, itertools.combinations(gpus, 2))
    return (*between, *itertools.starmap(pair, itertools.product(gpus, nic_ends(topology))))


def _by_domains(topology: Topology, first: PathEnd, other: PathEnd) -> PathType:
    """NCCL's file has cards that were merged into one device right below a CPU, and so does NCCL's graph."""
    if not first.key or not placed_by_domain(topology) or min(first.numa_node, other.numa_node) < 0:
        return PathType.DIS
    return PathType.PHB if first.numa_node == other.numa_node else PathType.SYS


def placed_by_domain(topology: Topology) -> dict[str, int]:
    """{RDMA device of which NCCL's topology file tells the CPU and no more: its NUMA domain}"""
    if not topology.of_text or topology.stated:
        return {}
    return {port.device: port.numa_node for port in topology.rdma if not port.key and port.numa_node >= 0}


@dataclass(frozen=True, slots=True)
class Sharing:
    """GPUs and NICs, by name, that reach each other without the CPU: they are behind one switch, or several of one."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]


def stated_groups(topology: Topology) -> tuple[Sharing, ...]:
    """The GPUs, with NICs, that share a switch by their path types: more than one GPU, or a GPU and a NIC."""
    near = [pair for pair in paths(topology) if pair.type in (PathType.PIX, PathType.PXB)]
    home = _homes_by_paths(topology, near)
    members = collected((place, gpu) for gpu, place in home.items())
    nics = collected((home[pair.one], pair.other) for pair in near if pair.other not in home)
    sharings = (Sharing(tuple(group), tuple(dict.fromkeys(nics.get(place, ())))) for place, group in members.items())
    return tuple(sharing for sharing in sharings if sharing.nics or len(sharing.gpus) > 1)


def _homes_by_paths(topology: Topology, near: Sequence[Pair]) -> dict[str, str]:
    """{GPU: a GPU that stands for all behind the same switch}"""
    gpus = [gpu.name for gpu in gpu_ends(topology)]
    home = dict(zip(gpus, gpus, strict=True))
    for first, other in (*_side_by_side(near, home), *_by_their_cards(topology, near)):
        old, new = home[other], home[first]
        home = {gpu: new if place == old else place for gpu, place in home.items()}
    return home


def _side_by_side(near: Sequence[Pair], gpus: Collection[str]) -> list[tuple[str, str]]:
    return [(pair.one, pair.other) for pair in near if pair.other in gpus]


def _by_their_cards(topology: Topology, near: Sequence[Pair]) -> list[tuple[str, str]]:
    """GPUs that are near the same NIC, where NVLink hides the PCIe path between them, or the text has none."""
    linked = {(pair.one, pair.other) for pair in paths(topology) if pair.type in (PathType.NVL, None)}
    gpus_of = collected((pair.other, pair.one) for pair in near)
    pairs = (pair for gpus in gpus_of.values() for pair in itertools.combinations(gpus, 2))
    return [pair for pair in pairs if pair in linked]


def matrix(topology: Topology) -> str:
    """What `nvidia-smi topo -m` prints of this machine: tab-separated, NICs by number with a legend below."""
    gpus, nics = gpu_ends(topology), nic_ends(topology)
    ends = [*gpus, *nics]
    heads = [*(gpu.name for gpu in gpus), *_nic_heads(topology, nics)]
    distances = Distances(topology, merge=False)

    def word(first: PathEnd, other: PathEnd) -> str:
        if first is other:
            return "X"
        return distances.nvidia_smi_word(first.key, other.key) if first.key and other.key else "N/A"

    columns = topology.stated.columns if topology.stated else _COLUMNS
    rows = [[head, *(word(end, other) for other in ends)] for head, end in zip(heads, ends, strict=True)]
    affinities = itertools.chain((_affinity(topology, gpu) for gpu in gpus), itertools.repeat(()))
    whole = [[*row, *affinity] for row, affinity in zip(rows, affinities, strict=False)]
    lines = ["\t".join(row) for row in (["", *heads, *columns], *whole)]
    named = [f"  {head}: {nic.name}" for head, nic in zip(heads[len(gpus) :], nics, strict=True) if head != nic.name]
    return "\n".join([*lines, "", *_LEGEND, *(["", "NIC Legend:", "", *named] if named else [])])


def _nic_heads(topology: Topology, nics: Sequence[PathEnd]) -> list[str]:
    """NIC0, or what a pasted matrix has for it."""
    stated = topology.stated
    head_of = {stated.name(head): head for head in stated.heads} if stated else {}
    taken = set(head_of.values())
    free = (f"NIC{number}" for number in itertools.count() if f"NIC{number}" not in taken)
    return [head_of[nic.name] if nic.name in head_of else next(free) for nic in nics]


def _affinity(topology: Topology, end: PathEnd) -> Sequence[str]:
    if topology.stated:
        return next((cells for head, _, cells in topology.stated.rows if head == end.name), ())
    near = _domains_near(topology, end)
    nodes = [str(domain.node) for domain in near]
    if not nodes and end.numa_node >= 0:
        nodes = [str(end.numa_node)]
    spans = ",".join(domain.cpulist for domain in near if domain.cpulist), ",".join(nodes)
    return (*(cpulist(cpumap(each)) or "N/A" for each in spans), "N/A")


def _domains_near(topology: Topology, end: PathEnd) -> list[NumaDomain]:
    """Where the kernel names no domain, all are near: its local_cpulist has every CPU then."""
    return [domain for domain in topology.numa if domain.node == end.numa_node or (end.key and end.numa_node < 0)]


_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_LEGEND = (
    "Legend:",
    "",
    "  X    = Self",
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)",
    "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node",
    "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)",
    "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)",
    "  PIX  = Connection traversing at most a single PCIe bridge",
    "  NV#  = Connection traversing a bonded set of # NVLinks",
)


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

    @property
    def words(self) -> str:
        """'4 GPUs + 1 NIC'."""
        nested = f" ({self.inner} switches nested below)" if self.inner > 1 else ""
        return f"{counted(self.gpus, 'GPU')} + {counted(self.nics, 'NIC')}{nested}"


NONE_SHARED = "none of which shares a switch in what was read"
"""Of a tree that may be cut: bridges above a GPU may have more behind them."""
NO_TREE = "whose places in the PCIe tree are not in the text"
"""Of GPUs in a list without one: nothing is behind a switch, or not, as far as anybody can tell."""


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
    tree_known: bool = True
    bus_known: bool = True
    """Whether it was read which functions there are."""
    stated_words: tuple[str, ...] = ()
    """What the text calls the paths between GPUs: NODE is PHB for NCCL."""
    cut_off: int = 0
    """GPUs whose row a text does not have whole."""
    of_text: bool = False
    """It was pasted: of a card that is not in it nothing follows."""
    nics: int | None = None
    """Network cards; None where a text has no tree, and none can be counted in it."""

    @property
    def words(self) -> str:
        """'2 switches with 4 GPUs + 1 NIC each, 1 NIC elsewhere; GPUs PIX inside, SYS across'."""
        if not self.groups and not self.gpus_elsewhere:
            return "no GPU" if self.bus_known else "no list of GPUs in what was read"
        if self.stated is not None:
            return self._stated_words(self.stated)
        words = self._places()
        paths = [f"{_names(self.inside)} inside"] if self.inside else []
        if self.across:
            across = _names(self.across)
            paths.append(f"{across} across" if self.groups else across)
        return words + (f"; between GPUs {', '.join(paths)}" if paths else "")

    @property
    def _may_be_cut(self) -> bool:
        """Of a card that is not there nothing follows."""
        return self.of_text or not self.bus_known

    def _stated_words(self, groups: Sequence[int]) -> str:
        if self.gpus_elsewhere == 1:
            return "1 GPU behind a switch" if groups else "1 GPU"
        each = " each" if len(groups) > 1 else ""
        behind = f", {' + '.join(map(str, groups))} behind a switch{each}" if groups else ""
        if groups and (rest := self.gpus_elsewhere - sum(groups)):
            behind += f", {rest} elsewhere"
        if self.cut_off:
            behind = f", rows of {self.cut_off} of them are cut off"
        return (
            f"{counted(self.gpus_elsewhere, 'GPU')}{behind}; between GPUs {'/'.join(self.stated_words) or 'not known'}"
        )

    def _places(self) -> str:
        if not self.groups:
            place = NO_TREE
            if self.tree_known:
                place = NONE_SHARED if self._may_be_cut else "none behind a switch"
            return f"{counted(self.gpus_elsewhere, 'GPU')}, {place}"
        groups = [self._words_of(group) for group in self.groups]
        alike = len(set(groups)) == 1 and len(groups) > 1
        words = f"{counted(len(groups), 'switch', 'es')} with "
        words += f"{groups[0]} each" if alike else " and ".join(groups)
        words += f", {counted(self.gpus_elsewhere, 'GPU')} elsewhere" if self.gpus_elsewhere else ""
        if self._may_be_cut and not self.nics_elsewhere:
            return words
        return f"{words}, {counted(self.nics_elsewhere, 'NIC')} elsewhere"

    def _words_of(self, group: SwitchGroup) -> str:
        return group.words if group.nics or not self._may_be_cut else group.words.replace(" + 0 NICs", "", 1)


def _names(paths: tuple[PathType, ...]) -> str:
    return "/".join(path.name for path in paths)


def shape(topology: Topology) -> Shape:
    """The shape of one node."""
    places = SwitchPlaces(topology.switches)
    tops = {gpu: places.above(f"{home}/")[-1] if home else "" for gpu, home in homes(topology, places).items()}
    cards = [places.above(functions[0].key) for functions in nic_cards(topology).values()]
    inside, across = _between(topology, tops)
    return Shape(
        groups=tuple(_switch_groups(topology, places, tops, cards)),
        gpus_elsewhere=sum(not top for top in tops.values()),
        nics_elsewhere=sum(set(tops.values()).isdisjoint(chain) for chain in cards),
        inside=inside,
        across=across,
        stated=_stated(topology),
        tree_known=_tree_known(topology),
        bus_known=not topology.lacks(Area.PCI),
        stated_words=_words_between_gpus(topology),
        cut_off=_cut_off(topology),
        of_text=topology.of_text,
        nics=_nics(topology, cards),
    )


def _nics(topology: Topology, cards: Sequence[object]) -> int | None:
    """Of a list without places the cards are named as facts only."""
    if topology.stated and _stated(topology) is not None:
        return len(topology.stated.nics)
    count = len(cards) + len(placed_by_domain(topology))
    return count if count or not topology.of_text or _tree_known(topology) else None


def _tree_known(topology: Topology) -> bool:
    return any(gpu.key in topology.devices for gpu in topology.gpus)


def stated_switches(topology: Topology, seen: Shape) -> Iterator[SwitchGroup]:
    """The groups that a matrix shows, whose switches have no address in it."""
    numa = {end.name: end.numa_node for end in gpu_ends(topology)}
    for group in stated_groups(topology) if seen.stated is not None else ():
        domains = {numa[gpu] for gpu in group.gpus}
        domain = domains.pop() if len(domains) == 1 else -1
        yield SwitchGroup("", domain, len(group.gpus), len(group.nics))


def _switch_groups(
    topology: Topology, places: SwitchPlaces, tops: Mapping[str, str], cards: Sequence[Sequence[str]]
) -> Iterator[SwitchGroup]:
    """Of each topmost switch with GPUs. tops: of each GPU; cards: the switches above each network card"""
    for switch in topology.switches:
        gpus = [places.above(gpu) for gpu, top in tops.items() if top == switch.key]
        nics = [chain for chain in cards if switch.key in chain]
        inner = {key for chain in (*gpus, *nics) for key in chain} - {switch.key}
        if gpus:
            yield SwitchGroup(switch.address, switch.numa_node, len(gpus), len(nics), len(inner))


def _between(topology: Topology, tops: Mapping[str, str]) -> list[tuple[PathType, ...]]:
    """Path types between GPUs behind the same top switch, and between all others."""
    distances, inside, across = Distances(topology), set[PathType](), set[PathType]()
    for first, other in itertools.combinations(topology.gpus, 2):
        together = tops[first.key] and tops[first.key] == tops[other.key]
        (inside if together else across).add(distances.path_type(first.key, other.key))
    return [tuple(sorted(types - {PathType.DIS})) for types in (inside, across)]


def _stated(topology: Topology) -> tuple[int, ...] | None:
    if topology.stated is None or any(gpu.key in topology.devices for gpu in topology.gpus):
        return None
    return tuple(len(group.gpus) for group in stated_groups(topology))


_NEAREST_FIRST = ("NVL", "PIX", "PXB", "PHB", "NODE", "SYS")


def _words_between_gpus(topology: Topology) -> tuple[str, ...]:
    """Nearest first; of NVLinks not how many."""
    stated = topology.stated.words() if topology.stated else {}
    gpus = {gpu.name for gpu in gpu_ends(topology)}
    words = {nearness(word) for (first, other), word in stated.items() if first != other and {first, other} <= gpus}
    return tuple(word for word in _NEAREST_FIRST if word in words)


def nearness(word: str) -> str:
    """A word of `nvidia-smi topo -m` without the number of NVLinks; SOC is what SYS was."""
    return "NVL" if word.startswith("NV") else word.replace("SOC", "SYS")


def nearest_card_words(topology: Topology, gpu: str) -> str:
    """What the text calls the shortest of a GPU's paths to cards; '' where it has none."""
    stated = topology.stated.words() if topology.stated else {}
    words = {nearness(word) for (first, other), word in stated.items() if first == gpu and not other.startswith("GPU")}
    return next((word for word in _NEAREST_FIRST if word in words), "")


def _cut_off(topology: Topology) -> int:
    """GPUs without a whole row, where the others have one."""
    stated = topology.stated
    if stated is None:
        return 0
    whole = {row for row, words, _ in stated.rows if len(words) == len(stated.heads)}
    return sum(head.startswith("GPU") and head not in whole for head in stated.heads)
