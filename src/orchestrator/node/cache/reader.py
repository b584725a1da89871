"""Role `read-ahead`: reads files once, so that they are in the page cache when the engine needs them.

Arguments: number of the node's ranks, and the order as JSON (protocol/staging.py). Lines on stdout, each a JSON object:
{"of": bytes that will be read, "skipped": bytes for which there is no room}, then {"done":
bytes, "disk": bytes that came from a disk} at most twice a second, at the end {"ended": ""} or why it stopped.
It is a process of its own, since a disk that hangs blocks whoever reads, and SIGKILL is all that it takes to stop it.
It has the lowest priority, and ends with the agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from orchestrator.node import below, files, kernel
from orchestrator.node.agent.weights import INDEX
from orchestrator.node.telling import tell
from orchestrator.protocol import page_cache
from orchestrator.protocol.message import Unreadable
from orchestrator.protocol.staging import CacheOrder

CHUNK = 4 << 20
AT_ONCE = 4
"""Files that are read side by side: one reader alone leaves an NVMe drive idle between its requests."""
SAY_EVERY_S = 0.5
LOOK_EVERY_BYTES = 256 << 20


@dataclass(frozen=True)
class HostMemory:
    """Bytes, as the kernel says."""

    total: int
    available: int

    @classmethod
    def of_node(cls) -> HostMemory:
        """By proc_meminfo(5)."""
        with open("/proc/meminfo", encoding="ascii") as file:
            said = dict(line.split(":", 1) for line in file)
        return cls(*(int(said[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable")))


@dataclass
class ReadCounter:
    """Counts what was read, for all its threads."""

    ranks: int
    done: int = 0
    why: str = ""
    """Why it stopped early."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def chosen(self, paths: Iterable[str]) -> tuple[list[str], int, int]:
        """The files that there is room for, from the first on; their bytes; and the bytes of the others."""
        memory = HostMemory.of_node()
        room = page_cache.room(memory.total, memory.available, self.ranks)
        chosen: list[str] = []
        taken = skipped = 0
        for path in paths:
            try:
                size = os.stat(path).st_size
            except OSError:
                continue  # what is missing is the checks' business
            if skipped or taken + size > room:
                skipped += size
                continue
            chosen.append(path)
            taken += size
        return chosen, taken, skipped

    def read(self, path: str) -> None:
        """One file, from its beginning."""
        buffer = bytearray(CHUNK)
        with contextlib.suppress(OSError), open(files.opened(path), "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while not self.why and (count := file.readinto(buffer)):
                with self._lock:
                    self.done += count
                    due = self.done // LOOK_EVERY_BYTES != (self.done - count) // LOOK_EVERY_BYTES
                if due:
                    self.mind_memory()

    def mind_memory(self) -> None:
        """Stop where others have taken what was free: what we read would push out what was read before."""
        memory = HostMemory.of_node()
        if not page_cache.room(memory.total, memory.available, self.ranks):
            self.why = "the memory is needed for other purposes"


def run(arguments: Sequence[str]) -> int:
    """Role `read-ahead`."""
    kernel.die_with_parent(signal.SIGKILL)
    kernel.name_process("l40s-read-ahead")
    with contextlib.suppress(OSError):
        os.nice(19)
    order = CacheOrder.read(json.loads(arguments[1]))
    if isinstance(order, Unreadable):
        tell({"ended": str(order)})
        return 1
    reading = ReadCounter(int(arguments[0]))
    chosen, taken, skipped = reading.chosen(of_checkpoint(order.folder, order.first, order.last, order.stages))
    tell({"of": taken, "skipped": skipped})
    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [pool.submit(reading.read, path) for path in chosen]
        while not all(job.done() for job in jobs):
            time.sleep(SAY_EVERY_S if taken > CHUNK else 0.01)
            tell({"done": reading.done, "disk": from_disk()})
    tell({"done": reading.done, "disk": from_disk()})
    tell({"ended": reading.why})
    return 0


def from_disk() -> int:
    """Bytes that this process made a disk read (read_bytes of proc_pid_io(5)); 0 where the kernel does not say."""
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            return int(dict(line.split(":", 1) for line in file)["read_bytes"])
    except (OSError, KeyError, ValueError):
        return 0


_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,6})\.")


def of_checkpoint(folder: str, first: int = 0, last: int = 0, stages: int = 1) -> list[str]:
    """Paths by name, of the index where there is one, else of all .safetensors files; none where nothing can be read.

    first, last: pipeline stages of the node's ranks. A file with a tensor of no layer (embedding, head, norms) is
    everybody's.
    """
    try:
        weight_map = files.json_of(f"{folder}/{INDEX}")["weight_map"]
        held = _layers(folder, first, last, stages)
        names = sorted({below.plain_path(name, hidden=True) for name in _wanted(weight_map, held)})
    except FileNotFoundError:
        names = sorted(name for name in _listed(folder) if name.endswith(".safetensors"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return [f"{folder}/{name}" for name in names]


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _wanted(weight_map: Mapping[str, str], held: range | None) -> list[str]:
    return [name for tensor, name in weight_map.items() if held is None or _is_in(tensor, held)]


def _is_in(tensor: str, held: range) -> bool:
    found = _LAYER.search(tensor)
    return found is None or int(found[1]) in held


def _layers(folder: str, first: int, last: int, stages: int) -> range | None:
    """The layers of some stages; None for all. The last stages have one more where they can't be equal (sglang 0.5.23,
    distributed/utils.py: get_pp_indices)."""
    if stages <= 1:
        return None
    config = files.json_of(f"{folder}/config.json")
    text = config.get("text_config")
    count = int((text if isinstance(text, dict) else config)["num_hidden_layers"])
    each, more = divmod(count, stages)

    def begin(stage: int) -> int:
        return stage * each + max(0, stage - (stages - more))

    return range(begin(first), begin(last + 1))
