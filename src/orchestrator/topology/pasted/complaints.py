"""What drivers and tools say of a fault, in a line of their own: the kernel's log, an `nvidia-smi` that refuses, an
ibstat that stops.

Source of the lines: NVIDIA's open kernel module (kernel-open/nvidia/nv.c: "fallen off the bus", "RmInitAdapter
failed"), Linux drivers/pci/pcie/aer.c and drivers/net/ethernet/mellanox/mlx5/core, and threads in which people posted
them (tests/golden/pasted).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.protocol.xids import XIDS
from orchestrator.topology.pasted.facts import Line, PastedFacts

_PLACE = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
XID = re.compile(
    rf".{{0,256}}?(?P<line>NVRM: Xid \(PCI:(?P<place>{_PLACE})[^)]{{0,16}}\): (?P<xid>\d{{1,4}})\b.{{0,300}})"
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
    rf".{{0,256}}?\b(?P<place>{_PLACE}): (?:AER: )?PCIe Bus Error: severity=(?P<severity>[A-Z][a-z]{{2,16}}"
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
    r".{0,256}?\bNVRM(?:: loading| version:) NVIDIA UNIX .{0,32}?Kernel Module (?:for \w{3,8})? {0,4}"
    r"(?P<driver>\d{3}\.\d{1,3}(?:\.\d{1,3})?)\b.{0,200}"
)
OF_KERNEL = (XID, FALLEN, OF_GPU, NOT_STARTED, AER, GIVEN_UP, MLX5, MODULE)
"""What begins a part of it."""
REFUSED = re.compile(
    r".{0,400}?(?P<words>NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"
    r"|Failed to initialize NVML: [A-Z][\w /]{3,48}"
    rf"|Unable to determine the device handle for (?:GPU|gpu)\d? ?{_PLACE}: [A-Z][\w ]{{3,48}}"
    r"|No devices were found)\b.{0,128}"
)
IBSTAT_STOPPED = re.compile(
    r"ibpanic: \[\d{1,9}\] main: stat of IB device '(?P<device>[A-Za-z][\w.@-]{0,63})' failed: (?P<why>[\w ]{2,48})"
)
MARKS = (
    "NVRM",
    "PCIe Bus Error",
    "AER: can't recover",
    "mlx5_core",
    "NVIDIA-SMI has failed",
    "initialize NVML",
    "device handle",
    "No devices",
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
        _keep_for_rule(facts, match["line"].strip())
        if match.re is XID and int(match["xid"]) not in _FOUND_BY_RULE:
            _keep(facts, "kernel", _other_xid(match))
    elif match.re is MLX5:
        port = f" port {match['port']}" if match["port"] else ""
        links: dict[str, str] = facts.also.setdefault("kernel_links", {})
        links[f"{match['name']}{port}"] = match["state"].lower()
    else:
        _keep(facts, "kernel", _of_device(match))
    return at


def _other_xid(match: re.Match[str]) -> str:
    """Of one that the rule GPU-XID leaves out: what it means, else the driver's own words."""
    own = match["line"].partition("): ")[2].partition(", ")[2].strip()[:100]
    return f"Xid {match['xid']} of the GPU at {match['place']}: {_OF_A_PROCESS.get(int(match['xid']), own)}"


def _of_device(match: re.Match[str]) -> str:
    if match.re is AER:
        return f"PCIe error at {match['place']}: {match['severity'].lower()}"
    if match.re is GIVEN_UP:
        return f"{match['driver']} can't recover {match['place']} from a PCIe error"
    code = f" ({match['code']})" if match["code"] else ""
    return f"the driver could not start GPU {match['place']}: {match['what'].rstrip('!')}{code}"


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
    _keep(facts, "refused", f"nvidia-smi said '{match['words'].strip()}'")
    return at


def ibstat_stopped(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """The line in which it names the device that it could not read."""
    _keep(facts, "refused", f"ibstat could not read {match['device']}: {match['why'].strip()}")
    return at
