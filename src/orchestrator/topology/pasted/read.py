"""A pasted text as snapshots, one a machine: its sections are recognised, and put together by whose they are.

NCCL's log (NCCL_DEBUG=INFO) names its hosts itself. It has devices, and the tree that its GRAPH lines print
(src/graph/topo.cc, ncclTopoPrint): each rank prints what is left after NCCL has cut the node into halves, so the trees
of all ranks together are the node's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import NOT_RECORDED, Snapshot
from orchestrator.model.topology import Area
from orchestrator.model.words import counted
from orchestrator.topology.nccl_devices import opened
from orchestrator.topology.pasted import lists, lspci, measured, tools, xml_piece
from orchestrator.topology.pasted.facts import Line, PastedFacts, lines_of
from orchestrator.topology.pci import XML_ROOT, normal_address, sort_key
from orchestrator.topology.stated import PASTED

FORMS = (
    "nvidia-smi topo -m or -p2p, lspci -vvv, -vvnn or -tv, NCCL's log with NCCL_DEBUG=INFO, ibv_devinfo -v, ibstat,"
    " show_gids, ibdev2netdev, rdma link, ip -br addr, ifconfig, nvidia-smi, nvidia-smi -q, numactl -H, lscpu,"
    " dmidecode -t slot, check_env of SGLang, collect_env of vLLM, dmesg, /proc/cmdline, p2pBandwidthLatencyTest,"
    " simpleP2P, nvbandwidth, perftest, nccl-tests, ethtool, lsmod, gdscheck -p, ulimit -l, df /dev/shm"
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
        parts = [*_logged(lines)]
        for own in collected((line.node, line) for line in lines).values():  # pdsh mixes those of several
            parts += (*tools.read(own), *lspci.read(own), *xml_piece.read(own))
        _put_together(file, sorted(parts, key=lambda part: part.line), machines)
    taken: dict[str, Snapshot] = {}
    for machine in machines:
        called = machine.node or (machine.file if len(machines) > 1 else home)
        names = (called, *(f"{called}-{number}" for number in range(2, _MOST_MACHINES + 1)))
        name = next(free for free in names if free not in taken)
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
    _leave_out_cuda_s_order(parts)
    unlisted = _leave_out_lists_of_others(parts)
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
            whole.also = _joined(whole.also, part.also)
            whole.areas |= part.areas
            whole.driver = whole.driver or part.driver
            for gpu in part.gpus:
                gpus.setdefault(gpu["index"], {}).update(gpu)
    pieces = [*whole.also.get("nameless", []), *_links_alone(others), *_links_alone(unlisted)]
    whole.also["nameless"] = _still_nameless(pieces, [*gpus.values()])
    forms = [f"{part.form}{_LEFT_OUT}" if part in others else part.form for part in parts]
    provenance = {"forms": forms, "areas": sorted(area.name for area in whole.areas), **whole.also}
    nvml = {"error": NOT_RECORDED, "devices": [gpus[index] for index in sorted(gpus)], "driver": whole.driver}
    host = {"hostname": name, **whole.host, PASTED: provenance}
    return Snapshot(node=name, taken_at=0.0, files=whole.files, links=whole.links, nvml=nvml, host=host)


def _links_alone(others: Sequence[PastedFacts]) -> list[dict[str, Any]]:
    """What of a part that is left out is true whichever GPU it is."""
    gpus = (gpu for part in others for gpu in part.gpus)
    return [
        {"pci_bus_id": gpu["pci_bus_id"], "link": gpu["link"]} for gpu in gpus if gpu.keys() >= {"link", "pci_bus_id"}
    ]


def _leave_out_lists_of_others(parts: Sequence[PastedFacts]) -> list[PastedFacts]:
    """The GPUs of each lspci without a tree that has more or fewer than nvidia-smi shows, as a part of their own: which
    is which can't be told."""
    lists = [part for part in parts if part.form in (lspci.LIST, lspci.FULL) and part.gpus and not part.files]
    shown = len({gpu["index"] for part in parts if part not in lists for gpu in part.gpus})
    left = [part for part in lists if shown not in (0, len(part.gpus))]
    return [_without_its_gpus(part, shown) for part in left]


