"""What NVML reports about the GPUs, queried in a child process with a deadline: a wedged driver blocks its callers.

Once for a look, in a fork of whoever looks (`NvmlChild`); again and again for an agent and for figures, in a process of
its own (role `gpus`). A function that is missing or fails on one device is recorded beside what the others gave.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from orchestrator.node import supervision
from orchestrator.node.line_child import serve
from orchestrator.node.look.reading import POLL_S, StallTimer, forked

_P2P_READ, _P2P_WRITE = 0, 1  # nvml.h nvmlGpuP2PCapsIndex_t; pynvml's own names hold tuples by a stray comma

_NVLINK_P2P = 0  # nvml.h NVML_NVLINK_CAP_P2P_SUPPORTED
END_S = 0.2
"""For a process that has answered."""
SM_CLOCK = 1
"""NVML_CLOCK_SM."""
_MOST_NVLINKS = 18
"""Of one GPU since Hopper (NCCL src/graph/xml.cc, ncclTopoGetXmlFromGpu)."""


class NvmlChild:
    """A query in a process that is forked from this one: start it first, do other work, then take the answer."""

    def __init__(self, query: Callable[[], object] | None = None) -> None:
        self._child, self._descriptor = forked(lambda file: file.write(json.dumps((query or ask)()).encode("ascii")))

    def answer(self, deadline_s: float) -> dict[str, Any]:
        """The child's answer; {'error': ...} if there was none in time (seconds from now) or nonsense, with 'unread'
        where nothing follows from that: for most of that time the child had no processor."""
        patience = StallTimer(self._child)
        text = self._read(deadline_s, patience)
        hangs = text is None and patience.spent_s(None) >= deadline_s / 2
        status = self._end()
        if text is None:
            late = f"NVML did not respond within {deadline_s:g} s"
            if hangs:
                return {"error": f"{late}; the driver may hang"}
            return {"error": f"{late}: the machine is too busy", "unread": "ETIMEDOUT"}
        try:
            document = json.loads(text)
        except ValueError:
            return {"error": f"the process that queries NVML ended with status {status} and no answer"}
        if not isinstance(document, dict):
            return {"error": "the process that queries NVML did not return an object"}
        return document

    def _read(self, deadline_s: float, patience: StallTimer) -> bytes | None:
        end = time.monotonic() + deadline_s
        text = bytearray()
        while True:
            left = end - time.monotonic()
            if left <= 0:
                return None
            if not select.select([self._descriptor], [], [], min(left, POLL_S))[0]:
                patience.spent_s(None)
                continue
            data = os.read(self._descriptor, 1 << 16)
            if not data:
                return bytes(text)
            text += data

    def _end(self) -> int | None:
        """Its exit code. A child that sleeps in the driver can't be ended; it is left, with no descriptor of ours."""
        os.close(self._descriptor)
        status = supervision.exit_code(self._child, END_S)
        return supervision.kill_child(self._child) if status is None else status


def ask() -> dict[str, Any]:
    """Everything, or {'error': why NVML does not answer}."""
    nvml, error = started()
    return everything(nvml) if nvml is not None else {"error": error}


def started() -> tuple[ModuleType | None, str]:
    """NVML, ready to be asked; or why it is not."""
    try:
        import pynvml
    except ImportError as error:
        return None, f"pynvml is missing: {error}"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, _words(error)
    return pynvml, ""


def everything(nvml: ModuleType) -> dict[str, Any]:
    """The answer in the shape of a snapshot's `nvml`, from an NVML that is started."""
    errors: dict[str, str] = {}
    asked = Asker(nvml, errors)
    handles = [
        asked.named(f"nvmlDeviceGetHandleByIndex({index})", "nvmlDeviceGetHandleByIndex", index)
        for index in range(asked("nvmlDeviceGetCount") or 0)
    ]
    devices = [_device(nvml, index, handle, errors) for index, handle in enumerate(handles)]
    _pairs(nvml, handles, devices)
    return {
        "driver": asked("nvmlSystemGetDriverVersion"),
        "nvml": asked("nvmlSystemGetNVMLVersion"),
        "cuda": asked("nvmlSystemGetCudaDriverVersion"),
        "devices": devices,
        "errors": errors,
    }


