"""Beside the engine: memory and clocks of the GPUs, where its processes may run, and what `status` says meanwhile."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.stage import Gpus, Stage

_EACH_S = 0.2
_CLOCKS_EVERY = 5
"""Looks at memory for one at the clocks."""
_MIB_A_GIB = 1024
REASONS = {
    0x1: "idle",
    0x2: "clocks set by an application",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Why a GPU's clocks are lower than they can be (nvml.h, nvmlClocksEventReason*)."""
HARMLESS = 0x1 | 0x2


class Cards(Gpus):
    """With what is free, and the clocks."""

    def free_mib(self) -> list[int]:
        """As NVML has it, of each GPU."""
        return [self._nvml.nvmlDeviceGetMemoryInfo(handle).free >> 20 for handle in self._handles]

    def clocks(self) -> list[tuple[int, int]]:
        """(MHz of the multiprocessors, why they are not higher) of each GPU."""
        sm = getattr(self._nvml, "NVML_CLOCK_SM", 1)
        return [
            (
                int(self._nvml.nvmlDeviceGetClockInfo(handle, sm)),
                int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            )
            for handle in self._handles
        ]

    def buses(self) -> list[str]:
        """PCI addresses as /sys has them."""
        found = []
        for handle in self._handles:
            bus = self._nvml.nvmlDeviceGetPciInfo(handle).busId
            text = bus.decode() if isinstance(bus, bytes) else str(bus)
            found.append(text.lower()[-12:])
        return found


class Watch(threading.Thread):
    """From its start to `ended`: the least free memory of a GPU and its clocks, by what was going on.

    which: numbers of the GPUs; None for all
    """

    def __init__(self, cards: Cards, which: Sequence[int] | None = None) -> None:
        super().__init__(daemon=True)
        self._cards = cards
        self._which = range(len(cards)) if which is None else which
        self._over = threading.Event()
        self._now = "start"
        self._least: dict[str, list[int]] = {}
        self._mhz: dict[str, list[int]] = {}
        self._reasons: dict[str, int] = {}
        if len(cards):
            self.start()

    def mark(self, what: str) -> None:
        """What comes now."""
        self._now = what

    def run(self) -> None:
        look = 0
        while not self._over.wait(_EACH_S):
            now, free = self._now, self._cards.free_mib()
            self._least.setdefault(now, []).append(min(free[number] for number in self._which))
            if look % _CLOCKS_EVERY == 0:
                clocks = self._cards.clocks()
                for mhz, reasons in (clocks[number] for number in self._which):
                    self._mhz.setdefault(now, []).append(mhz)
                    self._reasons[now] = self._reasons.get(now, 0) | reasons & ~HARMLESS
            look += 1

    def ended(self) -> dict[str, Any]:
        """least_free_gib of all, and by what was going on; the lowest clock there, and why it was not higher."""
        self._over.set()
        if not self._least:
            return {}
        self.join(5)
        least = {name: round(min(seen) / _MIB_A_GIB, 3) for name, seen in self._least.items()}
        return {
            "least_free_gib": min(least.values()),
            "least_free_gib_while": least,
            "lowest_sm_mhz_while": {name: min(seen) for name, seen in self._mhz.items()},
            "slowed_by": {name: reasons_in(bits) for name, bits in self._reasons.items() if bits},
        }


def reasons_in(bits: int) -> list[str]:
    """In words."""
    return [words for bit, words in REASONS.items() if bits & bit]


def affinity(stage: Stage, gang: Mapping[str, Any]) -> dict[str, Any]:
    """By rank: the processors that it may use, and those beside its GPU; by /proc and /sys of this machine.

    gang: of `status --json`
    """
    buses = stage.gpus.buses() if isinstance(stage.gpus, Cards) and len(stage.gpus) else []
    which, found = stage.gpus_of(gang["name"]), {}
    for node in gang["nodes"]:
        for rank in node["ranks"]:
            process, place = stage.process_of(node["name"], rank["pid"]), rank["tp_rank"]
            if process is None or place >= len(which):
                continue
            found[f"TP{place}"] = {
                **_of_process(process.pid),
                "beside_its_gpu": _beside(buses[which[place]]) if buses else "",
            }
    return found


def _of_process(pid: int) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        allowed = re.search(r"Cpus_allowed_list:\s*(\S+)", Path(f"/proc/{pid}/status").read_text())
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        return {"may_use": allowed[1] if allowed else "", "threads": threads}
    return {"may_use": "", "threads": 0}


def _beside(bus: str) -> str:
    folder = Path(f"/sys/bus/pci/devices/{bus}")
    node, processors = (folder / name for name in ("numa_node", "local_cpulist"))
    return f"NUMA {node.read_text().strip()}: {processors.read_text().strip()}" if node.exists() else ""


class Ballast:
    """Memory of GPUs that somebody else holds. free_gib: what is left on each; which: their numbers, none for all"""

    def __init__(self, python: str, free_gib: float, which: Sequence[int] = ()) -> None:
        words = [python, "-m", "tests.slice.ballast", str(free_gib), *map(str, which)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.free_gib = free_gib
        self.taken: list[dict[str, int]] = []

    def take(self) -> None:
        """Now; returns when it is held."""
        if self.taken or self._process.stdin is None or self._process.stdout is None:
            return
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self._process.stdout.readline()
        self.taken = json.loads(self._process.stdout.readline())

    @property
    def bytes(self) -> int:
        """Taken from the GPU that has the least left, its driver's own part included."""
        return max((card["total"] - card["left"] for card in self.taken), default=0)

    def end(self) -> None:
        """Give it back; again and again."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
