"""What small tools print of ports, addresses and GPUs."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.model.topology import Area
from orchestrator.topology.pasted.facts import Line, PastedFacts, runs

GIDS, ADDRESSES, SMI, GPUS = "show_gids", "ip addr", "nvidia-smi -q", "a list of GPUs"
_HCA = re.compile(r"\s*(hca_id:\s+|CA '|Infiniband device ')([A-Za-z][\w.@-]{0,63})(?:'(?: port (\d{1,3}) status:)?)?")
_TOOLS = {"h": "ibv_devinfo", "C": "ibstat", "I": "ibstatus"}
_FIELD = re.compile(r"\s+([\w. ]{2,24}):(?:\s+(.{1,128}))?")
_GID = re.compile(r"\s+GID\[\s*(\d{1,4})\]:\s+([0-9a-fA-F:.]{2,64})(?:, (RoCE v[12]|IB/RoCE v1))?")
_SHOWN_GID = re.compile(
    r"\s*([A-Za-z][\w.@-]{0,63})\s+(\d{1,2})\s+(\d{1,4})\s+([0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){7})\s+(?:[\d.]{7,15}\s+)?v?(1|2)\s*(\S{0,16})"
)
_BRIEF = re.compile(
    r"\s*([A-Za-z][\w.@:-]{0,31}?)(?:@\w{1,16})?\s+(UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT)((?:\s+[0-9a-fA-F.:]{2,45}/\d{1,3})*)"
    r"(?: metric \d+)?\s*"
)
_LONG = re.compile(
    r"\s*\d{1,6}: ([A-Za-z][\w.-]{0,31})(?:@\w{1,16})?: <[A-Z0-9,_-]{0,200}> mtu (\d{1,6}) .{0,200}?state ([A-Z]{2,16})"
)
_INET = re.compile(r"\s+inet6? ([0-9a-fA-F.:]{2,45}/\d{1,3})")
_SMI_GPU = re.compile(r"GPU ([0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9])$", re.IGNORECASE)
_SMI_FIELD = re.compile(r"\s+([A-Z][\w .]{2,32}?)\s+: (.{1,96})")
_TABLE = re.compile(
    r"\|?\s*(\d{1,3})\s+([A-Z][\w .-]{1,40}?)\s+(?:On|Off|N/A)\s*"
    r"\|\s+([0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9])",
    re.IGNORECASE,
)
_LISTED = re.compile(
    r".{0,32}?\bGPU ((?:\d{1,3}, ?){0,63}\d{1,3}): ((?:NVIDIA|Tesla|Quadro|GeForce)[\w .-]{2,60}?)"
    r"(?: \(UUID: (GPU-[0-9a-f-]{36})\))?\s*"
)
_DRIVER = re.compile(
    r".{0,32}?\b(?:Nvidia driver version|CUDA Driver Version|Driver Version)\s*:\s+(\d{3}\.\d{1,3}(?:\.\d{1,3})?)"
)
_STATES = {"NOP": "0: NOP", "DOWN": "1: DOWN", "INIT": "2: INIT", "ARME": "3: ARMED", "ACTI": "4: ACTIVE"}
_LINKS = {"POLL": "2: Polling", "DISA": "3: Disabled", "LINK": "5: LinkUp"}
"""By the first four letters: each tool writes the words in its own way."""
_WIDTHS = {"1X": 1, "2X": 16, "4X": 4, "8X": 8, "12X": 12}
_MOST = 512


def read(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """Sections of every kind; lines of one kind and node are one section."""
    for own in runs(lines):
        for reader in (_verbs, _gids, _addresses, _smi, _listed):
            yield from reader(own)


def _verbs(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    facts: PastedFacts | None = None
    seen: set[tuple[str, str]] = set()
    folder = at = ""
    for line in lines:
        if match := _HCA.fullmatch(line.text):
            tool, device, number = match.groups("")
            form = _TOOLS[tool[0]]
            if facts is not None and ((device, number) in seen or form != facts.form):
                yield facts
                facts, seen = None, set()
            facts = facts or PastedFacts(form, line.number, line.node, areas={Area.RDMA})
            seen.add((device, number))
            folder = f"/sys/class/infiniband/{device}"
            at = f"{folder}/ports/{number}" if number else folder
            facts.files.setdefault(f"{folder}/fw_ver", "")
        elif facts is None or len(facts.files) > 64 * _MOST:
            continue
        elif match := _GID.fullmatch(line.text):
            index, gid, kind = match.groups("")
            _gid(facts, at, index, gid, kind, "")
            facts.areas.add(Area.PORTS)
        elif match := _FIELD.fullmatch(line.text):
            name, value = match.groups("")
            at = _field(facts, folder, at, name.lower().replace(" ", "_"), value.strip())
    if facts is not None:
        yield facts


def _field(facts: PastedFacts, folder: str, at: str, name: str, value: str) -> str:
    """Take one field; the folder of the port that the next ones belong to."""
    number = value if name == "port" else name.removeprefix("port_") if not value else ""
    if number.isdecimal() and len(number) < 4:
        return f"{folder}/ports/{number}"
    if name in ("fw_ver", "firmware_version", "board_id"):
        facts.files[f"{folder}/{'board_id' if name == 'board_id' else 'fw_ver'}"] = value
    elif at != folder and (told := _of_port(name, value, facts.files.get(f"{at}/rate", ""))):
        facts.files[f"{at}/{_FILES.get(name, name)}"] = told
    return at


_FILES = {"active_width": "rate", "active_speed": "rate", "physical_state": "phys_state"}


def _of_port(name: str, value: str, lanes: str) -> str:
    """What sysfs would say. lanes: as `active_width`, which comes first, has left them"""
    word = re.sub(r"^(?:\d: )?(?:PORT_)?", "", value)[:4].upper()
    speed = re.match(r"(\d{1,4}(?:\.\d{1,3})?)(?: Gb|$)", value)
    if name == "rate":
        return f"{float(speed[1]):g} Gb/sec" if speed else ""
    if name == "active_speed":
        known = speed and (lanes or "1").isdecimal()
        return f"{float(speed[1]) * int(lanes or 1):g} Gb/sec" if speed and known else ""
    told = {
        "state": _STATES.get(word, ""),
        "phys_state": _LINKS.get(word, ""),
        "physical_state": _LINKS.get(word, ""),
        "link_layer": value if value in ("Ethernet", "InfiniBand") else "",
        "active_width": str(_WIDTHS.get(value.partition(" ")[0], "")),
    }
    return told.get(name, "")


def _gid(facts: PastedFacts, at: str, index: str, gid: str, kind: str, netdev: str) -> None:
    try:
        value = ipaddress.IPv6Address(gid).exploded
    except ValueError:
        return
    facts.files[f"{at}/gids/{index}"] = value
    if kind:
        facts.files[f"{at}/gid_attrs/types/{index}"] = "RoCE v2" if kind.endswith("2") else "IB/RoCE v1"
    if netdev:
        facts.files[f"{at}/gid_attrs/ndevs/{index}"] = netdev


def _gids(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    facts: PastedFacts | None = None
    for line in lines:
        if match := _SHOWN_GID.fullmatch(line.text):
            facts = facts or PastedFacts(GIDS, line.number, line.node)
            if len(facts.files) < 8 * _MOST:
                at = f"/sys/class/infiniband/{match[1]}/ports/{match[2]}"
                _gid(facts, at, match[3], match[4], match[5], match[6])
    if facts is not None:
        yield facts


def _addresses(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """`ip -br addr`, `ip addr` and `ip -br link`."""
    facts: PastedFacts | None = None
    found: dict[str, list[dict[str, Any]]] = {}
    name = ""
    for line in lines:
        brief, long = _BRIEF.fullmatch(line.text), _LONG.match(line.text)
        if match := brief or long:
            facts = facts or PastedFacts(ADDRESSES, line.number, line.node, areas={Area.ADDRESSES, Area.INTERFACES})
            name, state = match[1], match[2 if brief else 3]
            if len(found) > _MOST:
                break
            found.setdefault(name, [])
            facts.files[f"/sys/class/net/{name}/operstate"] = state.lower()
            if long:
                facts.files[f"/sys/class/net/{name}/mtu"] = long[2]
            found[name] += [one for text in (match[3].split() if brief else ()) if (one := _address(text))]
        elif name and (match := _INET.match(line.text)):
            found[name] += [one] if (one := _address(match[1])) else []
    if facts is not None:
        facts.host["addresses"] = found
        yield facts


def _address(text: str) -> dict[str, Any] | None:
    try:
        one = ipaddress.ip_interface(text)
    except ValueError:
        return None
    return {"family": f"inet{'6' * (one.version == 6)}", "address": str(one.ip), "prefixlen": one.network.prefixlen}


def _smi(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """`nvidia-smi -q`, and its plain table."""
    facts: PastedFacts | None = None
    gpu: dict[str, Any] = {}
    section = ""
    for line in lines:
        if match := _SMI_GPU.match(line.text.strip()) or _TABLE.match(line.text):
            facts = facts or PastedFacts(SMI, line.number, line.node)
            if len(facts.gpus) >= _MOST:
                break
            table = match.re is _TABLE
            gpu = {"index": int(match[1]) if table else len(facts.gpus), "pci_bus_id": match[3 if table else 1]}
            gpu |= {"name": match[2].strip()} if table else {}
            facts.gpus.append(gpu)
        elif facts is not None and (match := _SMI_FIELD.fullmatch(line.text)):
            _smi_field(gpu, section, match[1], match[2].strip())
        elif line.text.strip():
            section = line.text.strip()
    if facts is not None:
        yield facts


def _smi_field(gpu: dict[str, Any], section: str, name: str, value: str) -> None:
    if name == "Product Name":
        gpu["name"] = value
    elif name == "GPU UUID":
        gpu["uuid"] = value
    elif name == "Total" and section == "FB Memory Usage" and (size := re.match(r"(\d{1,9}) MiB", value)):
        gpu["memory"] = {"total": int(size[1]) << 20}
    elif section == "Link Width" and name in ("Max", "Current") and (width := re.match(r"(\d{1,2})x$", value)):
        gpu.setdefault("link", {})["max_width" if name == "Max" else "width"] = int(width[1])


def _listed(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """`nvidia-smi -L`, SGLang's check_env and vLLM's collect_env."""
    facts: PastedFacts | None = None
    for line in lines:
        if match := _LISTED.fullmatch(line.text):
            facts = facts or PastedFacts(GPUS, line.number, line.node)
            indices = {int(number) for number in match[1].split(",")}
            uuid = {"uuid": match[3]} if match[3] else {}
            facts.gpus += [{"index": index, "name": match[2].strip(), **uuid} for index in sorted(indices)][:_MOST]
        elif facts is not None and (match := _DRIVER.match(line.text)):
            facts.driver = match[1]
    if facts is not None:
        yield facts
