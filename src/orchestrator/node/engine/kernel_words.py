"""What the kernel logged about a rank's GPU, process, network or memory around its death. Pure.

Records are those of /dev/kmsg: `priority,number,microseconds,flags;text`, on the monotonic clock. The texts are written
by NVIDIA's driver (Xid); Linux mm/oom_kill.c, mm/memory-failure.c (SIGBUS), drivers/pci/pcie/aer.c and dpc.c, network
drivers (mlx5's en_main.c: "Link down"), drivers/net/bonding/bond_main.c, arch/x86/kernel/cpu/mce/core.c and
drivers/edac/edac_mc.c.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.protocol.kernel_lines import (
    BROKEN_MEMORY_FIX,
    MACHINE_CHECK,
    MEMORY_BROKEN,
    PCI_ADDRESS,
    PCIE_ERROR_FIX,
)
from orchestrator.protocol.xids import XIDS

NEAR_S = 30.0
"""The driver reports a lost GPU when it notices; the rank may end only after NCCL's watchdog or its own next call."""
_RECORD = re.compile(r"^\d{1,5},\d{1,12},(\d{1,18}),[^;]{0,200};(.{0,1000})")
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})[^)]{0,16}\): (\d{1,4})\b")
_OUT_OF_MEMORY = re.compile(r"[Oo]ut of memory: Killed process (\d{1,10})\b")
_SIGBUS = re.compile(MEMORY_BROKEN)
_AER = re.compile(rf"\b{PCI_ADDRESS}: (?:AER: )?PCIe Bus Error: severity=(Uncorrect(?:ed|able) \((?:Non-)?Fatal\))")
_DPC = re.compile(rf"\b{PCI_ADDRESS}: DPC: containment event")
_LINK = re.compile(r"\b([\w.-]{1,15}): (?:NIC )?Link (?:is )?[Dd]own\b")
_BOND = re.compile(r"\b([\w.-]{1,15}): now running without any active interface")
_MACHINE_CHECK = re.compile(MACHINE_CHECK)
_PLACE = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})")
ASKED_FOR = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
"""Signals that a user or program sent."""
_OF_MEMORY = (signal.SIGBUS, signal.SIGSEGV)


@dataclass(frozen=True)
class KernelWord:
    """signature: an id of the catalogue; line: the kernel's log line."""

    signature: str
    text: str
    fix: str
    line: str


@dataclass(frozen=True)
class Devices:
    """What a process used, as /sys shows it.

    above:   PCI addresses of the bridges between its GPU and the CPU
    gone:    evidence that the GPU does not answer, '' where it does
    network: the gang's interfaces on this node, with the name to report for each: {'ens3f0np0': 'mlx5_2'}
    cards:   PCI addresses of their cards, with the name to report for each
    down:    interfaces of that network without a carrier, with the evidence
    """

    above: tuple[str, ...] = ()
    gone: str = ""
    network: Mapping[str, str] = field(default_factory=dict)
    cards: Mapping[str, str] = field(default_factory=dict)
    down: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DeadProcess:
    """A process that ended. place: PCI address of its GPU, '' for none; signal: that ended it, None if none did;
    explained: its log gives a reason of its own, so that a nearby fault is not the cause."""

    pid: int
    gpu: int = -1
    place: str = ""
    around: Devices = Devices()
    signal: int | None = None
    explained: bool = False


def reason(records: Sequence[str], now_s: float, dead: DeadProcess) -> KernelWord | None:
    """The kernel's reason for a death, or None. now_s: monotonic. The reason nearest to the process counts: its own GPU
    and its own end, then the path to the GPU, then the network, then the machine; among equals the newest."""
    matches = (_RECORD.match(record) for record in reversed(records))
    lines = [match[2] for match in matches if match is not None and now_s - int(match[1]) / 1e6 <= NEAR_S]
    words = (kind(line, dead) for kind in _kinds(dead) for line in lines)
    return next((word for word in words if word is not None), None)


