"""Lists of GPUs: CUDA's devices by its sample p2pBandwidthLatencyTest (cuda-samples), rows of
`nvidia-smi --query-gpu --format=csv`, and what nccl-tests says that it ran on (src/common.cu, "# Using devices").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.model.per_node import collected
from orchestrator.topology.pasted.facts import Line, PastedFacts

CUDA_DEVICE = re.compile(
    r"Device: (?P<index>\d{1,3}), (?P<name>[A-Z][\w .-]{2,60}), pciBusID: (?P<bus>[0-9a-f]{1,2}), "
    r"pciDeviceID: (?P<device>[0-9a-f]{1,2}), pciDomainID: ?(?P<domain>[0-9a-f]{1,8})\s*"
)
CUDA_ACCESS = re.compile(r"Device=(?P<one>\d{1,3}) (?P<can>CAN|CANNOT) Access Peer Device=(?P<other>\d{1,3})\s*")
CUDA_MATRIX = re.compile(r"\s*P2P Connectivity Matrix\s*")
CUDA_REACHED = re.compile(r"\s+(?P<own>\d{1,3})(?P<reached>(?:\s+[01]){2,64})\s*")
SIMPLE_P2P = re.compile(
    r"(?:> ?)?Peer(?:-to-Peer \(P2P\))? access from [\w .-]{3,60} \(GPU(?P<one>\d{1,3})\) -> [\w .-]{3,60}"
    r" \(GPU(?P<other>\d{1,3})\) ?: (?P<can>Yes|No)\s*"
)
CUDA_SPEEDS = re.compile(
    r"\s*(?P<ways>Uni|Bi)directional P2P=(?P<p2p>Enabled|Disabled) Bandwidth .{0,24}Matrix \(GB/s\)\s*"
)
CUDA_LATENCY = re.compile(r"\s*P2P=(?:Enabled|Disabled) Latency .{0,24}Matrix \(us\)\s*")
CUDA_ROW = re.compile(r"\s+(?P<own>\d{1,3})(?P<speeds>(?:\s+\d{1,5}\.\d{1,3}){1,64})\s*")
CUDA = "p2pBandwidthLatencyTest"
_COLUMN = r"[a-z][a-z0-9_.]{1,48}(?: \[[A-Za-z%/]{1,8}\])?"
QUERY_HEAD = re.compile(
    rf"(?:index|name|gpu_name|uuid|pci\.bus_id|gpu_bus_id|driver_version|count|timestamp)(?:, {_COLUMN}){{1,40}}"
)
_TESTED = re.compile(
    r"# {1,4}Rank {1,4}\d{1,5} (?: ?Group {1,4}\d{1,3} )?.{0,8}?Pid {1,8}\d{1,10} on"
    r" {1,8}(?P<host>[A-Za-z0-9][\w.-]{0,63})? {1,8}device {1,4}\d{1,3}"
    r" \[(?P<address>[0-9a-fA-Fx:]{2,16})\] (?P<name>[A-Z][\w .-]{2,60}?)\s*"
)
QUERY_ROW = re.compile(r"[^,]{1,80}(?:, [^,]{0,80}){1,40}")
_QUERIED = {"name": "name", "gpu_name": "name", "uuid": "uuid", "pci.bus_id": "pci_bus_id", "gpu_bus_id": "pci_bus_id"}
_LINK = {
    "pcie.link.width.current": "width", "pcie.link.width.max": "max_width",
    "pcie.link.gen.current": "gen", "pcie.link.gen.max": "max_gen",
}  # fmt: skip
_ON = {"Enabled": 1, "Disabled": 0}
_STATES: dict[str, tuple[str, dict[str, int]]] = {
    "persistence_mode": ("persistence", _ON),
    "compute_mode": ("compute_mode", {"Default": 0, "Prohibited": 2, "Exclusive_Process": 3}),
}
QUERY_BARE = re.compile(
    r"(?:(?P<index>\d{1,3}), )?(?P<name>(?:NVIDIA|Tesla|Quadro) [\w .-]{2,60}?)(?P<cells>(?:, [^,]{1,80}){1,40})"
)
"""Of --format=csv,noheader."""
QUERY_ASKED = re.compile(
    r".{0,128}?\bnvidia-smi .{0,64}?--query-gpu=(?P<names>[a-z0-9_.]{1,48}(?:,[a-z0-9_.]{1,48}){0,40}) .{0,96}"
)
"""The command: its rows may have no heading."""
_A_DRIVER = re.compile(r"\d{3}\.\d{2,3}(?:\.\d{2})?")


def cuda(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of CUDA's devices, by its own order, whether one reaches another's memory, and how fast; at: with or
    without P2P, of the matrix that a row belongs to."""
    if match.re is CUDA_SPEEDS:
        return match["p2p"] if match["ways"] == "Uni" else f"{match['p2p']}{_BOTH_WAYS}"
    if match.re in (CUDA_MATRIX, CUDA_LATENCY):
        return _CONNECTED if match.re is CUDA_MATRIX else ""
    if match.re is CUDA_ROW:
        _speeds(facts, match, at)
    elif match.re is CUDA_REACHED:
        if at == _CONNECTED:
            for place, can in enumerate(match["reached"].split()):
                _reach(facts, match["own"], str(place), can=can == "1")
    elif match.re is CUDA_ACCESS:
        _reach(facts, match["one"], match["other"], can=match["can"] == "CAN")
    else:
        address = f"{int(match['domain'], 16):04x}:{int(match['bus'], 16):02x}:{int(match['device'], 16):02x}.0"
        facts.gpus.append({"index": int(match["index"]), "name": match["name"], "pci_bus_id": address})
    return at


