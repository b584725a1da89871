"""Lists of GPUs: CUDA's devices by its sample p2pBandwidthLatencyTest (cuda-samples), and rows of
`nvidia-smi --query-gpu --format=csv`.
"""

from __future__ import annotations

import re
from typing import Any

from orchestrator.topology.pasted.facts import PastedFacts

CUDA_DEVICE = re.compile(
    r"Device: (?P<index>\d{1,3}), (?P<name>[A-Z][\w .-]{2,60}), pciBusID: (?P<bus>[0-9a-f]{1,2}), "
    r"pciDeviceID: (?P<device>[0-9a-f]{1,2}), pciDomainID: ?(?P<domain>[0-9a-f]{1,8})\s*"
)
CUDA_ACCESS = re.compile(r"Device=(?P<one>\d{1,3}) (?P<can>CAN|CANNOT) Access Peer Device=(?P<other>\d{1,3})\s*")
CUDA = "p2pBandwidthLatencyTest"
_COLUMN = r"[a-z][a-z0-9_.]{1,48}(?: \[[A-Za-z%/]{1,8}\])?"
QUERY_HEAD = re.compile(
    rf"(?:index|name|gpu_name|uuid|pci\.bus_id|gpu_bus_id|driver_version|count|timestamp)(?:, {_COLUMN}){{1,40}}"
)
QUERY_ROW = re.compile(r"[^,]{1,80}(?:, [^,]{0,80}){1,40}")
_QUERIED = {"name": "name", "gpu_name": "name", "uuid": "uuid", "pci.bus_id": "pci_bus_id", "gpu_bus_id": "pci_bus_id"}


def cuda(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of CUDA's devices, by its own order, and whether one reaches another's memory."""
    if match.re is CUDA_ACCESS:
        pair = "-".join(sorted((match["one"], match["other"]), key=int))
        peers: dict[str, Any] = facts.also.setdefault("peers", {})
        peers[pair] = match["can"] == "CAN" and peers.get(pair, True)
    else:
        address = f"{int(match['domain'], 16):04x}:{int(match['bus'], 16):02x}:{int(match['device'], 16):02x}.0"
        facts.gpus.append({"index": int(match["index"]), "name": match["name"], "pci_bus_id": address})
    return at


def queried(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A row of `nvidia-smi --query-gpu --format=csv`; at: its heading."""
    if match.re is QUERY_HEAD:
        return match[0]
    row = dict(zip(at.split(", "), match[0].split(", "), strict=False))
    if row.get("index", "0").isdecimal() and any("NVIDIA" in cell or "Tesla" in cell for cell in row.values()):
        gpu: dict[str, Any] = {"index": int(row.get("index", len(facts.gpus)))}
        gpu |= {own: row[name] for name, own in _QUERIED.items() if name in row}
        if size := re.fullmatch(r"(\d{1,9}) MiB", row.get("memory.total [MiB]", "")):
            gpu["memory"] = {"total": int(size[1]) << 20}
        facts.gpus.append(gpu)
        facts.driver = facts.driver or row.get("driver_version", "")
    return at