def link_down(name: str, called: str, line: str) -> KernelWord:
    """An interface of the gang without a link. called: name of its RDMA device, '' for none."""
    whose = f"{name} ({called})" if called else name
    fix = f"check the cable, the module and the switch port of {name} on that node, then `l40s-deploy doctor`"
    return KernelWord("NIC-DOWN", f"the link of {whose} went down", fix, line)


def gpu_gone(gpu: int, line: str) -> KernelWord:
    """A GPU that no longer answers on the bus."""
    return KernelWord("GPU-LOST", f"GPU {gpu} fell off the bus", XIDS[79].fix, line)


def _kinds(dead: DeadProcess) -> Sequence[Callable[[str, DeadProcess], KernelWord | None]]:
    """Nearby faults explain neither a signal that a user or program sent nor a death that its log explains."""
    own = (_xid, _killed, _poisoned)
    if dead.explained or dead.signal in ASKED_FOR:
        return own
    return (*own, _pcie, _link, *((_machine,) if dead.signal is None or dead.signal in _OF_MEMORY else ()))


def _xid(line: str, dead: DeadProcess) -> KernelWord | None:
    match, ours = _XID.search(line), _PLACE.match(dead.place)
    if match is None or ours is None or _address(match) != _address(ours):
        return None
    xid = XIDS.get(number := int(match[4]))
    return KernelWord(xid.id, f"GPU {dead.gpu} {xid.what} (Xid {number})", xid.fix, line) if xid is not None else None


def _killed(line: str, dead: DeadProcess) -> KernelWord | None:
    match = _OUT_OF_MEMORY.search(line)
    if match is None or int(match[1]) != dead.pid:
        return None
    fix = "check `journalctl -k | grep -i oom`; find what else uses main memory there, and stop it"
    return KernelWord("OUT-OF-MEMORY", "the kernel's OOM killer killed it: the node ran out of main memory", fix, line)


def _poisoned(line: str, dead: DeadProcess) -> KernelWord | None:
    match = _SIGBUS.search(line)
    if match is None or int(match[1]) != dead.pid:
        return None
    return KernelWord("MEMORY-BROKEN", "its main memory has an uncorrectable error", BROKEN_MEMORY_FIX, line)


def _pcie(line: str, dead: DeadProcess) -> KernelWord | None:
    match = _AER.search(line) or _DPC.search(line)
    if match is None:
        return None
    what = match[2] if match.re is _AER else "contained"
    if _same(match[1], dead.place):
        where = f"GPU {dead.gpu}"
    elif any(_same(match[1], bridge) for bridge in dead.around.above):
        where = f"{match[1]}, above GPU {dead.gpu}"
    else:
        where = next((f"the card of {name}" for place, name in dead.around.cards.items() if _same(match[1], place)), "")
    if not where:
        return None
    return KernelWord("PCIE-ERROR", f"PCIe error at {where} ({what})", PCIE_ERROR_FIX, line)


def _link(line: str, dead: DeadProcess) -> KernelWord | None:
    match = _LINK.search(line) or _BOND.search(line)
    if match is None or match[1] not in dead.around.network:
        return None
    return link_down(match[1], dead.around.network[match[1]], line)


def _machine(line: str, _: DeadProcess) -> KernelWord | None:
    if _MACHINE_CHECK.search(line) is None:
        return None
    return KernelWord("MACHINE-CHECK", "the processor or its memory reported a hardware error", BROKEN_MEMORY_FIX, line)


def _same(word: str, other: str) -> bool:
    """Whether two addresses name the same function; NVML writes the domain with 8 digits."""
    ours, theirs = _PLACE.match(word), _PLACE.match(other)
    return (
        ours is not None
        and theirs is not None
        and _address(ours) == _address(theirs)
        and word[-2:].lower() == other[-2:].lower()
    )


def _address(match: re.Match[str]) -> tuple[int, int, int]:
    return int(match[1], 16), int(match[2], 16), int(match[3], 16)