class Asker:
    """Calls NVML functions by name; a failure is recorded under the function's name and gives None."""

    def __init__(self, nvml: ModuleType, errors: dict[str, str], *first: Any) -> None:
        self._nvml = nvml
        self._errors = errors
        self._first = first

    def __call__(self, name: str, *arguments: Any) -> Any:
        return self.named(name, name, *arguments)

    def named(self, label: str, name: str, *arguments: Any) -> Any:
        """As a call, recorded under a label of its own."""
        function: Callable[..., Any] | None = getattr(self._nvml, name, None)
        if function is None:
            self._errors[label] = "not in this pynvml"
            return None
        try:
            value = function(*self._first, *arguments)
        except self._nvml.NVMLError as error:
            self._errors[label] = _words(error)
            return None
        return text_of(value)


def text_of(value: Any) -> Any:
    """Text in place of bytes; anything else as it is."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _link(ask: Asker) -> dict[str, Any]:
    return {
        "gen": ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "max_gen": ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        "width": ask("nvmlDeviceGetCurrPcieLinkWidth"),
        "max_width": ask("nvmlDeviceGetMaxPcieLinkWidth"),
    }


def _device(nvml: ModuleType, index: int, handle: Any, above: dict[str, str]) -> dict[str, Any]:
    errors: dict[str, str] = {}
    if handle is None:
        why = above.pop(f"nvmlDeviceGetHandleByIndex({index})", "")
        return {"index": index, "errors": {"nvmlDeviceGetHandleByIndex": why}}
    ask = Asker(nvml, errors, handle)
    pci = ask("nvmlDeviceGetPciInfo")
    bar1 = ask("nvmlDeviceGetBAR1MemoryInfo")
    return {
        "index": index,
        "name": ask("nvmlDeviceGetName"),
        "uuid": ask("nvmlDeviceGetUUID"),
        "serial": ask("nvmlDeviceGetSerial"),
        "pci_bus_id": text_of(getattr(pci, "busId", None)),
        "memory": memory_of(nvml, ask),
        "processes": _processes(ask),
        "link": _link(ask),
        "replays": ask("nvmlDeviceGetPcieReplayCounter"),
        "numa_node": ask("nvmlDeviceGetNumaNodeId"),
        "bar1_total": getattr(bar1, "bar1Total", None),
        "compute_capability": ask("nvmlDeviceGetCudaComputeCapability"),
        "nvlinks": _nvlinks(ask, errors),
        "persistence": ask("nvmlDeviceGetPersistenceMode"),
        "compute_mode": ask("nvmlDeviceGetComputeMode"),
        "ecc": ecc_of(nvml, ask),
        "remapped_rows": ask("nvmlDeviceGetRemappedRows"),
        "clocks_event_reasons": ask("nvmlDeviceGetCurrentClocksEventReasons"),
        "performance_state": ask("nvmlDeviceGetPerformanceState"),
        "sm_clock_mhz": ask("nvmlDeviceGetClockInfo", SM_CLOCK),
        "sm_clock_max_mhz": ask("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
        "temperature_c": ask("nvmlDeviceGetTemperature", 0),
        "power_mw": ask("nvmlDeviceGetPowerUsage"),
        "vbios": ask("nvmlDeviceGetVbiosVersion"),
        "p2p": {},
        "topology": {},
        "errors": errors,
    }


def memory_of(nvml: ModuleType, ask: Asker) -> dict[str, int]:
    """Bytes. The first form counts what the driver reserves as used; the second names it apart."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    second = ask.named("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo", version) if version else None
    names = ("total", "reserved", "free", "used") if second is not None else ("total", "free", "used")
    info = second if second is not None else ask("nvmlDeviceGetMemoryInfo")
    return {name: int(getattr(info, name)) for name in names} if info is not None else {}


def _nvlinks(ask: Asker, errors: dict[str, str]) -> list[dict[str, Any]]:
    """The NVLinks that NVML knows: whether each is up and good for peer-to-peer, and the PCI address at its other end.

    A GPU without NVLink answers 'Not Supported' to the first one; numbers beyond the last one leave no error.
    """
    links: list[dict[str, Any]] = []
    for link in range(_MOST_NVLINKS):
        active = ask("nvmlDeviceGetNvLinkState", link)
        if active is None and not links:
            break
        if active is None:
            errors.pop("nvmlDeviceGetNvLinkState", None)
            continue
        usable = ask("nvmlDeviceGetNvLinkCapability", link, _NVLINK_P2P) if active else None
        remote = ask("nvmlDeviceGetNvLinkRemotePciInfo", link) if active else None
        bus = getattr(remote, "busIdLegacy", None) or getattr(remote, "busId", None)
        links.append({"link": link, "active": active, "p2p": usable, "remote": text_of(bus)})
    return links


