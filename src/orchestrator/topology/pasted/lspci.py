"""lspci as a tree (-tv) and in full (-vv, -vvv, -nn): its functions at the places where sysfs would have them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.model.topology import Area
from orchestrator.topology.names import device_called
from orchestrator.topology.pasted.facts import Line, PastedFacts
from orchestrator.topology.pci import sort_key

TREE, FULL, LIST = "lspci -tv", "lspci -vvv", "lspci"
_BRIDGE = "0x060400"
_FUNCTION = re.compile(
    r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})\.(?P<function>[0-7]) "
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
    "Broadcom": 0x14E4, "Advanced Micro Devices": 0x1022,
}  # fmt: skip
_NVIDIA = _VENDORS["NVIDIA"]
_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]")
_LINK = r"Lnk%s:\s.{0,40}?Speed (?P<%s_link_speed>[0-9.]{1,5}GT/s).{0,24}?, Width x(?P<%s_link_width>[0-9]{1,2})"
_DETAIL = re.compile(
    r"\s+(?:Bus: primary=[0-9a-f]{2}, secondary=(?P<bus>[0-9a-f]{2}),"
    rf"|{_LINK % ('Cap', 'max', 'max')}|{_LINK % ('Sta', 'current', 'current')}"
    r"|NUMA node: (?P<numa_node>[0-9]{1,3})"
    r"|Physical Slot: (?P<slot>[\w.-]{1,32})"
    r"|Kernel driver in use: (?P<driver>[\w-]{1,32})"
    r"|ACSCtl:\s+(?P<acs>SrcValid[+-] TransBlk[+-] ReqRedir[+-] CmpltRedir[+-] UpstreamFwd[+-])"
    r"|Capabilities: .{0,24}Express.{0,16}(?P<root>Root (?:Port|Complex)))"
)
_FILES = {"max_link_speed", "max_link_width", "current_link_speed", "current_link_width", "numa_node"}
"""Details that sysfs has under these names."""
_MOST = 4096
_PARTS = re.compile(
    r"(?P<bus>\[(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<number>[0-9a-f]{2})(?:-[0-9a-f]{2})?\])|(?P<fork>[+\\](?=-))"
    r"|(?P<function>(?<=-)[0-9a-f]{2}\.[0-7](?=[\s-]|$))"
)


@dataclass
class _Function:
    """below: the bus behind a bridge, with its domain; details: as _DETAIL calls them"""

    address: str
    words: str = ""
    code: str = ""
    parent: str = ""
    below: str = ""
    details: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        return {name: text for name, text in self.details.items() if name in _FILES}


def read(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """Every tree of one node's lines; of what has no bridges, and of a tree that lost its indentation, no place is
    known."""
    yield from _trees(lines)
    yield from _lists(lines)


def _lists(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """`lspci -vv` and more; an address that comes again begins another machine's."""
    found: dict[str, _Function] = {}
    first = current = None
    for line, after in zip(lines, [*(line.text for line in lines[1:]), ""], strict=True):
        if match := _FUNCTION.match(line.text):
            current = _function(match)
            if first is not None and (current.address in found or len(found) >= _MOST):
                yield from _placed(found, first)
                found, first = {}, None
            first = first or line
            found[current.address] = current
        elif current is not None and (after[:1].isspace() or not after or _FUNCTION.match(after)):  # else it is wrapped
            current.details |= _details(line.text)
    if first is not None:
        yield from _placed(found, first)


def _details(text: str) -> dict[str, str]:
    told = _DETAIL.match(text)
    return {name: word for name, word in told.groupdict().items() if word} if told else {}


def _function(match: re.Match[str]) -> _Function:
    address = f"{match['domain'] or '0000'}:{match['bus']}:{match['device']}.{match['function']}"
    return _Function(address, match["words"], match["code"] or _CODES.get(match["kind"], ""))


def _placed(found: dict[str, _Function], first: Line) -> Iterator[PastedFacts]:
    """Functions below their bridges. A bus that no bridge of the text leads to is a root bus only if something on it
    can be nowhere else: the text may be cut."""
    for one in found.values():
        if (bus := one.details.get("bus", "00")) != "00":
            one.below = f"{one.address[:-8]}:{bus}"
    bridges = {one.below: one for one in found.values() if one.below}
    roots = {_bus(one.address) for one in found.values() if "root" in one.details or one.code == "0600"} | {"0000:00"}
    for one in found.values():
        above = bridges.get(_bus(one.address))
        one.parent = above.address if above else "" if _bus(one.address) in roots else "?"
    form = FULL if any(one.files or one.below for one in found.values()) else LIST
    yield from _facts(form, first, found)


def _bus(address: str) -> str:
    return address.rpartition(":")[0]


