"""What nvidia-smi says of each GPU's state, in sentences: clocks, power, use, memory rows, NVLinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import Snapshot, part
from orchestrator.topology.gpus import nvml_devices, whole
from orchestrator.topology.pci import normal_address
from orchestrator.topology.stated import nameless_gpus, nameless_words, pasted
from orchestrator.topology.text_words import spans

_Gpu = Mapping[str, Any]
_REASONS = {
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
"""Bits of nvmlClocksEventReasons; the lowest one is an idle GPU's."""
_SMALL_BAR = 256 << 20
_HOT = 85
"""Celsius; an L40S slows down from 88 on."""


def of_gpus(snapshot: Snapshot) -> Iterator[str]:
    """Sentences, those of the same kind as one."""
    gpus = {f"GPU{gpu.get('index')}": gpu for gpu in nvml_devices(snapshot.nvml)}
    sentences = [(words, name) for name, gpu in gpus.items() for words in _states(gpu)]
    for words, names in collected(sentences).items():
        yield words.format(spans(names))
    yield from _nvlinks(part(pasted(snapshot), "nvlink_states"))
    yield from _nvlink_ends(part(pasted(snapshot), "nvlink_ends"))
    for piece in nameless_gpus(snapshot):
        if words := "; ".join(state.format("it") for state in (*_sizes(piece), *_states(piece))):
            yield f"of {nameless_words(piece)}: {words}"


def _states(gpu: _Gpu) -> Iterator[str]:
    """Sentences with {} for the names."""
    yield from _clocks(gpu)
    power = part(gpu, "power")
    if 0 < whole(power.get("limit")) < whole(power.get("default")):
        yield f"power limit of {{}}: {power['limit']} W, {power['default']} W by default"
    if whole(gpu.get("celsius")) >= _HOT:
        yield f"{{}} at {gpu['celsius']} degrees Celsius"
    if busy := whole(gpu.get("busy")):
        yield f"{busy} % busy: {{}}"
    if "index" in gpu and (bar := whole(gpu.get("bar1_total"))):
        small = " (as without Resizable BAR)" if bar == _SMALL_BAR else ""
        yield f"BAR 1 of {{}}: {bar >> 20} MiB{small}"
    yield from _rows(gpu.get("remapped_rows"))
    yield from _waiting(gpu)


def _rows(raw: Any) -> Iterator[str]:
    if isinstance(raw, list) and len(raw) == len(_ROWS) and any(raw):
        words = [kind.format(count) for kind, count in zip(_ROWS, raw, strict=True) if count]
        yield f"memory rows of {{}}: {', '.join(words)}"


_ROWS = (
    "{} remapped for correctable errors",
    "{} remapped for uncorrectable errors",
    "a repair waits for a reset",
    "a repair failed",
)


def _waiting(gpu: _Gpu) -> Iterator[str]:
    if str(gpu.get("license") or "").startswith("Unlicensed"):
        yield f"the license of {{}} for vGPU: {gpu['license']}; without one it is slowed down"
    if gpu.get("reset_required") == 1:
        yield "the driver asks for a reset of {}"
    if gpu.get("pages_pending") is True:
        yield "memory pages of {} are retired at the next reset"
    fabric = part(gpu, "fabric")
    state, status = str(fabric.get("state") or ""), str(fabric.get("status") or "")
    if state not in ("", "Completed", "N/A", "Not Supported"):
        yield f"NVLink fabric of {{}}: {state}; until nvidia-fabricmanager has finished, CUDA does not start there"
    elif status not in ("", "Success", "N/A"):
        yield f"NVLink fabric of {{}}: {state or 'state unknown'}, {status}"


def _clocks(gpu: _Gpu) -> Iterator[str]:
    if isinstance(reasons := gpu.get("clocks_event_reasons"), int):
        words = [word for bit, word in _REASONS.items() if reasons & bit]
        idle = " (idle)" if reasons & 1 else ""
        yield f"clocks of {{}} are held down by {' and '.join(words)}" if words else f"nothing slows {{}}{idle}"


def _sizes(piece: _Gpu) -> Iterator[str]:
    """Of a GPU that is in no list: its link and memory."""
    link, memory = part(piece, "link"), part(piece, "memory")
    if link.get("width") and link.get("max_width"):
        yield f"PCIe x{link['width']} of x{link['max_width']}"
    if total := whole(memory.get("total")):
        yield f"{total >> 20} MiB"
    if bar := whole(piece.get("bar1_total")):
        yield f"BAR 1 {bar >> 20} MiB"
    if error := piece.get("error"):
        yield str(error)


def _nvlinks(states: Mapping[str, Any]) -> Iterator[str]:
    """'NVLinks of GPU3: 3, 5 inactive; 4 at 25.781 GB/s'."""
    kinds = collected((_link_words(part(states, index)), f"GPU{index}") for index in states)
    for words, names in kinds.items():
        yield f"NVLinks of {spans(names)}: {words}"


def _nvlink_ends(ends: Mapping[str, Any]) -> Iterator[str]:
    """'NVLinks of GPU0: 2 to 0000:41:00.0', as `nvidia-smi nvlink -R` names them."""
    for index in ends:
        by_end = collected((normal_address(str(end)), link) for link, end in part(ends, index).items())
        yield f"NVLinks of GPU{index}: " + "; ".join(f"{len(links)} to {end}" for end, links in by_end.items())


def _link_words(links: Mapping[str, Any]) -> str:
    by_state = collected((str(state), link) for link, state in links.items())
    inactive = by_state.pop("inactive", ())
    words = [f"{spans(inactive)} inactive"] if inactive else []
    return "; ".join([*words, *(f"{len(own)} at {state}" for state, own in by_state.items())])