def _processes(ask: Asker) -> list[dict[str, int | None]]:
    running = ask("nvmlDeviceGetComputeRunningProcesses") or ()
    return [{"pid": process.pid, "used_bytes": process.usedGpuMemory} for process in running]


def ecc_of(nvml: ModuleType, ask: Asker) -> dict[str, Any]:
    """Errors since the driver was loaded."""
    mode = ask("nvmlDeviceGetEccMode")
    volatile = getattr(nvml, "NVML_VOLATILE_ECC", 0)
    return {
        "enabled": mode[0] if mode else None,
        "corrected": ask.named("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetTotalEccErrors", 0, volatile),
        "uncorrected": ask.named("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetTotalEccErrors", 1, volatile),
    }


def _pairs(nvml: ModuleType, handles: Sequence[Any], devices: Sequence[dict[str, Any]]) -> None:
    """P2P status for reads and writes, and the common ancestor, of every pair of devices that answer."""
    for index, handle in enumerate(handles):
        for other in range(index + 1, len(handles)):
            if handle is None or handles[other] is None:
                continue
            ask = Asker(nvml, devices[index]["errors"], handle, handles[other])
            devices[index]["topology"][str(other)] = ask("nvmlDeviceGetTopologyCommonAncestor")
            ways = {"read": _P2P_READ, "write": _P2P_WRITE}
            devices[index]["p2p"][str(other)] = {
                way: ask("nvmlDeviceGetP2PStatus", which) for way, which in ways.items()
            }


def run(arguments: Sequence[str]) -> int:
    """Role `gpus`: tells the sensors of these GPUs, by default of all. Where NVML can't be started, each question
    tries again."""
    wanted = [int(word) for word in arguments]

    def reply() -> dict[str, Any]:
        nvml, error = started()  # NVML counts these calls: only the first is expensive
        return sensors(nvml, wanted) if nvml is not None else {"error": error}

    return serve(reply)


def sensors(nvml: ModuleType, wanted: Sequence[int] = ()) -> dict[str, Any]:
    """From an NVML that is started. gpus: fields of GpuGauges, one a GPU that is wanted, of all by default; processes:
    (process id, bytes) on each of them, None where NVML does not tell; indices: of all GPUs that answer, by UUID."""
    ask = Asker(nvml, {})
    there = range(ask("nvmlDeviceGetCount") or 0)
    handles = {index: ask("nvmlDeviceGetHandleByIndex", index) for index in there}
    uuids = {
        Asker(nvml, {}, handle)("nvmlDeviceGetUUID"): index for index, handle in handles.items() if handle is not None
    }
    readings = [_sensors(nvml, index) for index in wanted or there]
    return {
        "gpus": [gpu for gpu, _ in readings],
        "processes": [processes for _, processes in readings],
        "indices": {uuid: index for uuid, index in uuids.items() if uuid},
    }


def _sensors(nvml: ModuleType, index: int) -> tuple[dict[str, Any], list[list[int]] | None]:
    errors: dict[str, str] = {}
    handle = Asker(nvml, errors)("nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return {"index": index, "error": errors["nvmlDeviceGetHandleByIndex"]}, None
    ask = Asker(nvml, errors, handle)
    memory, ecc, running = memory_of(nvml, ask), ecc_of(nvml, ask), ask("nvmlDeviceGetComputeRunningProcesses")
    gpu = {
        "index": index,
        "uuid": ask("nvmlDeviceGetUUID"),
        "name": ask("nvmlDeviceGetName"),
        "pci_bus_id": text_of(getattr(ask("nvmlDeviceGetPciInfo"), "busId", None)),
        "temperature_c": ask("nvmlDeviceGetTemperature", 0),
        "power_mw": ask("nvmlDeviceGetPowerUsage"),
        "power_limit_mw": ask("nvmlDeviceGetEnforcedPowerLimit"),
        "utilization_percent": getattr(ask("nvmlDeviceGetUtilizationRates"), "gpu", None),
        "memory_used_bytes": memory.get("used"),
        "memory_total_bytes": memory.get("total"),
        "memory_free_bytes": memory.get("free"),
        "sm_clock_mhz": ask("nvmlDeviceGetClockInfo", SM_CLOCK),
        "sm_clock_max_mhz": ask("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
        "clocks_event_reasons": ask("nvmlDeviceGetCurrentClocksEventReasons"),
        "ecc_corrected": ecc["corrected"],
        "ecc_uncorrected": ecc["uncorrected"],
    }
    return gpu, running and [[int(process.pid), int(process.usedGpuMemory or 0)] for process in running]


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
