"""What drivers and tools say of a fault, in a line of their own: the kernel's log, an `nvidia-smi` that refuses, an
ibstat that stops.

Source of the lines: NVIDIA's open kernel module (kernel-open/nvidia/nv.c: "fallen off the bus", "RmInitAdapter
failed"), Linux drivers/pci/pcie/aer.c and drivers/net/ethernet/mellanox/mlx5/core, and threads in which people posted
them (tests/golden/pasted).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.protocol.xids import XIDS
from orchestrator.topology.pasted.facts import Line, PastedFacts

_PLACE = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
XID = re.compile(
    rf".{{0,256}}?(?P<line>NVRM: Xid \((?:PCI:)?(?P<place>{_PLACE})[^)]{{0,16}}\): (?P<xid>\d{{1,4}})\b.{{0,300}})"
)
FALLEN = re.compile(
    rf".{{0,256}}?(?P<line>NVRM: GPU (?:at )?(?:PCI:)?{_PLACE}:? (?:GPU )?has fallen off the bus.{{0,100}})"
)
OF_GPU = re.compile(rf".{{0,256}}?NVRM: The NVIDIA GPU (?P<place>{_PLACE}).{{0,256}}")
"""The first of the lines that one message has."""
FALLEN_BELOW = re.compile(r".{0,256}?NVRM: (?:installed in this system has )?fallen off the bus\b.{0,100}")
NOT_STARTED = re.compile(
    rf".{{0,256}}?NVRM: GPU (?P<place>{_PLACE}): (?P<what>RmInitAdapter failed!|rm_init_adapter failed)"
    r"(?: \((?P<code>[0-9a-fx:]{1,32})\))?.{0,100}"
)
AER = re.compile(
    rf".{{0,256}}?\b(?:(?P<driver>[\w-]{{2,24}}) )?(?P<place>{_PLACE}): (?:AER: )?PCIe Bus Error:"
    r" severity=(?P<severity>[A-Z][a-z]{2,16}"
    r"(?: \([A-Za-z-]{2,16}\))?).{0,200}"
)
GIVEN_UP = re.compile(
    rf".{{0,256}}?\b(?P<driver>nvidia|mlx5_core) (?P<place>{_PLACE}): AER: can't recover \(.{{0,100}}"
)
"""The kernel asks each driver below a port with an error that is not corrected (Linux drivers/pci/pcie/err.c)."""
MLX5 = re.compile(
    rf".{{0,256}}?\bmlx5_core {_PLACE} (?P<name>[A-Za-z][\w.]{{0,15}}): (?:Port: (?P<port>\d{{1,2}}) )?"
    r"Link (?P<state>up|down|ACTIVE|INIT|DOWN|ARMED)\b.{0,64}"
)
MODULE = re.compile(
    r".{0,256}?\bNVRM(?:: loading| version:) {1,4}NVIDIA UNIX .{0,32}?Kernel Module (?:for \w{3,8})? {0,4}"
    r"(?P<driver>\d{3}\.\d{1,3}(?:\.\d{1,3})?)\b.{0,200}"
)
FAULT = re.compile(
    rf".{{0,256}}?(?:(?P<driver>[\w-]{{2,24}}) (?P<place>{_PLACE}): )?AMD-Vi: Event logged \[IO_PAGE_FAULT"
    rf"(?: device=(?P<device>{_PLACE}))?.{{0,200}}"
    rf"|.{{0,256}}?DMAR: \[DMA (?:Read|Write)[^\]]{{0,24}}\] Request device \[(?P<requester>{_PLACE})\].{{0,200}}"
)
"""Linux drivers/iommu/amd/iommu.c and drivers/iommu/intel/dmar.c: the IOMMU refused an access."""
IOMMU_ON = re.compile(r".{0,64}?\b(?P<words>DMAR: IOMMU enabled|AMD-Vi: AMD IOMMUv\d loaded).{0,64}")
LIMITED = re.compile(
    rf".{{0,256}}?\b(?P<driver>[\w-]{{2,24}}) (?P<place>{_PLACE}): \d{{1,5}}\.\d{{1,3}} Gb/s available PCIe bandwidth,"
    r" limited by (?P<now>[\d.]{1,4} ?GT/s)(?: PCIe)? x(?P<width>\d{1,2}) link(?: at (?P<above>[\w:.]{4,16}))?"
    r" \(capable of [\d.]{1,8} Gb/s with (?P<could>[\d.]{1,4} ?GT/s)(?: PCIe)? x(?P<most>\d{1,2}) link\).{0,16}"
)
"""Linux drivers/pci/pci.c, pcie_print_link_status."""
MISMATCH = re.compile(
    r".{0,256}?NVRM: API mismatch: (?:the )?client (?:'[^']{1,64}' \(pid \d{1,9}\) )?(?:has the version"
    r" (?P<client>\d{3}[\d.]{1,12}\d)\b.{0,160}|.{0,160})"
)
POWER = re.compile(
    rf".{{0,256}}?\bmlx5_(?:core (?P<place>{_PLACE})|pcie_event)[: ].{{0,160}}?"
    r"(?P<words>[Dd]etected insufficient power on the PCIe slot(?: \(\d{1,4}W\))?"
    r"|module \d{1,2}, (?:Cable unplugged|[Cc]able error(?:, \w[\w ]{2,48})?|Bus stuck[\w ()/]{0,48})).{0,64}"
)
NO_ROOM = re.compile(
    rf".{{0,256}}?\b(?P<place>{_PLACE}): BAR (?P<bar>\d{{1,2}})(?: \[[^\]]{{4,96}}\])?:"
    r" (?:no space for|can't assign; no space).{0,128}"
    rf"|.{{0,256}}?NVRM: BAR(?P<nvidia_bar>\d) is 0M @ 0x0 \(PCI:(?P<nvidia_place>{_PLACE})\).{{0,64}}"
)
"""Linux drivers/pci/setup-res.c; NVIDIA's kernel-open/nvidia/nv-pci.c."""
CARD = re.compile(
    rf".{{0,256}}?\bmlx5_core(?:: probe of)? (?P<place>{_PLACE})[: ].{{0,160}}?"
    r"(?P<words>failed with error (?:code )?-\d{1,3}|health compromised|firmware internal error).{0,96}"
)
"""Linux drivers/net/ethernet/mellanox/mlx5/core: main.c, health.c."""
FABRIC = re.compile(
    r".{0,256}?\b(?P<words>[Ff]abric ?[Mm]anager NVIDIA GPU driver interface version (?P<own>[\d.]{3,16}) don.t match"
    r" with driver version (?P<driver>[\d.]{2,15}\d)).{0,64}"
)
INVALID = re.compile(r".{0,256}?NVRM: (?P<words>This PCI I/O region assigned to your NVIDIA device is invalid).{0,64}")
NOT_TAKEN = re.compile(
    rf".{{0,256}}?\bnvidia(?:: probe of (?P<old>{_PLACE})| (?P<place>{_PLACE}): probe)"
    r" (?:with driver nvidia )?failed with error (?P<error>-\d{1,3})"
)
SXID = re.compile(rf".{{0,256}}?(?P<line>nvidia-nvswitch\d{{1,2}}: SXid \(PCI:{_PLACE}\): \d{{1,6}}, .{{0,160}})")
PEERMEM = re.compile(
    r"(?:.{0,256}?\b(?P<module>nv(?:idia)?_peer_?mem): "
    r"(?P<why>(?:Unknown symbol|disagrees about version of symbol) \w{3,64}).{0,64}"
    r"|.{0,96}?\bmodprobe: (?:FATAL|ERROR): (?:could not insert '(?P<refused>nv(?:idia)?[_-]peer_?mem)': "
    r"(?P<reason>[A-Z][\w (),.]{3,80})"
    r"|Module (?P<absent>nv(?:idia)?[_-]peer_?mem) not found\b.{0,128}))"
)
_ABOUT_GPUS = (XID, FALLEN, OF_GPU, NOT_STARTED, AER, GIVEN_UP, MLX5, MODULE)
RESET = re.compile(r".{0,256}?NVRM: .{0,128}?(?P<words>Reset required \[NV_ERR_RESET_REQUIRED\]).{0,200}")
_ABOUT_REST = (
    RESET,
    FAULT,
    IOMMU_ON,
    LIMITED,
    MISMATCH,
    POWER,
    NO_ROOM,
    CARD,
    FABRIC,
    INVALID,
    NOT_TAKEN,
    SXID,
    PEERMEM,
)
OF_KERNEL = (*_ABOUT_GPUS, *_ABOUT_REST)
"""What begins a part of it."""
REFUSED = re.compile(
    r"(?P<before>.{0,400}?)(?P<words>NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"
    r"|Failed to initialize NVML: [A-Z][\w /]{3,48}"
    r"|Unable to determine the device handle for (?:GPU|gpu)\d? ?(?:[0-9a-fA-F]{3,8}:)?"
    r"[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]: [A-Z][\w ]{3,48}"
    r"|No devices were found)\b.{0,128}"
)
_IN_A_SENTENCE = re.compile(r"""[a-z,] ["'`\u201c]?$|["`\u201c]$""")
"""Before words that somebody quotes: what a tool prints begins a line, or follows its log's mark."""
_HANDLE = re.compile(r"[0-9a-fA-F]{3,8}(?::[0-9a-fA-F]{2}){2}(?:\.[0-7])?")
IBSTAT_STOPPED = re.compile(
    r"ibpanic: \[\d{1,9}\] main: stat of IB device '(?P<device>[A-Za-z][\w.@-]{0,63})' failed: (?P<why>[\w ]{2,48})"
)
MARKS = (
    "NVRM",
    "PCIe Bus Error",
    "AER: can't recover",
    "mlx5_",
    "driver interface version",
    "NVIDIA-SMI has failed",
    "initialize NVML",
    "device handle",
    "No devices",
    "AMD-Vi",
    "DMAR",
    "available PCIe bandwidth",
    "BAR ",
    "failed with error",
    "SXid",
    "peer",
)
"""One of them is in each of these lines but ibstat's."""
_MOST = 64
_KERNEL_FAULT = "a kernel's fault that ended its process: a bug in it, or a faulty GPU where it is always the same"
_OF_A_PROCESS = {
    13: _KERNEL_FAULT,
    31: "an access to memory that is not mapped, which ended its process: a bug in it, or a faulty GPU where it is"
    " always the same",
    43: "the driver ended its process's work there after a fault: the Xid before it tells which",
    45: "a process's work there was cut off as it ended: the Xid before it tells why, if there is one",
    69: _KERNEL_FAULT,
    109: "a kernel did not end in time",
}
"""Xids that alone show no broken hardware (NVIDIA, Xid Errors)."""
_FOUND_BY_RULE = {*XIDS, 63, 94}


