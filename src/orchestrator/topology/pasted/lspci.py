"""lspci as a tree (-tv) and in full (-vv, -vvv, -nn): its functions at the places where sysfs would have them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from orchestrator.model.per_node import collected
from orchestrator.model.topology import Area
from orchestrator.topology.pasted.facts import PROMPT, Line, PastedFacts
from orchestrator.topology.pci import GPU_CLASSES, GUEST_VENDORS, ON_ROOT_BUS, device_called, known_part, sort_key

TREE, FULL, LIST, LINKS = "lspci -tv", "lspci -vvv", "lspci", "lspci -vvv | grep Lnk"
_BRIDGE = "0x060400"
_FUNCTION = re.compile(
    r"(?:\s{0,8}IOMMU [Gg]roup:? \d{1,4}:? {1,4})?(?:(?P<domain>[0-9a-f]{4,8}):)?"
    r"(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})\.(?P<function>[0-7]) "
    r"(?:\"?(?P<kind>[A-Z0-9][^:\[\"]{2,60}?)\"?(?: \[(?P<code>[0-9a-f]{4})\])?: (?P<words>.{0,400}))"
)
_CODES = {
    "PCI bridge": "0604", "3D controller": "0302", "VGA compatible controller": "0300", "Ethernet controller": "0200",
    "Infiniband controller": "0207", "Network controller": "0280", "Host bridge": "0600", "Bridge": "0680",
    "Audio device": "0403", "Non-Volatile memory controller": "0108", "Processing accelerators": "1200",
    "Display controller": "0380", "System peripheral": "0880",
}  # fmt: skip
_VENDORS = {
    "NVIDIA": 0x10DE, "Mellanox": 0x15B3, "Intel": 0x8086, "Broadcom / LSI": 0x1000, "PLX": 0x10B5, "LSI": 0x1000,
    "Broadcom": 0x14E4, "Advanced Micro Devices": 0x1022, "Red Hat, Inc. QEMU": 0x1B36, "Red Hat, Inc. Virtio": 0x1AF4,
    "VMware": 0x15AD, "Microsoft Corporation Hyper-V": 0x1414, "XenSource": 0x5853, "Amazon.com": 0x1D0F,
}  # fmt: skip
_NVIDIA = _VENDORS["NVIDIA"]
_OTHERS_CLASSES = ("0x1200", "0x0302", "0x0380")
_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]")
_LINK = re.compile(
    r".{0,64}?\bLnk(?P<what>Cap|Sta):\s.{0,40}?Speed (?P<speed>[0-9.]{1,5})GT/s.{0,24}?, Width x(?P<width>[0-9]{1,2})"
)
_LINK_OF = r"Lnk%s:\s.{0,40}?Speed (?P<%s_link_speed>[0-9.]{1,5}GT/s).{0,24}?, Width x(?P<%s_link_width>[0-9]{1,2})"
_DETAIL = re.compile(
    r"\s+(?:Bus: primary=[0-9a-f]{2}, secondary=(?P<bus>[0-9a-f]{2}), subordinate=(?P<last>[0-9a-f]{2}),"
    rf"|{_LINK_OF % ('Cap', 'max', 'max')}|{_LINK_OF % ('Sta', 'current', 'current')}"
    r"|NUMA node: (?P<numa_node>[0-9]{1,3})"
    r"|Region 1: Memory .{0,96}\[size=(?P<bar1>[0-9]{1,4}[MG])\]"
    r"|Physical Slot: (?P<slot>[\w.-]{1,32})"
    r"|Kernel driver in use: (?P<driver>[\w-]{1,32})"
    r"|ACSCtl:\s+(?P<acs>SrcValid[+-] TransBlk[+-] ReqRedir[+-] CmpltRedir[+-] UpstreamFwd[+-])"
    r"|Capabilities: .{0,24}Express.{0,16}(?P<root>Root (?:Port|Complex)))"
)
_SWITCH = re.compile(r"\bPEX ?\d{4,5}|PCIe Gen \d Switch|PCIe? Switch|Switchtec")
_EMULATED = "440FX - 82441FX PMC"
"""The chipset of 1996 that QEMU and others show to guests; it has no PCI Express of its own."""
_UNREAD = "(rev ff)"
"""What lspci prints of a function that is there and whose configuration space reads as ones."""
_EFA = re.compile(r"Device efa[0-9]")
_FILES = {"max_link_speed", "max_link_width", "current_link_speed", "current_link_width", "numa_node"}
"""Details that sysfs has under these names."""
_GENERATIONS = {"2.5GT/s": 1, "5GT/s": 2, "8GT/s": 3, "16GT/s": 4, "32GT/s": 5, "64GT/s": 6}
_AREAS = {"numa_node": Area.NUMA, "max_link_width": Area.LINKS}
_ASKED = re.compile(r"\blspci\b.{0,64}? -s ?([0-9a-f]{4}:)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_ORDER = (
    "Subsystem", "Control", "Status", "NUMA node", "IOMMU group", "DevCap", "DevCtl", "DevSta", "LnkCap", "LnkCtl",
    "LnkSta", "DevCap2", "DevCtl2", "LnkCap2", "LnkCtl2", "LnkSta2", "ACSCap", "ACSCtl", "Kernel driver in use",
    "Kernel modules",
)  # fmt: skip
"""In which lspci tells of a function."""
_FIELD = re.compile(rf"\s+({'|'.join(_ORDER)}):")
_MOST, _MOST_LISTS = 4096, 128
_ROOT = re.compile(r"\s{0,8}(?:-(?:\[|\+-\[)|[+\\]-\[[0-9a-f]{4,8}:[0-9a-f]{2}\])")
"""A root bus. Where the first lines of a tree were cut off, it begins again at the next one."""
_PARTS = re.compile(
    r"(?P<bus>\[(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<number>[0-9a-f]{2})(?:-(?P<last>[0-9a-f]{2}))?\])|(?P<fork>[+\\](?=-))"
    r"|(?P<function>(?<=-)[0-9a-f]{2}\.[0-7](?=[\s-]|$))"
)


@dataclass
class _Function:
    """line: where it stands; below: the bus behind a bridge, with its domain; last: the highest number of a bus behind
    it; details: as _DETAIL calls them"""

    line: Line
    address: str
    words: str = ""
    code: str = ""
    below: str = ""
    last: str = ""
    details: dict[str, str] = field(default_factory=dict)
    reached: int = -1
    """How far the lines below it have come in the order of _ORDER."""

    @property
    def bus(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def files(self) -> dict[str, str]:
        return {name: text for name, text in self.details.items() if name in _FILES}

    @property
    def ids(self) -> tuple[int, int]:
        """(vendor, device), 0 for what is not known by name."""
        if match := _IDS.search(self.words):
            return int(match[1], 16), int(match[2], 16)
        vendor = next((number for name, number in _VENDORS.items() if self.words.startswith(name)), 0)
        nameless = re.search(r" Device ([0-9a-f]{4})\b", self.words)
        return vendor, int(nameless[1], 16) if nameless else device_called(vendor, self.words)

    @property
    def kind(self) -> str:
        """The class as sysfs has it. A tree says what a function is by its name only."""
        if self.code or self.below:
            return f"0x{self.code}00" if self.code else _BRIDGE
        if self.ids[0] == _NVIDIA and not re.search(r"Audio|USB|UCSI|Switch|Bridge|BlueField", self.words):
            return "0x030200"
        network = _NETWORK_WORDS.search(self.words)
        return "0x020000" if network and not re.search(r"DMA|Management|SoC", self.words) else "0x000000"

    @property
    def is_gpu(self) -> bool:
        return self.kind[:6] in GPU_CLASSES and self.ids[0] == _NVIDIA

    @property
    def is_of_another_maker(self) -> bool:
        """An accelerator, or a display controller without a display, that is not NVIDIA's."""
        return self.kind[:6] in _OTHERS_CLASSES and self.ids[0] != _NVIDIA

    @property
    def width(self) -> tuple[int, int]:
        """(now, most) lanes, 0 where the text does not say."""
        now, most = (int(self.details.get(f"{which}_link_width", 0)) for which in ("current", "max"))
        return now, most

    def goes_on(self, text: str) -> bool:
        """Whether a line below it is its own: each comes once, in one order. Else another's first line is missing."""
        match = _FIELD.match(text)
        place = _ORDER.index(match[1]) if match else self.reached + 1
        own = place > self.reached
        self.reached = max(self.reached, place) if match else self.reached
        return own

    def learn(self, text: str) -> None:
        """Out of a line below it."""
        match = _DETAIL.match(text)
        self.details |= {name: word for name, word in match.groupdict().items() if word} if match else {}
        if (bus := self.details.get("bus", "00")) != "00":
            self.below, self.last = f"{self.address[:-8]}:{bus}", self.details["last"]


