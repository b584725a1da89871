"""Weight files read into the page cache before the engine needs them: the process that reads, and who starts it.

Role `read-ahead`, arguments: number of the node's ranks, and the order as JSON (protocol/staging.py). It tells how far
it is in keys of a PageCache (protocol/report.py), at most twice a second. It is a process of its own, since a disk that
hangs blocks whoever reads, and SIGKILL is all that it takes to stop it. It has the lowest priority, and ends with the
agent. Verb `weights-ahead` does the same beside a running engine, for as long as the controller listens.
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
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.node import files, supervision
from orchestrator.node.agent.weights import INDEX
from orchestrator.node.line_child import LineChild
from orchestrator.node.requests import TICK_S, reader_is_gone, request_of, tell
from orchestrator.protocol import staging
from orchestrator.protocol.message import Unreadable
from orchestrator.protocol.report import AgentState, PageCache
from orchestrator.protocol.staging import CacheOrder, WeightsAheadLine, WeightsAheadRequest

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
        room = staging.room(memory.total, memory.available, self.ranks)
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
        if not staging.room(memory.total, memory.available, self.ranks):
            self.why = "the memory is needed for other purposes"


def run(arguments: Sequence[str]) -> int:
    """Role `read-ahead`."""
    supervision.die_with_parent(signal.SIGKILL)
    supervision.name_process("l40s-read-ahead")
    with contextlib.suppress(OSError):
        os.nice(19)
    order = CacheOrder.read(json.loads(arguments[1]))
    if isinstance(order, Unreadable):
        tell({"state": "stopped", "why": str(order)})
        return 1
    reading = ReadCounter(int(arguments[0]))
    chosen, taken, skipped = reading.chosen(of_checkpoint(order.folder, order.first, order.last, order.stages))
    tell({"of": taken, "skipped": skipped})
    from concurrent.futures import ThreadPoolExecutor  # an agent never reads itself

    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [pool.submit(reading.read, path) for path in chosen]
        while not all(job.done() for job in jobs):
            time.sleep(SAY_EVERY_S if taken > CHUNK else 0.01)
            tell({"done": reading.done, "disk": from_disk()})
    tell({"done": reading.done, "disk": from_disk()})
    tell({"state": "stopped" if reading.why else "done", "why": reading.why})
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
        names = sorted({files.plain_path(name, hidden=True) for name in _wanted(weight_map, held)})
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


@dataclass
class ReadAhead:
    """Starts the reader, reads its messages without waiting, stops it at any time."""

    order: CacheOrder | None
    ranks: int
    cache: PageCache | None = None
    """What is known of it; None before the start."""
    _child: LineChild = field(init=False)

    def __post_init__(self) -> None:
        order = json.dumps(self.order.as_json()) if self.order is not None else ""
        self._child = LineChild(("read-ahead", str(self.ranks), order))

    @property
    def begins(self) -> AgentState:
        """When to start."""
        return AgentState.STARTING if self.order is not None and self.order.from_go else AgentState.ARMED

    @property
    def helpers(self) -> set[int]:
        """Process ids of the children that may still be there: none is one of the engine's."""
        return self._child.helpers

    def start(self) -> None:
        """Begin, where something was ordered. A node that can't is none the worse for it."""
        if self.order is not None and not self._child.runs:
            with contextlib.suppress(OSError):
                self._child.start()
                self.cache = PageCache(state="reading")

    def fileno(self) -> int:
        """Readable when it has sent something; -1 if there is no reader."""
        return self._child.fileno()

    def take(self) -> None:
        """Read the child's messages, without waiting."""
        if self.cache is None or not self._child.runs:
            return
        told = self._child.read()
        for changes in told or ():
            self.cache = replace(self.cache, **changes)
        if told is None or self.cache.state != "reading":
            self.stop("the reading process exited")

    def stop(self, why: str) -> None:
        """No further, whatever it has read; why: for the report, if it was not done."""
        self._child.close()
        if self.cache is not None and self.cache.state == "reading":
            self.cache = replace(self.cache, state="stopped", why=why)


def stream(request: dict[str, Any]) -> None:
    """Read, for as long as somebody wants it."""
    asked = request_of(WeightsAheadRequest, request)
    ahead = ReadAhead(asked.order, asked.ranks)
    ahead.start()
    try:
        while ahead.cache is not None:
            tell(WeightsAheadLine(cache=ahead.cache).as_json())
            if ahead.cache.state != "reading" or reader_is_gone(TICK_S):
                return
            ahead.take()
    finally:
        ahead.stop("nobody waits for it any more")
