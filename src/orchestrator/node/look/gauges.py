"""The GPUs' sensors and the RDMA ports' counters, for callers that ask every few seconds (verb `figures`).

NVML is asked in a child process, and files are read in another, since a wedged driver blocks its callers. Whoever
stays (role `stay`) keeps the first one: starting NVML costs more than all questions to it.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from orchestrator.node.line_child import LineChild, serve
from orchestrator.node.look.hardware import HardwarePart
from orchestrator.node.look.nvml import SM_CLOCK, Asker, ecc_of, memory_of, started, text_of
from orchestrator.node.look.patience import read_hardware
from orchestrator.node.look.reading import SnapshotReader
from orchestrator.protocol.gauges import GaugesAnswer, GpuGauges, PortGauges

_RDMA = "/sys/class/infiniband"
_KINDS = ("counters", "hw_counters")


_nvml = LineChild(("gpu-gauges",))
_hung: dict[str, str] = {}
"""Files that hung in this process: not touched again, since each try leaves a child behind."""


def read(fs_root: str, nvml_deadline_s: float) -> GaugesAnswer:
    """One reading; the GPUs are asked while the counters are read."""
    if _nvml.runs:
        _nvml.read()  # a late answer is to another question
    if _nvml.asked_at is None and _nvml.start():
        _nvml.ask(time.monotonic())
    files = read_hardware(fs_root, parts=(HardwarePart("RDMA counters", _read_ports),), hung=_hung)
    now = time.time()
    told = _answer(nvml_deadline_s)
    return GaugesAnswer(
        now=now,
        gpus=tuple(GpuGauges(**one) for one in told.get("gpus", ())),
        ports=ports(files["files"]),
        error=str(told.get("error") or ""),
        unread=files["errors"],
    )


def _answer(deadline_s: float) -> dict[str, Any]:
    """What NVML tells; {"error": ...} if it told nothing in time (seconds from now)."""
    end = time.monotonic() + deadline_s
    while (asked := _nvml.asked_at) is not None:
        if not select.select([_nvml], [], [], max(0.0, end - time.monotonic()))[0]:
            return {"error": f"NVML did not respond within {time.monotonic() - asked:.0f} s"}
        if told := _nvml.read():
            return told[-1]
    return {"error": "the process that queries NVML exited without an answer"}


def run(_: Sequence[str]) -> int:
    """The child that asks NVML; where that can't be started, each question tries again."""
    nvml: ModuleType | None = None

    def reply() -> dict[str, Any]:
        nonlocal nvml
        error = ""
        if nvml is None:
            nvml, error = started()
        return sensors(nvml) if nvml is not None else {"error": error}

    return serve(reply)


def sensors(nvml: ModuleType) -> dict[str, Any]:
    """{"gpus": fields of GpuGauges, one a GPU}, from an NVML that is started."""
    count = Asker(nvml, {})("nvmlDeviceGetCount") or 0
    return {"gpus": [_gpu(nvml, index) for index in range(count)]}


def _gpu(nvml: ModuleType, index: int) -> dict[str, Any]:
    errors: dict[str, str] = {}
    handle = Asker(nvml, errors)("nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return {"index": index, "error": errors.get("nvmlDeviceGetHandleByIndex", "")}
    ask_it = Asker(nvml, errors, handle)
    memory, ecc = memory_of(nvml, ask_it), ecc_of(nvml, ask_it)
    return {
        "index": index,
        "uuid": ask_it("nvmlDeviceGetUUID"),
        "name": ask_it("nvmlDeviceGetName"),
        "pci_bus_id": text_of(getattr(ask_it("nvmlDeviceGetPciInfo"), "busId", None)),
        "temperature_c": ask_it("nvmlDeviceGetTemperature", 0),
        "power_mw": ask_it("nvmlDeviceGetPowerUsage"),
        "power_limit_mw": ask_it("nvmlDeviceGetEnforcedPowerLimit"),
        "utilization_percent": getattr(ask_it("nvmlDeviceGetUtilizationRates"), "gpu", None),
        "memory_used_bytes": memory.get("used"),
        "memory_total_bytes": memory.get("total"),
        "sm_clock_mhz": ask_it("nvmlDeviceGetClockInfo", SM_CLOCK),
        "sm_clock_max_mhz": ask_it("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
        "clocks_event_reasons": ask_it("nvmlDeviceGetCurrentClocksEventReasons"),
        "ecc_corrected": ecc["corrected"],
        "ecc_uncorrected": ecc["uncorrected"],
    }


def _read_ports(reader: SnapshotReader) -> None:
    for device in reader.names(_RDMA):
        for port in reader.names(f"{_RDMA}/{device}/ports"):
            folder = f"{_RDMA}/{device}/ports/{port}"
            reader.texts(folder, ("state", "rate"))
            for kind in _KINDS:
                reader.folder(f"{folder}/{kind}")


def ports(files: dict[str, str]) -> tuple[PortGauges, ...]:
    """Every port in what was read, by real path: .../infiniband/DEVICE/ports/PORT/counters/NAME."""
    words: dict[tuple[str, int], dict[str, str]] = {}
    counters: dict[tuple[str, int], dict[str, int]] = {}
    for path, text in files.items():
        device, found, rest = path.rpartition("/infiniband/")[2].partition("/ports/")
        port, *names = rest.split("/")
        if not found or not port.isdigit() or not names:
            continue
        key = device, int(port)
        words.setdefault(key, {})
        if len(names) == 1:
            words[key][names[0]] = text.strip()
        elif names[0] in _KINDS and text.strip().isdigit():
            counters.setdefault(key, {})[names[1]] = int(text)
    return tuple(
        PortGauges(
            device=key[0], port=key[1], state=said.get("state", ""), rate=said.get("rate", ""),
            counters=counters.get(key, {}),
        )
        for key, said in sorted(words.items())
    )  # fmt: skip
