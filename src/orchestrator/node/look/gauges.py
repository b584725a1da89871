"""The GPUs' sensors and the RDMA ports' counters, for callers that ask every few seconds (verb `figures`).

NVML is asked in a child process, and files are read in another, since a wedged driver blocks its callers. Whoever
stays (role `stay`) keeps the first one: starting NVML costs more than all questions to it.
"""

from __future__ import annotations

import select
import time
from typing import Any

from orchestrator.node.line_child import LineChild
from orchestrator.node.look.reading import SnapshotReader, read_hardware
from orchestrator.protocol.gauges import GaugesAnswer, GpuGauges, PortGauges

_RDMA = "/sys/class/infiniband"
_KINDS = ("counters", "hw_counters")


_nvml = LineChild(("gpus",))
_hung: dict[str, str] = {}
"""Files that hung in this process: not touched again, since each try leaves a child behind."""


def read(fs_root: str, nvml_deadline_s: float) -> GaugesAnswer:
    """One reading; the GPUs are asked while the counters are read."""
    _nvml.read()  # a late answer is to another question
    if _nvml.asked_at is None:
        _nvml.ask(time.monotonic())
    files = read_hardware(fs_root, {"RDMA counters": _read_ports}, hung=_hung)
    now = time.time()
    answer = _answer(nvml_deadline_s)
    return GaugesAnswer(
        now=now,
        gpus=tuple(GpuGauges(**gpu) for gpu in answer.get("gpus", ())),
        ports=ports(files["files"]),
        error=str(answer.get("error") or ""),
        unread=files["errors"],
    )


def _answer(deadline_s: float) -> dict[str, Any]:
    """What NVML tells; {"error": ...} if it told nothing in time (seconds from now)."""
    end = time.monotonic() + deadline_s
    while (asked := _nvml.asked_at) is not None:
        if not select.select([_nvml], [], [], max(0.0, end - time.monotonic()))[0]:
            return {"error": f"NVML did not respond within {time.monotonic() - asked:.0f} s"}
        if reading := _nvml.read():
            return reading[-1]
    return {"error": "the process that queries NVML exited without an answer"}


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
        device, separator, rest = path.rpartition("/infiniband/")[2].partition("/ports/")
        port, *names = rest.split("/")
        if not separator or not port.isdigit() or not names:
            continue
        key = device, int(port)
        words.setdefault(key, {})
        if len(names) == 1:
            words[key][names[0]] = text.strip()
        elif names[0] in _KINDS and text.strip().isdigit():
            counters.setdefault(key, {})[names[1]] = int(text)
    return tuple(
        PortGauges(
            device=key[0],
            port=key[1],
            state=word.get("state", ""),
            rate=word.get("rate", ""),
            counters=counters.get(key, {}),
        )
        for key, word in sorted(words.items())
    )