def _trees(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """`lspci -t`: a fork's column tells which bus a line goes on with."""
    found: dict[str, _Function] = {}
    forks: dict[int, tuple[str, str]] = {}
    first: Line | None = None
    for line in lines:
        if first is not None and not line.text.lstrip(" |").startswith(("+-", "\\-", "-[")):
            if line.text.strip():
                yield from _facts(TREE, first, found)
                found, forks, first = {}, {}, None
            continue
        text = line.text.expandtabs()
        if first is None and not re.match(r"\s{0,8}-(?:\[|\+-\[)", text):
            continue
        first = first or line
        if len(found) >= _MOST or not _branch(text, forks, found):
            found, forks, first = {}, {}, None
    if first is not None:
        yield from _facts(TREE, first, found)


def _branch(text: str, forks: dict[int, tuple[str, str]], found: dict[str, _Function]) -> bool:
    """One line of the tree: every function on it; whether all had a place."""
    bus: tuple[str, str] | None = None  # (domain:bus, address of the bridge above)
    last: _Function | None = None
    for part in _PARTS.finditer(text):
        if part["bus"]:
            above = last.address if last else ""
            domain = part["domain"] or (last.address.partition(":")[0] if last else "0000")
            bus = (f"{domain}:{part['number']}", above)
            if last is not None:
                last.below = bus[0]
        elif part["fork"]:
            if bus is not None:
                forks[part.start()] = bus
            elif part.start() in forks:
                bus = forks[part.start()]
            elif not text[part.end() :].startswith("-["):
                return False
        else:
            if bus is None:
                return False
            last = _Function(f"{bus[0]}:{part['function']}", parent=bus[1])
            found[last.address] = last
            if not text[part.end() :].startswith("-"):
                last.words = text[part.end() :].strip()[:400]
                break
    return True


def _facts(form: str, first: Line, found: dict[str, _Function]) -> Iterator[PastedFacts]:
    keys = {address: key for address in found if (key := _key(found, address))} if form != LIST else {}
    facts = PastedFacts(form, first.number, first.node)
    for address, key in keys.items():
        _tell(facts, key, found[address])
    gpus = [one for one in found.values() if _code(one)[:6] in ("0x0302", "0x0300") and _ids(one.words)[0] == _NVIDIA]
    facts.gpus = [_gpu(index, one) for index, one in enumerate(sorted(gpus, key=lambda one: sort_key(one.address)))]
    told = {path.rpartition("/")[2] for path in facts.files}
    wanted = ((Area.NUMA, "numa_node" in told), (Area.LINKS, "max_link_width" in told))
    facts.areas = {area for area, there in wanted if there} | ({Area.PCI} if len(keys) == len(found) else set())
    if keys or facts.gpus:
        yield facts


def _gpu(index: int, one: _Function) -> dict[str, Any]:
    """As NVML's, with the link in generations."""
    name = re.search(r"\[((?!10de)[^]]{1,64})\]", one.words)
    said = {"index": index, "pci_bus_id": one.address, "name": f"NVIDIA {name[1]}" if name else ""}
    widths = (int(one.details.get(f"{which}_link_width", 0)) for which in ("current", "max"))
    link = dict(zip(("width", "max_width"), widths, strict=True))
    return {**said, "link": link} if all(link.values()) else said


def _code(one: _Function) -> str:
    return f"0x{one.code}00" if one.code else _BRIDGE if one.below else _class(one.words, _ids(one.words)[0])


def _tell(facts: PastedFacts, key: str, one: _Function) -> None:
    vendor, device = _ids(one.words)
    told = {**one.files, "vendor": f"0x{vendor:04x}", "device": f"0x{device:04x}", "class": _code(one)}
    if acs := one.details.get("acs"):
        told["config"] = _config(acs)
    facts.files |= {f"{key}/{name}": text for name, text in told.items()}
    if driver := one.details.get("driver"):
        facts.links[f"{key}/driver"] = f"/sys/bus/pci/drivers/{driver}"
    if slot := one.details.get("slot"):
        facts.files[f"/sys/bus/pci/slots/{slot}/address"] = one.address.rpartition(".")[0]


def _key(found: dict[str, _Function], address: str) -> str:
    """The real path in sysfs, '' where the text does not lead up to a root bus."""
    chain = [address]
    while parent := found[chain[-1]].parent:
        if parent not in found or parent in chain:
            return ""
        chain.append(parent)
    return f"/sys/devices/pci{_bus(chain[-1])}/{'/'.join(reversed(chain))}"


def _ids(words: str) -> tuple[int, int]:
    """(vendor, device), 0 for what is not known by name."""
    if match := _IDS.search(words):
        return int(match[1], 16), int(match[2], 16)
    vendor = next((number for name, number in _VENDORS.items() if words.startswith(name)), 0)
    nameless = re.search(r" Device ([0-9a-f]{4})\b", words)
    return vendor, int(nameless[1], 16) if nameless else device_called(vendor, words)


def _class(words: str, vendor: int) -> str:
    """Of a function in a tree, which says what it is by its name only."""
    if vendor == _NVIDIA and not re.search(r"Audio|USB|UCSI|Switch|Bridge|BlueField", words):
        return "0x030200"
    network = re.search(r"Ethernet|Infiniband|Network Connection|NetXtreme|ConnectX|MT\d{4,5}", words)
    return "0x020000" if network and not re.search(r"DMA|Management|SoC", words) else "0x000000"


def _config(acs: str) -> str:
    """A configuration space that holds what the text tells of ACS, as the kernel would show it."""
    data = bytearray(0x110)
    data[0x100:0x104] = (1 << 16 | 0x000D).to_bytes(4, "little")
    data[0x106] = sum(1 << bit for bit, sign in enumerate(re.findall("[+-]", acs)) if sign == "+")
    return data.hex()