_Functions = dict[str, _Function]
"""Of one machine, by address."""


def read(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """Every tree of one node's lines; of what has no bridges, and of a tree that lost its indentation, no place is
    known."""
    trees, lists = [tree for tree in _trees(lines) if tree.functions], _put_together([*filter(None, _lists(lines))])
    if not trees and (leaves := _leaves(lines)):
        yield from _facts(LIST, leaves, set())
    if not trees and not lists:
        yield from _links_alone(lines)
    apart = [own for own in lists if not any(_tell_more(tree.functions, own) for tree in trees)]
    yield from chain.from_iterable(map(_drawn, trees))
    yield from chain.from_iterable(map(_listed, apart))


def _put_together(lists: Sequence[_Functions]) -> list[_Functions]:
    """What is told again of a list's functions, as by `lspci -vv -s`, is that list's: what comes later is how it is."""
    order = sorted(lists[:_MOST_LISTS], key=len, reverse=True)
    parts = {id(own) for place, own in enumerate(order) if any(_tell_more(other, own) for other in order[:place])}
    return [own for own in lists[:_MOST_LISTS] if id(own) not in parts]


def _drawn(tree: _Tree) -> Iterator[PastedFacts]:
    roots = {function.bus for function in tree.functions.values()}
    return _facts(TREE, tree.functions, roots, is_cut=tree.is_cut)


def _tell_more(known: _Functions, own: _Functions) -> bool:
    """Whether a list is of functions that are known by a tree or another list: then those have their names and links.
    `lspci -t` has no names."""
    pairs = [(known.get(address), function) for address, function in own.items()]
    if not all(other is not None and function.words.startswith(_name(other)) for other, function in pairs):
        return False
    for address, function in own.items():
        other = known[address]
        other.words, other.code = function.words, other.code or function.code
        other.below, other.last = other.below or function.below, other.last or function.last
        other.details |= function.details
    return True


def _name(function: _Function) -> str:
    """Without what only some outputs have behind it."""
    return function.words.partition(" (")[0]


def _listed(functions: _Functions) -> Iterator[PastedFacts]:
    """A bus that no bridge leads to is a root bus only if something on it can be nowhere else: a list may be cut."""
    own = functions.values()
    roots = {function.bus for function in own if "root" in function.details or function.code == "0600"}
    form = FULL if any(function.files or function.below for function in own) else LIST
    yield from _facts(form, functions, roots | {"0000:00"})


def _links_alone(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """[now, most] of links of which the text has not whose they are, in its order; '' for what it has not."""
    links: list[list[str]] = []
    most, first = "", None
    for line in lines:
        if match := _LINK.match(line.text):
            first, link = first or line, f"{match['speed']} GT/s x{match['width']}"
            if match["what"] == "Sta":
                links.append([link, most])
            most = link if match["what"] == "Cap" else ""
    if first and links:
        yield PastedFacts(LINKS, first.number, first.node, also={"links_alone": links[:_MOST]})


_LEAF = re.compile(
    r"[\s|]*[+\\]-(?P<above>[0-9a-f]{2}\.[0-7])?-\[(?P<bus>[0-9a-f]{2})(?:-[0-9a-f]{2})?\]-{2,4}"
    r"(?P<function>[0-9a-f]{2}\.[0-7]) {1,2}(?P<words>\S.{2,400})"
)


def _leaves(lines: Sequence[Line]) -> _Functions:
    """Of a tree whose beginning was cut off: what has its bus before it."""
    matches = [(line, match) for line in lines if (match := _LEAF.fullmatch(line.text))]
    functions = {}
    for line, match in matches[:_MOST]:
        address = f"0000:{match['bus']}:{match['function']}"
        functions[address] = _Function(line, address, match["words"].strip())
    return functions


def _lists(lines: Sequence[Line]) -> Iterator[_Functions]:
    """`lspci -vv` and more; an address that comes again begins another machine's."""
    functions: _Functions = {}
    current: _Function | None = None
    for line, after in zip(lines, [*(line.text for line in lines[1:]), ""], strict=True):
        if match := _FUNCTION.match(line.text):
            address = f"{match['domain'] or '0000'}:{match['bus']}:{match['device']}.{match['function']}"
            if address in functions or len(functions) >= _MOST:
                yield functions
                functions = {}
            code = match["code"] or _CODES.get(match["kind"], "")
            current = functions[address] = _Function(line, address, match["words"], code)
        elif line.text and not line.text[:1].isspace():  # another command's, or a reader's words
            current = _asked_for(line.text, functions)
        elif current is not None:
            current = _further(current, line.text, after)
    yield functions


def _further(function: _Function, line: str, after: str) -> _Function | None:
    """The function whose line it is."""
    if not function.goes_on(line):
        return None
    if _is_whole_line(line, after):
        function.learn(line)
    return function


def _asked_for(line: str, functions: _Functions) -> _Function | None:
    asked = _ASKED.search(line)
    function = functions.get(f"{asked[1] or '0000:'}{asked[2]}") if asked else None
    if function is not None:
        function.reached = -1
    return function


def _is_whole_line(line: str, after: str) -> bool:
    """Whether the line below is not its rest, as a forum wraps it; of a link's the rest would begin with a number."""
    wrapped = after[:1].isdecimal() if "\tLnk" in line else after[:1].isalnum()
    return not wrapped or bool(_FUNCTION.match(after) or PROMPT.match(after))


@dataclass
class _Tree:
    """What was drawn, with the forks that are not at their last branch yet, by column: in the whole of a tree there is
    none left at its end."""

    functions: _Functions = field(default_factory=dict)
    forks: dict[int, str] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    begun: bool = True

    def note_forks(self, text: str) -> None:
        """Those of a line that go on, and those that end at it."""
        for part in _PARTS.finditer(text):
            if part["fork"] == "+":
                self.left.add(part.start())
            elif part["fork"]:
                self.left.discard(part.start())

    @property
    def is_cut(self) -> bool:
        """Whether its beginning or its end is not in the text, or a last branch."""
        return not self.begun or bool(self.left)


def _trees(lines: Sequence[Line]) -> Iterator[_Tree]:
    """`lspci -t`: a fork's column tells which bus a line goes on with."""
    tree, inside = _Tree(), False
    for line in lines:
        if inside and line.text.strip() and not line.text.lstrip(" |").startswith(("+-", "\\-", "-[")):
            yield tree
            tree, inside = _Tree(), False
        if not inside and _ROOT.match(line.text):
            tree, inside = _Tree(begun=line.text.lstrip().startswith("-")), True
        if inside and (len(tree.functions) >= _MOST or not _branch(line, tree)):
            tree, inside = _Tree(), False
    yield tree


def _branch(line: Line, tree: _Tree) -> bool:
    """One line of the tree: every function on it; whether all had a place."""
    text, forks, functions = line.text.expandtabs(), tree.forks, tree.functions
    tree.note_forks(text)
    bus = ""
    last: _Function | None = None
    for part in _PARTS.finditer(text):
        if part["bus"]:
            bus = _bus_below(last, part)
        elif part["fork"] and bus:
            forks[part.start()] = bus
        elif part["fork"]:
            bus = forks.get(part.start(), "")
            if not bus and not text[part.end() :].startswith("-["):
                return False
        elif not bus:
            return False
        else:
            last = functions[f"{bus}:{part['function']}"] = _Function(line, f"{bus}:{part['function']}")
            if not text[part.end() :].startswith("-"):
                last.words = text[part.end() :].strip()[:400]
                break
    return True


def _bus_below(bridge: _Function | None, part: re.Match[str]) -> str:
    """The bus that a part of the tree names, with its domain; noted at the bridge in front of it."""
    above = bridge.address.partition(":")[0] if bridge else "0000"
    bus = f"{part['domain'] or above}:{part['number']}"
    if bridge is not None:
        bridge.below, bridge.last = bus, part["last"] or part["number"]
    return bus


def _is_whole(form: str, functions: _Functions) -> bool:
    """Whether no line is missing below the root ports that lead to GPUs: the buses behind each bridge have all numbers
    that it hands down (PCI-to-PCI Bridge Architecture, secondary and subordinate bus number). What was cut off with its
    root port has no part in what is behind another."""
    on_bus = collected((function.bus, function) for function in functions.values())
    to_gpus = [port for port in _root_ports(functions) if any(part.is_gpu for part in _behind(port, on_bus))]
    bridges = [bridge for port in to_gpus for bridge in (port, *_behind(port, on_bus)) if bridge.below]
    return bool(bridges) and all(_has_all_buses(bridge, on_bus.get(bridge.below, ()), form) for bridge in bridges)


def _root_ports(functions: _Functions) -> list[_Function]:
    below = {bridge.below for bridge in functions.values()}
    return [bridge for bridge in functions.values() if bridge.below and bridge.bus not in below]


def _behind(bridge: _Function, on_bus: Mapping[str, Sequence[_Function]]) -> list[_Function]:
    behind: list[_Function] = []
    left, seen = [bridge.below], set[str]()
    while left:
        bus = left.pop()
        own = on_bus.get(bus, ()) if bus not in seen else ()
        seen.add(bus)
        behind += own
        left += [function.below for function in own if function.below]
    return behind


def _has_all_buses(bridge: _Function, own: Sequence[_Function], form: str) -> bool:
    """own: the functions on the bus behind it. A tree shows that there is none; in a list its lines may be missing."""
    below = sorted((int(inner.below[-2:], 16), int(inner.last, 16)) for inner in own if inner.below and inner.last)
    if not below:
        return any(function.address.endswith(":00.0") for function in own) if own else form == TREE
    starts = [start for start, _ in below]
    ends = [end for _, end in below]
    return starts == [int(bridge.below[-2:], 16) + 1, *(end + 1 for end in ends[:-1])] and ends[-1] == int(
        bridge.last, 16
    )


def _facts(form: str, functions: _Functions, roots: set[str], *, is_cut: bool = False) -> Iterator[PastedFacts]:
    first = next(iter(functions.values())).line
    facts = PastedFacts(form, first.number, first.node)
    keys = _keys(functions, roots) if form != LIST else {}
    for address, key in keys.items():
        _tell(facts, key, functions[address])
    alone = [function for address, function in functions.items() if address not in keys]
    whole = not is_cut and form != LIST and _is_whole(form, functions)
    facts.also = {**_beside_the_tree(form, functions.values(), alone), "whole": whole}
    facts.gpus = _gpus(functions.values())
    facts.areas = _areas(facts)
    if len(keys) == len(functions) and _tells_all(functions.values(), has_gpus=bool(facts.gpus)):
        facts.areas.add(Area.PCI)
    if keys or facts.gpus or any(map(facts.also.get, ("guest", "cards", "switches", "others", "acs"))):
        yield facts


def _areas(facts: PastedFacts) -> set[Area]:
    names = {path.rpartition("/")[2] for path in facts.files}
    return {area for name, area in _AREAS.items() if name in names}


def _gpus(functions: Collection[_Function]) -> list[dict[str, Any]]:
    gpus = sorted((function for function in functions if function.is_gpu), key=lambda gpu: sort_key(gpu.address))
    return [_gpu(index, gpu) for index, gpu in enumerate(gpus)]


def _tells_all(functions: Collection[_Function], *, has_gpus: bool) -> bool:
    """Whether the text says what each is (`lspci -t` has places and no names), and, where it has no GPU, what is behind
    each of its bridges: it may have been cut before one."""
    on_bus = {function.bus for function in functions}
    led_to = all(bridge.below in on_bus for bridge in functions if bridge.below)
    return (has_gpus or led_to) and all(function.words or function.below for function in functions)


def _card(function: _Function) -> str:
    """Its name, with its link where that is narrower or slower than it could be."""
    now, most = function.width
    speed, fastest = (function.details.get(f"{which}_link_speed", "") for which in ("current", "max"))
    reduced = f", PCIe x{now} of x{most}" if 0 < now < most else ""
    if now and most and speed and fastest and _GENERATIONS.get(speed, 9) < _GENERATIONS.get(fastest, 0):
        slower, best = (text.replace("GT/s", " GT/s") for text in (speed, fastest))
        reduced = f", PCIe {slower} x{now} of {best} x{most}"
    return _EFA.sub("Elastic Fabric Adapter (EFA)", function.words) + reduced


def _beside_the_tree(form: str, functions: Collection[_Function], alone: Collection[_Function]) -> dict[str, Any]:
    """What a text tells without places: its network cards, and whether a hypervisor made some of its functions.

    alone: those of which no place is known
    """
    also: dict[str, Any] = {"guest": any(map(_is_made_up, functions))}
    also["narrow_cards"] = [*filter(None, map(_narrow, alone))]
    also |= _acs_of(alone)
    listed = functions if form == TREE else alone
    also["cards"] = _cards(listed)
    if form == LIST:
        also["switches"] = [function.words for function in functions if _SWITCH.search(function.words)]
    also["drivers"] = _other_drivers(functions)
    also["others"] = [function.words for function in functions if function.is_of_another_maker]
    return also


def _acs_of(alone: Collection[_Function]) -> dict[str, list[int]]:
    """How many tell of ACS, and how many of them redirect."""
    controls = [function.details["acs"] for function in alone if "acs" in function.details]
    return {"acs": [len(controls), sum(map(bool, map(_REDIRECTS.search, controls)))]} if controls else {}


def _other_drivers(functions: Collection[_Function]) -> dict[str, list[str]]:
    """GPUs that NVIDIA's driver has not, by the one that has them."""
    drivers = collected(
        (function.details.get("driver", ""), function.address) for function in functions if function.is_gpu
    )
    return {driver: [*addresses] for driver, addresses in drivers.items() if driver not in ("", "nvidia")}


def _cards(functions: Collection[_Function]) -> list[str]:
    """By name, each with its number of ports: functions of one device are one card's, but virtual ones."""
    cards = collected(
        (function.address if "Virtual Function" in function.words else function.address[:-2], _card(function))
        for function in functions
        if _is_a_card(function)
    )
    return [f"{names[0]}{f', {len(names)} ports' if len(names) > 1 else ''}" for names in cards.values()]


_REDIRECTS = re.compile(r"(?:ReqRedir|CmpltRedir|UpstreamFwd)\+")
_NETWORK_WORDS = re.compile(
    r"Ethernet|Infiniband|Network Connection|NetXtreme|ConnectX|MT\d{4,5}|Elastic (?:Fabric|Network) Adapter"
    r"|Device efa\d"
)
_NETWORK = ("0x0200", "0x0207")


def _is_a_card(function: _Function) -> bool:
    """A virtual function of Mellanox is a 'Network controller' in some lists."""
    return function.kind[:6] in _NETWORK or (function.kind[:6], function.ids[0]) == ("0x0280", _VENDORS["Mellanox"])


def _narrow(function: _Function) -> str:
    """'address|now|most', in lanes, of an RDMA card whose link is narrower than it could be; '' for all others."""
    now, most = function.width
    is_card = function.kind[:6] in _NETWORK and function.ids[0] == _VENDORS["Mellanox"]
    return f"{function.address}|{now}|{most}" if is_card and 0 < now < most else ""


def _is_made_up(function: _Function) -> bool:
    """Whether only a hypervisor has it, or puts it there: on a machine's own root bus are root ports, and no GPU."""
    on_root_bus = function.is_gpu and function.bus.endswith(ON_ROOT_BUS) and "nForce" not in function.words
    return on_root_bus or function.ids[0] in GUEST_VENDORS or _EMULATED in function.words


def _keys(functions: _Functions, roots: set[str]) -> dict[str, str]:
    """The real paths in sysfs by address, of what the text leads to from a root bus."""
    bridges = {bridge.below: bridge for bridge in functions.values() if bridge.below}
    keys: dict[str, str] = {}
    for address, function in functions.items():
        chain, top = [address], function
        while (above := bridges.get(top.bus)) and above.address not in chain:
            chain.append(above.address)
            top = above
        if above is None and top.bus in roots:
            keys[address] = f"/sys/devices/pci{top.bus}/{'/'.join(reversed(chain))}"
    return keys


def _gpu(index: int, function: _Function) -> dict[str, Any]:
    """As NVML's, with the width of its link."""
    name = re.search(r"\[((?!10de)[^]]{1,64})\]", function.words.partition(" (prog-if")[0])
    called = f"NVIDIA {name[1]}" if name else known_part(*function.ids)
    gpu: dict[str, Any] = {"index": index, "pci_bus_id": function.address, "name": called}
    if "numa_node" in function.details:
        gpu["numa_node"] = int(function.details["numa_node"])
    if bar := function.details.get("bar1"):
        gpu["bar1_total"] = int(bar[:-1]) << (30 if bar.endswith("G") else 20)
    if function.words.rstrip().endswith(_UNREAD):
        gpu["unanswered"] = f"lspci shows {_UNREAD}"
    now, most = function.width
    speeds = [_GENERATIONS.get(function.details.get(f"{which}_link_speed", ""), 0) for which in ("current", "max")]
    link = {"width": now, "max_width": most, "gen": speeds[0], "max_gen": speeds[1]}
    return {**gpu, "link": link} if now and most else gpu


def _tell(facts: PastedFacts, key: str, function: _Function) -> None:
    vendor, device = function.ids
    texts = {**function.files, "vendor": f"0x{vendor:04x}", "device": f"0x{device:04x}", "class": function.kind}
    if acs := function.details.get("acs"):
        texts["config"] = _config(acs)
    facts.files |= {f"{key}/{name}": text for name, text in texts.items()}
    if driver := function.details.get("driver"):
        facts.links[f"{key}/driver"] = f"/sys/bus/pci/drivers/{driver}"
    if slot := function.details.get("slot"):
        facts.files[f"/sys/bus/pci/slots/{slot}/address"] = function.address.rpartition(".")[0]


def _config(acs: str) -> str:
    """A configuration space that holds what the text tells of ACS, as the kernel would show it."""
    data = bytearray(0x110)
    data[0x100:0x104] = (1 << 16 | 0x000D).to_bytes(4, "little")
    data[0x106] = sum(1 << bit for bit, sign in enumerate(re.findall("[+-]", acs)) if sign == "+")
    return data.hex()