def among(lines: Sequence[Line]) -> list[Line]:
    """The lines that may be such."""
    return [line for line in lines if any(mark in line.text for mark in MARKS)]


def kernel(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of the kernel's log; at: the GPU that a message of several lines is about."""
    if match.re is MODULE:
        facts.driver = facts.driver or match["driver"]
    elif match.re is OF_GPU:
        return match["place"]
    elif match.re is FALLEN_BELOW:
        if at:
            _keep_for_rule(facts, f"NVRM: GPU at {at} has fallen off the bus")
        return ""
    elif match.re in (XID, FALLEN):
        _xid(facts, match)
    elif match.re is MLX5:
        port = f" port {match['port']}" if match["port"] else ""
        links: dict[str, str] = facts.also.setdefault("kernel_links", {})
        links[f"{match['name']}{port}"] = match["state"].lower()
    else:
        _keep(facts, "kernel", _SAID.get(match.re, _of_device)(match))
        _for_rules(facts, match)
    return at


def _xid(facts: PastedFacts, match: re.Match[str]) -> None:
    """Old drivers leave out 'PCI:'."""
    _keep_for_rule(facts, re.sub(r"Xid \((?!PCI:)", "Xid (PCI:", match["line"].strip()))
    if match.re is XID and int(match["xid"]) not in _FOUND_BY_RULE:
        _keep(facts, "kernel", _other_xid(match))


_CAUSED_BY = re.compile(r"caused by previous Xid (\d{1,4})\b")


def _other_xid(match: re.Match[str]) -> str:
    """Of one that the rule GPU-XID leaves out: what it means, else the driver's own words."""
    own = match["line"].partition("): ")[2].partition(", ")[2].strip()[:100]
    earlier = f"; here Xid {before[1]}" if (before := _CAUSED_BY.search(match["line"])) else ""
    return f"Xid {match['xid']} of the GPU at {match['place']}: {_OF_A_PROCESS.get(int(match['xid']), own)}{earlier}"


def _of_device(match: re.Match[str]) -> str:
    if match.re is AER:
        return f"PCIe error at {match['place']}: {match['severity'].lower()}"
    if match.re is GIVEN_UP:
        return f"{match['driver']} can't recover {match['place']} from a PCIe error"
    code = f" ({match['code']})" if match["code"] else ""
    return f"the driver could not start GPU {match['place']}: {match['what'].rstrip('!')}{code}"


def _fault(match: re.Match[str]) -> str:
    place = match["place"] or match["device"] or match["requester"] or "a device"
    whose = f"{match['driver']} {place}" if match["driver"] else place
    return f"the IOMMU refused an access of {whose}"


def _limited(match: re.Match[str]) -> str:
    at = f" at {match['above']}" if match["above"] else ""
    return (
        f"the PCIe link of {match['driver']} {match['place']} is {match['now']} x{match['width']}{at},"
        f" of {match['could']} x{match['most']}"
    )


def _mismatch(match: re.Match[str]) -> str:
    version = f" ({match['client']})" if match["client"] else ""
    return f"NVIDIA's library{version} and its kernel module are of different versions: reboot, or reload the module"


def _no_room(match: re.Match[str]) -> str:
    bar, place = match["bar"] or match["nvidia_bar"], match["place"] or match["nvidia_place"]
    return f"BAR {bar} of {place} got no address: see Above 4G Decoding in the BIOS"


def _peermem(match: re.Match[str]) -> str:
    if match["module"]:
        return f"{match['module']} can't be loaded: {match['why']}"
    name = match["refused"] or match["absent"]
    return f"{name} can't be loaded: {match['reason'].strip() if match['refused'] else 'there is no such module'}"


_SAID: Mapping[re.Pattern[str], Callable[[re.Match[str]], str]] = {
    RESET: lambda match: f"the driver says '{match['words']}'",
    FAULT: _fault,
    IOMMU_ON: lambda match: f"the IOMMU is on ({match['words']})",
    LIMITED: _limited,
    MISMATCH: _mismatch,
    POWER: lambda match: f"{f'mlx5_core {place}' if (place := match['place']) else 'mlx5'}: {match['words']}",
    NO_ROOM: _no_room,
    CARD: lambda match: f"mlx5_core {match['place']}: {match['words']}",
    FABRIC: lambda match: f"nvidia-fabricmanager is of version {match['own']}, the driver of {match['driver']}",
    INVALID: lambda match: f"NVRM: {match['words']}: see Above 4G Decoding, and in a virtual machine its MMIO window",
    NOT_TAKEN: lambda match: f"NVIDIA's driver did not take {match['place'] or match['old']} (error {match['error']})",
    SXID: lambda match: match["line"].strip(),
    PEERMEM: _peermem,
}
"""What else it says, in words."""


def _for_rules(facts: PastedFacts, match: re.Match[str]) -> None:
    """What a rule judges too."""
    if match.re is NOT_STARTED:
        _keep_for_rule(facts, f"NVRM: GPU {match['place']}: {match['what']}")
    elif match.re in (CARD, FABRIC):
        _keep_for_rule(facts, match[0].strip())
    elif match.re is AER:
        _keep(facts, "pcie_errors", f"{match['driver'] or ''}|{match['place']}|{match['severity'].lower()}")
    elif match.re is RESET:
        facts.also.setdefault("nameless", [{"reset_required": 1, "sections": []}])
    elif match.re is FAULT:
        _keep(facts, "iommu_faults", _fault(match))
    elif match.re is LIMITED:
        _keep(facts, "limited_links", "|".join(match.group("driver", "place", "now", "width", "could", "most")))


def _keep_for_rule(facts: PastedFacts, line: str) -> None:
    """Where the probe writes what it read in /dev/kmsg."""
    lines: list[str] = facts.host.setdefault("kernel_log", {}).setdefault("xid", [])
    if line not in lines and len(lines) < _MOST:
        lines.append(line)


def _keep(facts: PastedFacts, key: str, words: str) -> None:
    kept: list[str] = facts.also.setdefault(key, [])
    if words not in kept and len(kept) < _MOST:
        kept.append(words)


def refusal(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line in which a tool says that it could not do its work."""
    words = match["words"].strip()
    if _IN_A_SENTENCE.search(match["before"]):
        _keep(facts, "refused", f"the text mentions '{words}'")
        return at
    _keep(facts, "refused", f"nvidia-smi said '{words}'")
    if words.startswith("Unable to determine") and (place := _HANDLE.search(words)):
        lost: dict[str, Any] = {"pci_bus_id": place[0], "error": words.rpartition(": ")[2], "sections": []}
        facts.also.setdefault("nameless", []).append(lost)
    return at


def ibstat_stopped(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """The line in which it names the device that it could not read."""
    _keep(facts, "refused", f"ibstat could not read {match['device']}: {match['why'].strip()}")
    return at
