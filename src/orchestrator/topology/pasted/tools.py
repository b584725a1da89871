"""What tools print: the matrix of `nvidia-smi topo -m`, whose rows may be wrapped, cut off, in a Markdown table or amid
a log; and what small ones tell of ports, addresses and GPUs.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.model.per_node import collected
from orchestrator.model.topology import Area
from orchestrator.topology.pasted import complaints, hosts, lists, measured, smi
from orchestrator.topology.pasted.facts import Line, PastedFacts, first_match
from orchestrator.topology.pci import number
from orchestrator.topology.stated import WORD

_HCA = re.compile(r"\s*(hca_id:\s+|CA '|Infiniband device ')([A-Za-z][\w.@-]{0,63})(?:'(?: port (\d{1,3}) status:)?)?")
_VERBS = {"h": "ibv_devinfo", "C": "ibstat", "I": "ibstatus"}
_FIELD = re.compile(
    r"(?:\s+|(?=(?:fw_ver|board_id|vendor_part_id|port|state|phys_state|link_layer|active_(?:width|speed|mtu)|max_mtu)"
    r":\s))"
    r"([\w. ]{2,24}):(?:\s+(.{1,128}))?"
)
"""Without its indentation, as some forums leave it, only of names that are read."""
_GID = re.compile(
    r"\s*GID\[\s*(?P<index>\d{1,4})\]:\s+(?P<gid>[0-9a-fA-F:.]{2,64})(?:, (?P<kind>RoCE v[12]|IB/RoCE v1))?"
)
_SHOWN_GID = re.compile(
    r"\s*(?P<device>[A-Za-z][\w.@-]{0,63})\s+(?P<port>\d{1,2})\s+(?P<index>\d{1,4})\s+"
    r"(?P<gid>[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){7})\s+(?:[\d.]{7,15}\s+)?v?(?P<kind>1|2)(?:\s+(?P<netdev>\S{0,16}))?"
)
_SHOWN_HEAD = re.compile(r"\s*DEV\s+PORT\s+INDEX\s+GID\b.*")
_ASKED = re.compile(r".{0,96}?(?<![A-Za-z])ibv_devinfo(?: -v)? -d (?P<asked>mlx5_\w{1,32})\b.{0,32}")
"""Each mlx5 device has one port (drivers/infiniband/hw/mlx5: a device for each)."""
_NAME_AND_STATE = (
    r"\s*(?P<name>[A-Za-z][\w.@:-]{0,31}?)(?:@\w{1,16})?\s+(?P<operstate>UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT)"
)
_BRIEF = re.compile(_NAME_AND_STATE + r"(?P<addresses>(?:\s+[0-9a-fA-F.:]{2,45}/\d{1,3})*)(?: metric \d+)?\s*")
_BRIEF_LINK = re.compile(_NAME_AND_STATE + r"\s+[0-9a-f]{2}(?::[0-9a-f]{2}){5,19}\s+<[A-Z0-9,_-]{0,200}>\s*")
_LONG = re.compile(
    r"\s*\d{1,6}: (?P<name>[A-Za-z][\w.-]{0,31})(?:@\w{1,16})?: <[A-Z0-9,_-]{0,200}> mtu (?P<mtu>\d{1,6}) .{0,200}?"
    r"state (?P<operstate>[A-Z]{2,16}).*"
)
_INET = re.compile(r"\s*inet6? (?P<addresses>[0-9a-fA-F.:]{2,45}/\d{1,3}).*")
_STATES = {
    word[:4].upper(): word for word in ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "Polling", "Disabled", "LinkUp")
}
"""By the first four letters: each tool writes the words in its own way."""
_OF_DEVICE = {
    "fw_ver": "fw_ver", "firmware_version": "fw_ver", "board_id": "board_id", "ca_type": "hca_type",
    "vendor_part_id": "hca_type",
}  # fmt: skip
_MTU = re.compile(r"(\d{3,4})(?: \(\d\))?")
_OF_PORT = {"active_width": "rate", "active_speed": "rate", "physical_state": "phys_state"}
"""Files in sysfs by the names of fields, where they differ."""
_MOST = 512
_Take = Callable[[PastedFacts, re.Match[str], str], str]
"""Keeps what a line tells; gives what the next lines are about, which it was given by the line before."""


def read(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """Every matrix in one node's lines, and sections of the other kinds; those of one kind are one section."""
    lines = smi.without_tags(lines)
    yield from _matrices(lines)
    yield from _accesses(lines)
    yield from _acs_alone(lines)
    yield from hosts.drawn_by_hwloc(lines)
    yield from lists.tested(lines)
    yield from hosts.limits(lines)
    complaining = complaints.among(lines)
    for form, areas, begin, more, take in _TOOLS:
        pastes: list[PastedFacts] = []
        about = ""
        for line in complaining if take in (complaints.kernel, complaints.refusal) else lines:
            match = first_match(begin, line.text)
            if match and not (pastes and _goes_on(pastes[-1], match)):
                pastes.append(PastedFacts(form, line.number, line.node, areas={*areas}))
            match = match or (first_match(more, line.text) if pastes else None)
            if match and _has_room(pastes[-1]):
                about = take(pastes[-1], match, about)
        if pastes:
            lists.complete_a_cut_name(pastes[-1], lines)
        yield from filter(_holds_something, pastes)


