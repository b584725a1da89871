"""The answers of the lab's NVML for a machine (keys: nvml.c)."""

from __future__ import annotations

import uuid

from l40s_lab.hardware import pci
from l40s_lab.hardware.machine import Gpu, NodeMachine
from l40s_lab.hardware.pci import Function
from l40s_lab.hardware.realise import digest

_GPU_IS_LOST = 15
"""nvmlReturn_t."""
_TOO_HOT = 0x08 | 0x40
"""nvmlClocksEventReasonHwSlowdown and nvmlClocksEventReasonHwThermalSlowdown."""
_ONE_SWITCH, _SWITCHES, _HOST_BRIDGE, _NODE, _SYSTEM = 10, 20, 30, 40, 50
"""nvmlGpuTopologyLevel_t."""


def render(node: NodeMachine) -> str:
    """The configuration file's text."""
    if node.recording is not None:
        return node.recording.nvml
    functions = [one for one in pci.lay_out(node.machine).functions if isinstance(one.card, Gpu)]
    functions.sort(key=lambda one: one.address)
    system = node.machine.system
    major, _, rest = system.driver.partition(".")
    lines = [
        f"driver={system.driver}",
        f"nvml={system.cuda // 1000}.{major}.{rest}",
        f"cuda={system.cuda}",
        f"count={len(functions)}",
        *(["hang=1"] if system.wedged else []),
    ]
    for index, function in enumerate(functions):
        lines += [f"{index}.{key}={value}" for key, value in _facts(node, index, function).items()]
    for low, one in enumerate(functions):
        for high in range(low + 1, len(functions)):
            lines.append(f"topo.{low}.{high}={_ancestor(one, functions[high])}")
    return "\n".join(lines) + "\n"


def _facts(node: NodeMachine, index: int, function: Function) -> dict[str, object]:
    card = function.card
    assert isinstance(card, Gpu)
    unique = digest(node.seed, "gpu", str(index))
    facts: dict[str, object] = {
        "name": card.name,
        "busid": function.address,
        "uuid": f"GPU-{uuid.UUID(bytes=unique[:16], version=4)}",
        "serial": 1320000000000 + int.from_bytes(unique[16:20], "big"),
        "device": hex(card.device),
        "subsystem": hex(card.subsystem),
        "numa": max(function.numa, 0),
        "mem_total": card.memory_mib,
        "mem_reserved": card.reserved_mib,
        "bar1_total": card.bar1_mib,
        "maxgen": card.max_gen,
        "width": function.link.width,
        "maxwidth": card.width,
        "power_limit": card.power_limit_w * 1000,
    }
    if card.lost:
        facts["fail"] = _GPU_IS_LOST
    if card.uncorrected:
        facts |= {"ecc_unc": card.uncorrected, "remap_unc": 1, "remap_pending": 1}
    if card.hot:
        facts |= {"reasons": _TOO_HOT, "temp": 94, "clocks": 405}
    return facts


def _ancestor(one: Function, other: Function) -> int:
    shared = 0
    for left, right in zip(one.path.split("/"), other.path.split("/"), strict=False):
        if left != right:
            break
        shared += 1
    if shared > 1:
        # both below one upstream port, or below that of a switch further up
        return _ONE_SWITCH if one.path.count("/") - shared <= 1 else _SWITCHES
    if one.root == other.root:
        return _HOST_BRIDGE
    return _NODE if one.numa == other.numa else _SYSTEM