_BOTH_WAYS = ", both ways"
_CONNECTED = "connected"


def _reach(facts: PastedFacts, one: str, other: str, *, can: bool) -> None:
    """A pair is told of twice: each way."""
    if one != other:
        pair = "-".join(sorted((one, other), key=int))
        peers: dict[str, Any] = facts.also.setdefault("peers", {})
        peers[pair] = can and peers.get(pair, True)


def simple_p2p(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of CUDA's sample simpleP2P: whether one device reaches another's memory."""
    _reach(facts, match["one"], match["other"], can=match["can"] == "Yes")
    return at


def _speeds(facts: PastedFacts, match: re.Match[str], p2p: str) -> None:
    """A row of GB/s to each device."""
    if p2p.removesuffix(_BOTH_WAYS) not in ("Enabled", "Disabled"):
        return
    speeds: dict[str, float] = facts.also.setdefault("peer_speeds", {}).setdefault(p2p, {})
    speeds |= {
        f"{match['own']}-{place}": float(speed)
        for place, speed in enumerate(match["speeds"].split())
        if str(place) != match["own"]
    }


def complete_a_cut_name(facts: PastedFacts, lines: Sequence[Line]) -> None:
    """Where a text ends amid its last GPU's name, it is that of the others."""
    last = next((line.text for line in reversed(lines) if line.text.strip()), "")
    names = [str(gpu.get("name", "")) for gpu in facts.gpus]
    if len(names) > 1 and names[-1] and last.rstrip().endswith(names[-1]) and names[-2].startswith(names[-1]):
        facts.gpus[-1]["name"] = names[-2]


def queried(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A row of `nvidia-smi --query-gpu --format=csv`; at: its heading."""
    if match.re is QUERY_HEAD:
        return match[0]
    if match.re is QUERY_ASKED:
        names = match["names"].split(",")
        return ", ".join(f"{name} [MiB]" if name.startswith("memory.") else name for name in names)
    if match.re is QUERY_BARE:
        return _bare(facts, match, at)
    row = dict(zip(at.split(", "), match[0].split(", "), strict=False))
    if row.get("index", "0").isdecimal() and any("NVIDIA" in cell or "Tesla" in cell for cell in row.values()):
        facts.gpus.append(_gpu_of(row, len(facts.gpus)))
        facts.driver = facts.driver or row.get("driver_version", "")
    return at


def _bare(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A row without a heading: which of its cells is what only their own words tell."""
    if not at:
        gpu: dict[str, Any] = {"index": int(match["index"] or len(facts.gpus)), "name": match["name"].strip()}
        facts.gpus.append(gpu)
        facts.driver = facts.driver or next(filter(_A_DRIVER.fullmatch, match["cells"].split(", ")), "")
        return at
    return queried(facts, row, at) if (row := QUERY_ROW.fullmatch(match[0])) else at


def _gpu_of(row: Mapping[str, str], place: int) -> dict[str, Any]:
    """A GPU by the cells of its row. place: its index, where no cell has it"""
    gpu: dict[str, Any] = {"index": int(row.get("index", place))}
    gpu |= {own: row[name] for name, own in _QUERIED.items() if name in row}
    sizes = {own: re.match(r"(\d{1,9})(?: MiB)?$", row.get(f"memory.{own} [MiB]", "")) for own in ("total", "used")}
    if memory := {own: int(size[1]) << 20 for own, size in sizes.items() if size}:
        gpu["memory"] = memory
    if link := {own: int(row[name]) for name, own in _LINK.items() if row.get(name, "").isdecimal()}:
        gpu["link"] = link
    states = {own: known[row[name]] for name, (own, known) in _STATES.items() if row.get(name) in known}
    return gpu | states | _sums(row)


def _sums(row: Mapping[str, str]) -> dict[str, Any]:
    """Counts of errors and what holds clocks down."""
    more: dict[str, Any] = {}
    errors = row.get("ecc.errors.uncorrected.volatile.total", "")
    enabled = _ON.get(row.get("ecc.mode.current", ""))
    ecc = {"uncorrected": int(errors)} if errors.isdecimal() else {}
    if ecc := {**ecc, **({} if enabled is None else {"enabled": enabled})}:
        more["ecc"] = ecc
    active = row.get("clocks_throttle_reasons.active", row.get("clocks_event_reasons.active", ""))
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", active):
        more["clocks_event_reasons"] = int(active, 16)
    return more


def tested(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """The GPUs that nccl-tests ran on, a host at a time: which others there are it does not say."""
    rows = [(line, match) for line in lines if "Pid" in line.text and (match := _TESTED.fullmatch(line.text))]
    for host, own in collected((match["host"] or line.node, (line, match)) for line, match in rows).items():
        first = own[0][0]
        devices = [[match["name"].strip(), match["address"].lower().removeprefix("0x")] for _, match in own]
        yield PastedFacts("devices of nccl-tests", first.number, host, also={"tested": devices})