_ACS_WORD = re.compile(
    r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] \(ecap 000d @[0-9a-f]{2,3}\) @[0-9a-f]{2,3}"
    r" (?P<word>[0-9a-f]{4})\s*"
)
"""Of `setpci -v -s ... ECAP_ACS+6.w`."""
_REDIRECTING = 0x1C
_ACS = re.compile(r"\s*ACSCtl:\s+SrcValid[+-] TransBlk[+-] ReqRedir([+-]) CmpltRedir([+-]) UpstreamFwd([+-]).{0,64}")
_FUNCTION = re.compile(r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] ")


def _acs_alone(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """Of `lspci -vvv | grep ACSCtl`, which has not whose the lines are."""
    read = [(line, match) for line in lines if (match := _ACS_WORD.fullmatch(line.text))]
    if read:
        counts = [len(read), sum(bool(int(match["word"], 16) & _REDIRECTING) for _, match in read)]
        yield PastedFacts("setpci ECAP_ACS", read[0][0].number, read[0][0].node, also={"acs": counts})
        return
    found = [(line, match) for line in lines if (match := _ACS.fullmatch(line.text))]
    if found and not any(_FUNCTION.match(line.text) for line in lines):
        counts = [len(found), sum("+" in match.groups() for _, match in found)]
        first = found[0][0]
        yield PastedFacts("lspci -vvv | grep ACSCtl", first.number, first.node, also={"acs": counts})


def _has_room(facts: PastedFacts) -> bool:
    return len(facts.gpus) < _MOST and len(facts.files) < 64 * _MOST


def _holds_something(facts: PastedFacts) -> bool:
    if "nameless" in facts.also:  # headings alone tell nothing
        facts.also["nameless"] = [piece for piece in facts.also["nameless"] if piece.keys() - {"sections"}]
    return bool(facts.files or facts.gpus or facts.host or any(facts.also.values()) or facts.driver)


def _goes_on(facts: PastedFacts, match: re.Match[str]) -> bool:
    """An RDMA device that comes again, or by another tool, is another section's; so is a table with an own heading."""
    if match.re is not _HCA:
        return match.re is not _SHOWN_HEAD
    tool, device, number = match.groups("")
    path = f"/sys/class/infiniband/{device}/{f'ports/{number}/state' if number else 'fw_ver'}"
    return path not in facts.files and facts.form == _VERBS[tool[0]]


def _verbs(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """at: the folder of the device or port that a line is about"""
    if match.re is _HCA:
        tool, device, number = match.groups("")
        facts.form, folder = _VERBS[tool[0]], f"/sys/class/infiniband/{device}"
        facts.files.setdefault(f"{folder}/fw_ver", "")
        return f"{folder}/ports/{number}" if number else folder
    if match.re is _ASKED:
        facts.form = "ibv_devinfo"
        return f"/sys/class/infiniband/{match['asked']}/ports/1"
    if match.re is _GID:
        facts.areas.add(Area.PORTS)
        return _gid(facts, match, at) if at else at
    name, value = match[1].lower().replace(" ", "_"), (match[2] or "").strip()
    folder = at.partition("/ports/")[0]
    if number := _port_number(name, value):
        return f"{folder}/ports/{number}"
    if name in _OF_DEVICE:
        facts.files[f"{folder}/{_OF_DEVICE[name]}"] = value
    elif name in ("max_mtu", "active_mtu"):
        _packets(facts, at, name, value)
    else:
        _field_of_port(facts, at, name, value)
    return at


def _field_of_port(facts: PastedFacts, at: str, name: str, value: str) -> None:
    """at: the folder of a port; or that of a device of mlx5, which has one, where the port's own line was left out"""
    if "/ports/" not in at:
        at = f"{at}/ports/1" if "/mlx5_" in at else ""
    if at and (text := _of_port(name, value, facts.files.get(f"{at}/rate", ""))):
        facts.files[f"{at}/{_OF_PORT.get(name, name)}"] = text


def _packets(facts: PastedFacts, at: str, name: str, value: str) -> None:
    """The size of RDMA packets of the port at a folder."""
    _, device, *port = at.removeprefix("/sys/class/").split("/")
    if size := _MTU.fullmatch(value):
        sizes: dict[str, Any] = facts.also.setdefault("mtus", {}).setdefault(":".join((device, *port[1:])), {})
        sizes[name] = int(size[1])


def _port_number(name: str, value: str) -> str:
    """Of a line that begins a port, as `port: 1` or `port 1:`; '' for any other."""
    number = value
    if name != "port":
        number = "" if value else name.removeprefix("port_")
    return number if number.isdecimal() and len(number) < 4 else ""


def _lanes(text: str) -> int:
    """1 where none were read; 0 where the text is no number."""
    if not text:
        return 1
    return int(text) if text.isdecimal() else 0


def _of_port(name: str, value: str, lanes: str) -> str:
    """What sysfs would say. lanes: as `active_width`, which comes first, has left them"""
    if name in ("rate", "active_speed"):
        speed = re.match(r"(\d{1,4}(?:\.\d{1,3})?)(?: Gb|$)", value)
        factor = 1 if name == "rate" else _lanes(lanes)
        return f"{float(speed[1]) * factor:g} Gb/sec" if speed and factor else ""
    if name == "active_width":
        return width[1] if (width := re.match(r"(\d{1,2})X\b", value)) else ""
    if name == "link_layer":
        return value if value in ("Ethernet", "InfiniBand") else ""
    word = re.sub(r"^(?:\d: )?(?:PORT_)?", "", value)[:4].upper()
    return _STATES.get(word, "") if name in ("state", "phys_state", "physical_state") else ""


def _gid(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    if match.re is _SHOWN_HEAD:
        return at
    groups = match.groupdict("")
    if "device" in groups:
        at = f"/sys/class/infiniband/{groups['device']}/ports/{groups['port']}"
    with contextlib.suppress(ValueError):
        facts.files[f"{at}/gids/{groups['index']}"] = ipaddress.IPv6Address(groups["gid"]).exploded
        if kind := groups["kind"]:
            facts.files[f"{at}/gid_attrs/types/{groups['index']}"] = "RoCE v2" if kind[-1] == "2" else "IB/RoCE v1"
        if netdev := groups.get("netdev"):
            facts.files[f"{at}/gid_attrs/ndevs/{groups['index']}"] = netdev
    return at


def _rdma_link(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of `rdma link` (iproute2): a port's states, and its interface where it has one."""
    device, port, netdev = match.group("device", "port", "netdev")
    at = f"/sys/class/infiniband/{device}/ports/{port}"
    for name in ("state", "phys_state"):
        facts.files[f"{at}/{name}"] = _STATES.get((match[name] or "")[:4], "")
    states = [facts.files[f"{at}/state"], facts.files[f"{at}/phys_state"]]
    facts.also.setdefault("link_states", {}).setdefault(device, []).append(" ".join(filter(None, states)))
    if netdev or match["subnet"]:
        facts.files[f"{at}/link_layer"] = "Ethernet" if netdev else "InfiniBand"
    if netdev:
        state = "up" if match["state"] == "ACTIVE" else "down"
        facts.also.setdefault("netdevs", {})[f"{device}:{port}"] = [netdev, state]
    return at


def _address(facts: PastedFacts, match: re.Match[str], name: str) -> str:
    """name: of the interface that a line of addresses alone is about"""
    if match.re in (hosts.IFCONFIG, hosts.IFCONFIG_INET):
        return hosts.interface(facts, match, name)
    groups = match.groupdict("")
    name = groups.get("name", name)
    facts.files |= {
        f"/sys/class/net/{name}/{file}": groups[file].lower() for file in groups.keys() & {"operstate", "mtu"}
    }
    own = facts.host.setdefault("addresses", {}).setdefault(name, [])
    for text in groups.get("addresses", "").split():
        with contextlib.suppress(ValueError):
            interface = ipaddress.ip_interface(text)
            family = "inet" if interface.version == 4 else "inet6"
            own.append({"family": family, "address": str(interface.ip), "prefixlen": interface.network.prefixlen})
    return name


_Patterns = tuple[re.Pattern[str], ...]
_TOOLS: tuple[tuple[str, tuple[Area, ...], _Patterns, _Patterns, _Take], ...] = (
    ("", (Area.RDMA,), (_HCA, _ASKED), (_GID, _FIELD), _verbs),
    ("show_gids", (), (_SHOWN_HEAD, _SHOWN_GID), (), _gid),
    ("ip addr", (), (_BRIEF, _BRIEF_LINK, _LONG), (_INET,), _address),
    ("ifconfig", (), (hosts.IFCONFIG,), (hosts.IFCONFIG_INET,), _address),
    ("ibdev2netdev", (), (hosts.NETDEV,), (), hosts.netdev),
    ("rdma link", (), (hosts.RDMA_LINK,), (), _rdma_link),
    ("numactl -H", (), (hosts.NUMA_BEGIN,), (hosts.NUMA_NODE,), hosts.numa),
    ("lscpu", (), (hosts.LSCPU_BEGIN, hosts.LSCPU_DOMAINS), (hosts.LSCPU_FIELD, hosts.LSCPU_DOMAIN), hosts.processors),
    ("dmidecode -t slot", (), (hosts.SLOT_BEGIN,), (hosts.SLOT_FIELD,), hosts.slots),
    ("nvidia-smi -q", (), (smi.DRIVER, smi.ATTACHED, smi.GPU, smi.PART), (smi.FIELD, smi.SECTION), smi.queried),
    ("nvidia-smi", (), (smi.HEAD, smi.TABLE), (smi.MEMORY, smi.PROCESS, hosts.MIG_CELL), smi.listed),
    ("the kernel's log", (), complaints.OF_KERNEL, (complaints.FALLEN_BELOW,), complaints.kernel),
    ("an error of nvidia-smi", (), (complaints.REFUSED,), (), complaints.refusal),
    ("an error of ibstat", (), (complaints.IBSTAT_STOPPED,), (), complaints.ibstat_stopped),
    ("the kernel's command line", (), (hosts.BOOTED, hosts.IOMMU_KIND), (), hosts.boot),
    ("gdscheck -p", (), (hosts.GDS_IOMMU,), (), hosts.boot),
    (
        lists.CUDA,
        (),
        (lists.CUDA_DEVICE, lists.CUDA_ACCESS, lists.CUDA_MATRIX, lists.CUDA_SPEEDS),
        (lists.CUDA_LATENCY, lists.CUDA_ROW, lists.CUDA_REACHED),
        lists.cuda,
    ),
    (
        measured.NVBANDWIDTH,
        (),
        (measured.BEGIN, measured.DEVICE, measured.MATRIX),
        (measured.DRIVER, measured.ROW, measured.WAIVED),
        measured.bandwidth,
    ),
    ("perftest", (), (measured.TEST,), (measured.TEST_FIELDS, measured.TEST_HEAD, measured.TEST_ROW), measured.tested),
    ("nccl-tests", (), (measured.BUS, measured.WRONG, measured.USED, measured.RUN), (), measured.collective),
    (
        "ethtool",
        (),
        (measured.ETHTOOL, measured.PAUSE, measured.FILE, measured.COUNTER),
        (measured.ETHTOOL_FIELD, measured.PAUSE_FIELD),
        measured.ethernet,
    ),
    ("services and modules", (), (hosts.SERVICE, hosts.MODULE, hosts.WSL), (hosts.SERVICE_STATE,), hosts.running),
    ("ibv_devices", (), (hosts.DEVICES_HEAD, hosts.NO_DEVICES), (hosts.DEVICES_ROW,), hosts.devices),
    ("variables of NCCL", (), (hosts.CHOSEN,), (), hosts.chosen),
    ("simpleP2P", (), (lists.SIMPLE_P2P,), (), lists.simple_p2p),
    (
        "nvidia-smi --query-gpu",
        (),
        (lists.QUERY_ASKED, lists.QUERY_HEAD, lists.QUERY_BARE),
        (lists.QUERY_ROW,),
        lists.queried,
    ),
    ("/proc/driver/nvidia/gpus", (), (smi.INFORMATION,), (smi.INFORMATION_MORE,), smi.informed),
    ("dcgmi discovery", (), (smi.DCGM,), (smi.DCGM_MORE,), smi.informed),
    ("nvidia-smi's MIG devices", (), (hosts.MIG_DEVICE,), (), hosts.mig_devices),
    ("a list of GPUs", (), (smi.LISTED, smi.GPUSTAT), (smi.ANY_DRIVER, smi.NVLINK, hosts.MIG_LISTED), smi.listed),
)
"""Form, '' where the first line says it; what it tells all of; lines that begin it, and its others. A list of GPUs is
that of `nvidia-smi -L` or `nvlink -s`, SGLang's check_env, vLLM's collect_env or gpustat."""


_TOPO, ACCESSES = "nvidia-smi topo -m", "nvidia-smi topo -p2p"
_COLUMNS = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID|(?<!GPU )NUMA$")
"""The last: a heading that a terminal cut."""
_HEAD = re.compile(r"[A-Za-z][\w.@-]{0,31}")
_GPU = re.compile(r"GPU[0-9]{1,3}")
_GLUED = re.compile(r"(?<=\d)(?=GPU|NIC|mlx\d_|(?:bnxt_|roce)\d)")
"""Between two names: a terminal whose tabs were taken for less than a column leaves no blank."""
_DISPLAYED = re.compile(r"\s*(\d{1,4}) NICs found in the topology, only displaying (\d{1,4})\b.*")
_CELL = re.compile(r"[0-9][0-9,-]{0,255}|N/A|-")
_LEGEND = re.compile(r"[\s|*-]{0,16}(NIC[0-9]{1,3})\s{0,8}[:\uff1a]\s{0,8}([A-Za-z][\w.@-]{0,63})[\s|]{0,16}")
_STATUS = {"OK": 0, "CNS": 1, "GNS": 2, "TNS": 3, "DR": 4, "NS": 5, "U": 6}
"""nvmlGpuP2PStatus_t by the words of `nvidia-smi topo -p2p`."""
_ACCESS = re.compile("X|" + "|".join(_STATUS))
_WORDS = ("CPU", "NUMA", "Affinity", "GPU", "ID")
_MARKS = str.maketrans("|*`;", "    ")
_COMMAS = re.compile(
    r"\s*\"?(?:GPU\d{1,3}|NIC\d{1,3}|[a-z][\w.@-]{1,29})?\"? ?, ?\"?(?:GPU\d|X\b|PIX|PXB|PHB|NODE|SYS|NV\d)"
)
_IN_QUOTES = re.compile(r'"([^"]{0,256})"|,')
_MOST_ROWS = 256


def _matrices(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """Every matrix of one node's lines."""
    tokens = [_unglued(_tokens(line.text)) for line in lines]
    place = 0
    while place < len(lines):
        header = _header(tokens, place)
        text = " ".join(itertools.chain(*header) if header else _heads_by_rows(tokens, place))
        columns, names = _COLUMNS.findall(text), dict.fromkeys(_GLUED.sub(" ", _COLUMNS.sub(" ", text)).split())
        heads = [word for word in names if _HEAD.fullmatch(word) and word not in _WORDS][:_MOST_ROWS]
        rows, end = _rows(tokens, place + len(header), heads)
        _drop_cut_cell(rows)
        wrapped = sum(map(bool, header)) > 1
        if _are_path_types(rows, len(heads)) and not (wrapped and heads != list(rows)):
            facts = _facts(lines[place], heads, columns, rows, _legend(lines[end : end + _MOST_ROWS], heads))
            facts.also["lacking"] = _lacking(lines[max(0, place - _ABOVE) : place], heads, rows)
            yield facts
        place = max(end, place + 1)


_CUT_WORDS = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "NV1")
_ABOVE = 3
"""Lines above a matrix in which nvidia-smi says that it is cut."""


def _lacking(above: Sequence[Line], heads: Sequence[str], rows: Mapping[str, Sequence[str]]) -> list[str]:
    """What of the matrix is not in the text, in words."""
    cut = filter(None, (_DISPLAYED.fullmatch(line.text) for line in above))
    words = [f"{int(match[1]) - int(match[2])} of {match[1]} NICs, which nvidia-smi did not display" for match in cut]
    short = [head for head in heads if head.startswith("GPU") and len(rows.get(head, ())) < len(heads)]
    if short:
        words.append(f"the whole rows of {', '.join(short)}")
    return words


def _header(tokens: Sequence[list[str]], start: int) -> list[list[str]]:
    """Its lines, [] where none begins here: up to the first row; a terminal may have wrapped it."""
    titles: list[list[str]] = []
    if tokens[start] and _GPU.fullmatch(tokens[start][0]):
        for words in tokens[start : start + _MOST_ROWS]:
            if (titles and words[:1] == titles[0][:1]) or not all(map(_may_be_a_title, words)):
                break
            titles.append(words)
    return titles


def _heads_by_rows(tokens: Sequence[list[str]], start: int) -> list[str]:
    """The titles of columns of which only rows were pasted; [] where they can't be told. Each row has an X in its own
    column: a NIC's tells how many GPUs are before it."""
    rows = _rows_alone(tokens[start : start + _MOST_ROWS])
    places = {head: cells.index("X") for head, cells in rows.items() if cells.count("X") == 1}
    if len(places) < 2 or len(places) + 1 < len(rows):
        return []
    width = max(map(len, rows.values()))
    gpus = _gpus_before_nics(places, width)
    if any(place != int(head[3:]) or place >= gpus for head, place in places.items() if head.startswith("GPU")):
        return []
    named = {place: head for head, place in places.items()}
    return _names_of_columns(gpus, width, named) if 0 < gpus <= width else []


def _names_of_columns(gpus: int, width: int, named: Mapping[int, str]) -> list[str]:
    heads = [f"GPU{number}" for number in range(gpus)]
    return heads + [named.get(place, f"NIC{place - gpus}") for place in range(gpus, width)]


def _rows_alone(tokens: Iterable[list[str]]) -> dict[str, list[str]]:
    """Rows that follow each other, each with another head; a device's own name only below a GPU's row."""
    rows: dict[str, list[str]] = {}
    for words in tokens:
        head = words[0] if words else ""
        known = _NAMED_HEAD if rows else _NUMBERED_HEAD
        cells = list(itertools.takewhile(WORD.fullmatch, words[1:]))
        if not known.fullmatch(head) or head in rows or not cells:
            break
        rows[head] = cells
    return rows


def _gpus_before_nics(places: Mapping[str, int], width: int) -> int:
    """By the columns of the NICs' own X, or of the last column's where there is no NIC; 0 where they disagree."""
    before = {place - int(head[3:]) for head, place in places.items() if head.startswith("NIC")}
    named = [place for head, place in places.items() if not _NUMBERED_HEAD.fullmatch(head)]
    if named and f"GPU{min(named) - 1}" in places:  # its row is the first below the last GPU's
        before.add(min(named))
    if not before and width - 1 in places.values():
        return width
    return before.pop() if len(before) == 1 else 0


_NUMBERED_HEAD = re.compile(r"(?:GPU|NIC)\d{1,3}")
_NAMED_HEAD = re.compile(r"(?:GPU|NIC)\d{1,3}|[a-z][\w.@-]{0,29}\d")
_GLUED_CELLS = re.compile(r"(?:PIX|PXB|PHB|NODE|SYS|NV(?:1[0-9]|[1-9])(?=[A-Z]|$)){2,4}")
_CELL_WORD = re.compile(r"PIX|PXB|PHB|NODE|SYS|NV[0-9]{1,2}")


def _rows(
    tokens: Sequence[list[str]], start: int, heads: Sequence[str], word: re.Pattern[str] = WORD
) -> tuple[dict[str, list[str]], int]:
    """(cells by head, where something else comes); what a terminal wrapped belongs to the row above."""
    rows: dict[str, list[str]] = {}
    row: list[str] = []
    for place in range(start, len(tokens)):
        words = tokens[place]
        if words and words[0] in heads and (len(words) == 1 or word.fullmatch(words[1])):
            if words[0] in rows:
                return rows, place
            row = rows[words[0]] = words[1:]
        elif words and not (row and all(word.fullmatch(cell) or _CELL.fullmatch(cell) for cell in words)):
            return rows, place
        else:
            row += words
    return rows, len(tokens)


def _drop_cut_cell(rows: dict[str, list[str]]) -> None:
    """A text that ends amid a matrix has the beginning of its last cell's word."""
    last = next(reversed(rows.values()), []) if rows else []
    if last and not WORD.fullmatch(last[-1]) and any(word.startswith(last[-1]) for word in _CUT_WORDS):
        last.pop()


def _are_path_types(rows: Mapping[str, list[str]], width: int) -> bool:
    """Whether rows hold path types, as `topo -p2p`'s do not, and no more of them than the heading names."""
    cells = [cell for row in rows.values() for cell in row[:width]]
    beyond = [cell for row in rows.values() for cell in row[width : width + 1] if cell != "N/A"]
    return bool(cells) and all(map(WORD.fullmatch, cells)) and not any(map(WORD.fullmatch, beyond))


def _accesses(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """Every matrix of `nvidia-smi topo -p2p`: whether the driver lets GPUs reach each other's memory."""
    tokens = [_tokens(line.text) for line in lines]
    for place, words in enumerate(tokens):
        heads = list(itertools.takewhile(_GPU.fullmatch, words))
        if not heads or heads != words:
            continue
        rows, _ = _rows(tokens, place + 1, heads, _ACCESS)
        cells = [cell for row in rows.values() for cell in row]
        if heads == list(rows) and all(map(_ACCESS.fullmatch, cells)) and {*cells} & _STATUS.keys():
            yield _accesses_of(lines[max(0, place - _ABOVE) : place + 1], rows)


_MODE = re.compile(r"-p2p (?P<mode>[rwnap])\b")


def _accesses_of(above: Sequence[Line], rows: Mapping[str, list[str]]) -> PastedFacts:
    """above: up to its heading. That there is no NVLink (-p2p n), or that PCIe has no atomics (a), refuses nothing."""
    asked = next((match["mode"] for line in reversed(above) if (match := _MODE.search(line.text))), "")
    line, cells = above[-1], {head: dict(zip(rows, row, strict=False)) for head, row in rows.items()}
    if asked not in ("n", "a"):
        gpus = [{"index": int(head[3:]), "p2p": _access_of(row)} for head, row in cells.items()]
        return PastedFacts(ACCESSES, line.number, line.node, gpus=gpus)
    refused = ((head, other) for head, row in cells.items() for other, cell in row.items() if cell not in ("X", "OK"))
    pairs = dict.fromkeys(" and ".join(sorted(pair)) for pair in refused)
    return PastedFacts(f"{ACCESSES} {asked}", line.number, line.node, also={"p2p_refused": {asked: [*pairs]}})


def _access_of(cells: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """As NVML's answers, by the other GPU's index; which way the matrix was asked for, it does not say."""
    return {head[3:]: {"read": _STATUS[cell]} for head, cell in cells.items() if cell in _STATUS}


def _facts(
    first: Line, heads: list[str], columns: list[str], rows: Mapping[str, list[str]], names: Mapping[str, str]
) -> PastedFacts:
    width = len(heads)
    cells = [(head, row[:width], row[width:][: len(columns)]) for head, row in rows.items()]
    columns = ["NUMA Affinity" if column == "NUMA" else column for column in columns]
    numa = {head: dict(zip(columns, rest, strict=False)).get("NUMA Affinity", "") for head, _, rest in cells}
    gpus = filter(_GPU.fullmatch, heads)
    return PastedFacts(
        _TOPO,
        first.number,
        first.node,
        gpus=[{"index": int(gpu[3:]), "numa_node": number(numa.get(gpu, ""), otherwise=-1)} for gpu in gpus],
        also={"stated": {"heads": heads, "names": names, "columns": columns, "rows": cells}},
    )


def _legend(below: Sequence[Line], heads: Sequence[str]) -> dict[str, str]:
    """What it calls NICs, before another matrix begins."""
    until = itertools.takewhile(lambda line: not _GPU.match(line.text.strip(" |\t")), below)
    named = [(match[1], match[2]) for line in until if (match := _LEGEND.fullmatch(line.text))]
    return {head: names[0] for head, names in collected(named).items() if head in heads}


def _may_be_a_title(token: str) -> bool:
    return token in _WORDS or bool(_HEAD.fullmatch(token) and not WORD.fullmatch(token))


def _unglued(words: list[str]) -> list[str]:
    """Words of a row; a terminal whose tabs were taken for less than a column leaves no blank between some."""
    if not any(map(_GLUED_CELLS.fullmatch, words)):
        return words
    parts = (_CELL_WORD.findall(word) if _GLUED_CELLS.fullmatch(word) else [word] for word in words)
    return list(itertools.chain.from_iterable(parts))


def _tokens(text: str) -> list[str]:
    """Words without what Markdown puts around them; none of a line that only underlines the one above."""
    if "," in text and _COMMAS.match(text):
        text = _IN_QUOTES.sub(lambda match: match[1] or " ", text)
    words = [word for word in text.translate(_MARKS).split() if word.strip("-=:")]
    return _parted(words) if words and _ALL_GLUED.match(words[0]) else words


_ALL_GLUED = re.compile(r"(?:GPU\d{1,3}){2}|(?:GPU|NIC)\d{1,3}(?:X|PIX|PXB|PHB|NODE|SYS|NV(?:1\d|\d)){2}")
_PARTS = re.compile(r"(?:GPU|NIC)\d{1,3}|X|PIX|PXB|PHB|NODE|SYS|NV(?:1\d|\d)(?=[A-Z\s]|$)|CPU|NUMA|Affinity|GPU|ID")


def _parted(words: Sequence[str]) -> list[str]:
    """A row of a page's table whose cells were copied without anything between them; what is behind its path types, as
    '0-310N/A', can't be told apart."""
    return [part for word in words for part in (_PARTS.findall(word) if _PARTS.match(word) else ())]