def _without_its_gpus(part: PastedFacts, shown: int) -> PastedFacts:
    """What has the GPUs that are taken out of a part."""
    listed, part.gpus = part.gpus, []
    if len(listed) > shown:
        part.also["listed_and_shown"] = [len(listed), shown]
    return PastedFacts(part.form, part.line, gpus=listed)


def _still_nameless(pieces: Sequence[dict[str, Any]], gpus: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is told of a GPU by its address alone, is told of the one in a list that has it."""
    own = {normal_address(str(gpu.get("pci_bus_id") or "")): gpu for gpu in gpus}
    left = []
    for piece in pieces:
        gpu = own.get(normal_address(str(piece.get("pci_bus_id") or "")))
        if gpu is None or not gpu.get("pci_bus_id"):
            left.append(piece)
        else:
            gpu.update(piece)
    return left


def _joined(first: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What two sections tell; of one thing that both list, what either has."""
    joined = {**first, **other}
    for name in first.keys() & other.keys():
        if isinstance(first[name], list) and isinstance(other[name], list):
            joined[name] = [*first[name], *(entry for entry in other[name] if entry not in first[name])]
        elif name == "guest":
            joined[name] = first[name] or other[name]
    return joined


def _leave_out_cuda_s_order(parts: Sequence[PastedFacts]) -> None:
    """CUDA's list has an order of its own, fastest first: beside another list its numbers would name other GPUs."""
    if any(part.gpus for part in parts if part.form not in _BY_CUDA):
        for part in parts:
            part.gpus = [] if part.form in _BY_CUDA else part.gpus


_BY_CUDA = (lists.CUDA, measured.NVBANDWIDTH)


def _of_other_gpus(trees: Sequence[PastedFacts], parts: Sequence[PastedFacts]) -> list[PastedFacts]:
    """Trees with more or fewer GPUs than the rest tells of: which is which can't be told. A matrix of accesses is left
    out beside such a tree, since it tells of nothing else."""
    accesses = [part for part in parts if part.form == tools.ACCESSES]
    indices = {gpu["index"] for part in parts if part not in (*trees, *accesses) for gpu in part.gpus}
    others = [part for part in trees if indices and part.gpus and len(part.gpus) != len(indices)]
    return others + _of_another_count(accesses, [part for part in trees if part not in others])


def _of_another_count(accesses: Sequence[PastedFacts], trees: Sequence[PastedFacts]) -> list[PastedFacts]:
    counts = {len(tree.gpus) for tree in trees if tree.gpus}
    return [part for part in accesses if counts and len(part.gpus) not in counts]


_NCCL_LOG = "NCCL's log"
_LINE = re.compile(
    r"(?:^|.{0,256}?[\s\]|:])(?P<host>[A-Za-z0-9][\w.-]{0,63}):(?P<who>\d{1,10}:\d{1,10}) \[-?\d{1,4}\] (?:\S{1,64} )?"
    r"NCCL INFO (?P<words>.*)"
)
_BARE_LINE = re.compile(r"(?P<host>)\[(?P<who>-?\d{1,4})\] NCCL INFO (?P<words>.*)")
"""As people cut it: without the host, and the processes told apart by the GPU alone."""
_BELOW_GRAPH = "======"
_CPU = re.compile(r"CPU/(?:[0-9a-f]+-)?([0-9a-f]{1,16}) \(")
_NODE = re.compile(
    r"(?P<indent>\s*)\+ (?P<link>[A-Z0-9]{2,4})\[(?P<gbs>\d{1,5}(?:\.\d{1,6})?)\] - "
    r"(?P<kind>[A-Z]{3})/(?:[0-9a-f]{1,4}-)?(?P<id>[0-9a-fA-F]{1,16})(?: \((?P<ids>[0-9a-f]{1,16})\))?"
)
_PORT = re.compile(r"\b([A-Za-z][\w.@-]{0,63}:\d{1,2})/(RoCE|IB)\b")
_INTERFACE = re.compile(r"\[\d{1,3}\]([A-Za-z][\w.@-]{0,15}):")
_OLD = re.compile(r"NCCL version 2\.[0-4]\.")
_PATHS = re.compile(r"(?P<end>(?:GPU|NET)/[0-9a-fA-F-]{1,24}) :(?=[A-Z]{3}/)")
_ENDS = re.compile(
    r"\b(?P<end>(?P<kind>GPU|NET)/(?P<id>[0-9a-fA-F-]{1,24})) \(\d{1,4}/[\d.]{1,16}/(?P<type>[A-Z]{3,4})\)"
)
"""The paths of one GPU or card (src/graph/topo.cc, printNodePaths)."""
_DISTANCE = re.compile(
    r"CUDA Dev (?P<gpu>\d{1,3})\[\d{1,3}\], \w{1,16} NIC distance : {1,3}(?P<type>[A-Z]{3,4}(?: [A-Z]{3,4}){0,31})"
)
"""Of NCCL up to 2.4 (src/transport/net.cc), for each of its network devices."""
_DIRECT = re.compile(
    r"NET/\w{2,16} ?: GPU Direct RDMA (?P<state>Enabled|Disabled) for (?:HCA \d{1,3} '(?P<name>[\w.@:-]{1,64})'"
    r"|GPU (?P<gpu>[0-9a-f]{1,16})(?:\[\w{1,16}\])? / HCA (?P<hca>\d{1,3})(?P<why> \(distance \d [<>=]{1,2} \d\))?)"
)
_PLUGIN = re.compile(
    r"Using network (?P<plugin>(?:AWS )?Libfabric)\b"
    r"|NET/OFI Selected [Pp]rovider is (?P<adapters>\w{2,32}(?:, fabric is \w{1,32})? \(found \d{1,4} nics\))"
)
_WAY = re.compile(
    r"(?:Channel|Ring) \d{1,3}(?:/\d{1,3})? : .{3,64}? via "
    r"(?P<way>(?:P2P|SHM|NET)/(?:AWS )?[A-Za-z]{2,16}(?:/\d{1,3})?(?:/GDRDMA)?)"
)
_SET = re.compile(r"(?P<name>NCCL_[A-Z0-9_]{2,48}) set by environment to (?P<value>[\w.,:^=/+-]{1,96}?)\.?$")
_IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device")
_CLASSES = {"PCI": "0x060400", "GPU": "0x030200", "NIC": "0x020000"}
_NVSWITCH = "ffffffff:ff:ff.f"
"""An end that NVML names in no machine's tree."""
_MOST_FUNCTIONS = 1024


@dataclass
class _LoggedHost:
    """above: by who prints, (column, path, where lines below it begin) of the CPU and what hangs below it, down to the
    last line; functions: (kind, ids) by path; speeds: GB/s of the link above it, by path; net: of each of NCCL's
    devices the path of its card, and GB/s; opened: what it says of RDMA devices; layers: the link layer of each port"""

    line: Line
    above: dict[str, list[tuple[int, str, int]]] = field(default_factory=dict)
    functions: dict[str, tuple[str, str]] = field(default_factory=dict)
    speeds: dict[str, str] = field(default_factory=dict)
    net: dict[int, tuple[str, float]] = field(default_factory=dict)
    opened: dict[str, None] = field(default_factory=dict)
    layers: dict[str, str] = field(default_factory=dict)
    sockets: dict[str, None] = field(default_factory=dict)
    for_start: bool = False
    """Sockets were named for NCCL's start alone, as before 2.5 (bootstrapNetInit), ahead of the network's choice."""
    without_rdma: bool = False
    """NCCL's own support of RDMA says that it saw no device."""
    plugin: str = ""
    """What NCCL's network is where that is no part of NCCL: 'AWS Libfabric'."""
    adapters: str = ""
    """What aws-ofi-nccl says that it found (src/nccl_ofi_net.cpp): 'efa (found 16 nics)'."""
    over_sockets: bool = False
    """NCCL says that its network is sockets."""
    named: dict[str, None] = field(default_factory=dict)
    """GPUs in the lines of paths below a graph."""
    cut: bool = False
    """The beginning of a graph is not there."""
    nvlinks: dict[str, dict[str, int]] = field(default_factory=dict)
    """Other ends of NVLinks and how many lead there, by the path of the GPU."""
    direct: dict[str, str] = field(default_factory=dict)
    """Whether NCCL uses GPUDirect RDMA, by whose access it is about."""
    ways: dict[str, None] = field(default_factory=dict)
    """Of channels between ranks: P2P/CUMEM."""
    between: dict[tuple[str, str], str] = field(default_factory=dict)
    """Path types, by both ends, as its lines of paths name them."""
    chosen: dict[str, None] = field(default_factory=dict)
    """Variables that NCCL read in its environment, NAME=value."""
    ended: set[str] = field(default_factory=set)
    """Who printed the line below a graph: without it the text ends, or was cut, amid it."""

    @property
    def is_cut(self) -> bool:
        """Whether the text has not the whole of a graph."""
        return self.cut or len(self.named) > len(self.paths("GPU")) > 0

    def paths(self, kind: str) -> list[str]:
        return [path for path, (own, _) in self.functions.items() if own == kind]

    @property
    def tells_something(self) -> bool:
        return bool(self.paths("GPU") or self.layers or self.sockets or self.choices)

    @property
    def choices(self) -> dict[str, list[str]]:
        """What NCCL says of itself, by what it is about."""
        off = [who for who, state in self.direct.items() if state == "Disabled"]
        network = [words] if (words := " by ".join(filter(None, (self.plugin, self.adapters)))) else []
        none_seen = ["none"] if self.without_rdma and not self.layers else []
        choices = {
            "network": network,
            "no_rdma": none_seen,
            "gdr_off": off,
            "ways": [*self.ways],
            "chosen": [*self.chosen],
            "paths": [*self._path_words()],
        }
        return {name: values[:_MOST_FUNCTIONS] for name, values in choices.items() if values}

    def _path_words(self) -> Iterator[str]:
        """Where there is no graph, which has them all: 'NET/4: PHB to NET/5, SYS to GPU/18000'."""
        if not self.functions:
            for end, pairs in collected((one, (kind, other)) for (one, other), kind in self.between.items()).items():
                by_type = collected(pairs)
                yield f"{end}: " + ", ".join(f"{kind} to {' and '.join(others)}" for kind, others in by_type.items())


def _logged(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """The nodes whose ranks wrote the lines."""
    hosts: dict[str, _LoggedHost] = {}
    old = any(_OLD.search(line.text) for line in lines if "NCCL version 2." in line.text)
    for line in lines:
        match = (_LINE.match(line.text) or _BARE_LINE.match(line.text)) if "NCCL INFO " in line.text else None
        if match is None or len(hosts) > _MOST_FUNCTIONS:
            continue
        host = hosts.setdefault(match["host"], _LoggedHost(line, for_start=old))
        _take(host, match["who"], match["words"])
    for name, host in hosts.items():
        if host.tells_something:
            yield _facts(name, host)


def _take(host: _LoggedHost, who: str, words: str) -> None:
    if match := _CPU.match(words):
        host.above[who] = [(-1, f"{XML_ROOT}cpu{match[1]}", 0)]
    elif match := _NODE.match(words):
        if who in host.above:
            _node(host, who, match)
        else:
            host.cut = True
    elif match := _PATHS.match(words):
        _paths_of(host, match["end"], [*_ENDS.finditer(words)])
    elif match := _DISTANCE.match(words):
        types = match["type"].split()
        host.between |= {(f"CUDA device {match['gpu']}", f"NIC {place}"): kind for place, kind in enumerate(types)}
    elif words.startswith(_BELOW_GRAPH):
        host.ended.add(who)
    else:
        _network(host, words)


def _paths_of(host: _LoggedHost, end: str, others: Sequence[re.Match[str]]) -> None:
    """One line of paths; an end's way to itself says nothing."""
    if end.startswith("GPU/"):
        host.named |= dict.fromkeys(other["id"] for other in others if other["kind"] == "GPU")
    if len(host.between) < _MOST_FUNCTIONS:
        host.between |= {(end, other["end"]): other["type"] for other in others if other["end"] != end}


def _network(host: _LoggedHost, words: str) -> None:
    """What NCCL says of its network, or of its own choices."""
    _support(host, words)
    if words.startswith("NET/Plugin : No plugin") and host.sockets:
        host.for_start = True
    elif words.startswith(("Using network Socket", "NET/IB : No device found", "Using NCCL_NET Socket")):
        host.over_sockets = True
    elif match := _DIRECT.match(words) or _WAY.match(words) or _SET.match(words):
        _choice(host, match)
    elif words.startswith("NET/IB"):
        host.opened.setdefault(words)
        host.layers |= dict(_PORT.findall(words))
    elif words.startswith("NET/Socket : Using"):
        host.sockets |= dict.fromkeys(_INTERFACE.findall(words))


def _support(host: _LoggedHost, words: str) -> None:
    """What carries NCCL's traffic beside its own sockets, as it says."""
    if match := _PLUGIN.match(words):
        host.plugin, host.adapters = match["plugin"] or host.plugin, match["adapters"] or host.adapters
    host.without_rdma = host.without_rdma or words.startswith("NET/IB : No device found")


def _choice(host: _LoggedHost, match: re.Match[str]) -> None:
    """What NCCL does, and was told to do."""
    if match.re is _WAY:
        host.ways.setdefault(match["way"])
    elif match.re is _SET:
        host.chosen.setdefault(f"{match['name']}={match['value']}")
    else:
        of_gpu = f"GPU {match['gpu']} and HCA {match['hca']}{match['why'] or ''}"
        host.direct[match["name"] or of_gpu] = match["state"]


def _node(host: _LoggedHost, who: str, match: re.Match[str]) -> None:
    """Deeper columns hang below, where nothing is missing beginning where the name above does; what an NVLink or the
    way between sockets leads to stands elsewhere in the tree."""
    column = len(match["indent"])
    chain = host.above[who] = [link for link in host.above[who] if link[0] < column]
    _, path, below = chain[-1]
    if match["kind"] == "NET" and match["link"] == "NET":
        host.net.setdefault(int(match["id"][-4:], 16), (path, float(match["gbs"])))
    elif match["link"] == "NVL":
        other_end = _address(match["id"]) if match["kind"] == "GPU" else _NVSWITCH
        host.nvlinks.setdefault(path, {}).setdefault(other_end, _links(float(match["gbs"])))
    elif match["link"] == "PCI" and match["kind"] in _CLASSES:
        own = f"{path}/{_address(match['id'])}"
        if len(host.functions) < 2 * _MOST_FUNCTIONS:
            ids = {"PCI": (match["ids"] or "").rjust(16, "0"), "GPU": "10de".ljust(16, "0")}
            host.speeds[own] = f"{float(match['gbs']):g}"
            host.functions[own] = (match["kind"], ids.get(match["kind"], "0" * 16))
        chain.append((column, own, match.start("kind")))
        host.cut = host.cut or below != column


_NVLINK_GBS = {20.6: 18, 40.1: 18, 20.0: 12, 18.0: 4, 12.0: 4}
"""GB/s of one NVLink as NCCL counts it (src/graph/topo.h: SM90, SM100, SM70 and SM80, SM60, SM86), and how many a GPU
of that architecture has at most."""


def _links(gbs: float) -> int:
    """How many NVLinks have that bandwidth together; 1 where that can't be told."""
    counts = {round(gbs / one) for one, most in _NVLINK_GBS.items() if round(gbs / one) <= most and _is_times(gbs, one)}
    return counts.pop() if len(counts) == 1 else 1


def _is_times(gbs: float, one: float) -> bool:
    """NCCL prints one digit behind the point."""
    return round(gbs / one) > 0 and abs(round(gbs / one) * one - gbs) < 0.06


def _address(number: str) -> str:
    """NCCL prints an address as one number: its digits without what separates them."""
    digits = number.lower().rjust(9, "0")
    return f"{digits[:-5][-8:]}:{digits[-5:-3]}:{digits[-3:-1]}.{digits[-1] if digits[-1] < '8' else 0}"


def _facts(name: str, host: _LoggedHost) -> PastedFacts:
    facts = PastedFacts(_NCCL_LOG, host.line.number, name)
    for key, (kind, ids) in host.functions.items():
        facts.files |= {f"{key}/{name}": f"0x{ids[4 * place :][:4]}" for place, name in enumerate(_IDS)}
        facts.files[f"{key}/class"] = _CLASSES[kind]
        facts.files[f"{key}/numa_node"] = _numa_node(key)
    addresses = sorted((key.rpartition("/")[2] for key in host.paths("GPU")), key=sort_key)
    facts.gpus = [{"index": index, "pci_bus_id": address} for index, address in enumerate(addresses)]
    _take_nvlinks(facts, host)
    if addresses and not host.is_cut and host.ended >= host.above.keys():
        facts.areas = set(Area)
    facts.also = _beside_the_graph(host)
    _take_ports(facts, host)
    return facts


def _numa_node(key: str) -> str:
    """The NUMA node above a function of NCCL's graph, as the kernel writes it; -1 where none stands there."""
    numa = key.removeprefix(f"{XML_ROOT}cpu").partition("/")[0]
    return str(int(numa, 16)) if len(numa) < 4 else "-1"


def _beside_the_graph(host: _LoggedHost) -> dict[str, Any]:
    also: dict[str, Any] = {"nccl": host.choices} if host.choices else {}
    if not host.layers and (host.over_sockets or not host.for_start):
        also["sockets"] = [*host.sockets]
    speeds = (f"{host.functions[path][0]}|{path.rpartition('/')[2]}|{gbs}" for path, gbs in host.speeds.items())
    also["nccl_speeds"] = [entry for entry in speeds if not entry.startswith("PCI|")]
    if host.is_cut and host.named:
        also["lacking"] = [f"lines of NCCL's graph, which has {counted(len(host.named), 'GPU')} in all"]
    return also


def _take_nvlinks(facts: PastedFacts, host: _LoggedHost) -> None:
    ends = {path.rpartition("/")[2]: others for path, others in host.nvlinks.items()}
    for gpu in facts.gpus:
        if others := ends.get(gpu["pci_bus_id"]):
            link = {"active": 1, "p2p": 1}
            gpu["nvlinks"] = [{**link, "remote": other} for other, links in others.items() for _ in range(links)]


def _take_ports(facts: PastedFacts, host: _LoggedHost) -> None:
    cards = host.paths("NIC")
    for port, (path, gbs) in _ports(host).items():
        device, number = port.split(":")
        folder = f"{path}/infiniband/{device}" if path in cards else f"/sys/devices/virtual/infiniband/{device}"
        at, layer = f"{folder}/ports/{number}", "Ethernet" if host.layers[port] == "RoCE" else "InfiniBand"
        facts.links[f"/sys/class/infiniband/{device}"] = folder
        facts.files |= {f"{at}/state": "4: ACTIVE", f"{at}/link_layer": layer}
        if gbs:
            facts.files[f"{at}/rate"] = f"{gbs * 8:g} Gb/sec"


def _ports(host: _LoggedHost) -> dict[str, tuple[str, float]]:
    """{port: (path of its card, GB/s)}; the ports of a merged device share its speed."""
    devices = opened(host.opened)
    drawn = [(devices.get(number, ()), path, gbs) for number, (path, gbs) in host.net.items()]
    known = {port: (path, gbs / len(entry)) for entry, path, gbs in drawn for port in entry}
    known |= _only_one_left(host, devices, known)
    ports = (port for entry in devices.values() for port in entry)
    return {port: known.get(port, ("", 0.0)) for port in ports if port in host.layers}


def _only_one_left(
    host: _LoggedHost, devices: Mapping[int, Sequence[str]], known: Mapping[str, tuple[str, float]]
) -> dict[str, tuple[str, float]]:
    """A single rank's graph has its card without a line of the network: one card and one port are each other's."""
    taken = {path for path, _ in known.values()}
    cards = [path for path in host.paths("NIC") if path not in taken]
    ports = [port for entry in devices.values() for port in entry if port not in known]
    return {ports[0]: (cards[0], 0.0)} if len(cards) == len(ports) == 1 else {}
