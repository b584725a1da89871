"""Role `hang-look`: what a node's ranks stand at, gathered once while they do, and written beside the run.

A process of its own, so that a driver or file system that hangs can't hold the agent: it ends within DEADLINE_S with
what it has, and the agent ends it where it does not. Nothing here stops a process (py-spy --nonblocking), and no value
of a variable is asked for.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.node import files, processes, supervision
from orchestrator.node.agent.staged_run import Run, staged_in
from orchestrator.node.bounded_log import predecessor
from orchestrator.node.engine import pci_paths, ras, ras_words
from orchestrator.node.engine.hang_inquiry import MOVED, HangQuestion
from orchestrator.node.engine.tree import COMPILERS
from orchestrator.node.files import ENGINE_LOG, HANG_FILE
from orchestrator.node.look import gauges
from orchestrator.protocol.gauges import GaugesAnswer, PortGauges
from orchestrator.protocol.hang import GpuLook, HangFacts, HangLook, PortLook, RankLook, RasLook, RasRank
from orchestrator.protocol.message import parsed
from orchestrator.protocol.planned import takes

DEADLINE_S = 9.0
APART_S = 2.0
"""Between the two instants: a healthy gang makes hundreds of steps in it."""
STACK_S = 2.5
NVML_S = 1.5
MOST_BYTES = 4 << 20
"""Of py-spy's answer for one process, with all of its threads."""
MOST_FRAMES, LONGEST_FRAME = 40, 240
MOST_LOG = 16 << 20
MOVING_WORDS = 1 << 18
"""In four bytes a second: gang/hangs.py, MOVING_BYTES_S."""
_CALLS = {
    0: "read", 1: "write", 2: "open", 7: "poll", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev",
    35: "nanosleep", 45: "recvfrom", 47: "recvmsg", 56: "clone", 58: "vfork", 61: "wait4", 73: "flock", 74: "fsync",
    75: "fdatasync", 202: "futex", 217: "getdents64", 230: "clock_nanosleep", 232: "epoll_wait", 257: "openat",
    262: "newfstatat", 271: "ppoll", 281: "epoll_pwait", 295: "preadv", 435: "clone3",
}  # fmt: skip
"""Linux arch/x86/entry/syscalls/syscall_64.tbl."""
_ON_A_FILE = ("read", "write", "pread64", "pwrite64", "readv", "writev", "preadv", "fsync", "fdatasync", "flock")
"""Their first argument is a descriptor."""
_NCCL_VERSION = re.compile(rb"NCCL version (\d{1,3}\.\d{1,3}\.\d{1,3})")
_REGISTERS = re.compile(rb"NET register userbuff|NET reuse buffer")
_NCCL_FOLDER = re.compile(r"nvidia_nccl_cu\d{1,3}-(\d[\d.]{0,20})\.dist-info")


def run(arguments: Sequence[str]) -> int:
    """Arguments: the run's folder, and what is wanted. Writes HANG_FILE there."""
    folder, words = arguments
    look = Gathering(staged_in(folder), HangQuestion.of(words)).look()
    files.write_json(f"{folder}/{HANG_FILE}", look.as_json())
    return MOVED if look.compilers or any(map(_carries, look.ports)) or any(map(_came_on, look.ranks)) else 0


def _carries(port: PortLook) -> bool:
    """In one direction at least: what a gang that sends does, and one that only receives."""
    words = max(port.rose.get(name, 0) for name in ("port_xmit_data", "port_rcv_data"))
    return words > MOVING_WORDS * max(port.apart_s, 0.1)


def _came_on(rank: RankLook) -> bool:
    """Between the two instants, to another line of its program."""
    return len(set(rank.stacks)) == 2


@dataclass
class Gathering:
    """Two instants, and what is asked meanwhile."""

    asked: Run
    wanted: HangQuestion
    unread: dict[str, str] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _ras: RasLook | None = None

    def left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._began + DEADLINE_S - time.monotonic())

    def look(self) -> HangLook:
        """All of it."""
        at = time.time()
        asking = threading.Thread(target=self._ask_ras, daemon=True)
        if self.asked.leads and self.asked.network.ras:
            with contextlib.suppress(RuntimeError):  # no thread to be had: the rest is looked at
                asking.start()
        first = self._instant()
        time.sleep(min(APART_S, self.left()))
        again = self._instant()
        ranks = tuple(_joined(rank, first, again) for rank in self.wanted.ranks)
        facts = self._facts(again)
        if asking.ident is not None:
            asking.join(self.left())
        if asking.is_alive():
            self.unread["NCCL RAS"] = "no answer in time"
        return HangLook(
            node=self.asked.node,
            at=at,
            took_s=round(time.monotonic() - self._began, 3),
            ranks=ranks,
            compilers=tuple(sorted({*first.compilers, *again.compilers})),
            ports=tuple(self._ports(first.gauges, again.gauges)),
            gpus=tuple(self._gpus(again.gauges)),
            ras=self._ras,
            facts=facts,
            unread=dict(self.unread),
        )

    def _instant(self) -> Instant:
        """Processes first: reading the rest takes a second."""
        pids = [pid for _, pid in self.wanted.ranks if pid]
        began = {pid: _process(pid) for pid in pids}
        stacks = self._stacks(pids)
        reading = None
        if self.asked.device == "cuda" and self.left() > NVML_S:
            reading = gauges.read("/", NVML_S)
            self._note_unread(reading)
        below = supervision.descendants([self.wanted.parent], supervision.everything())
        compilers = frozenset(process.name for process in below if not process.gone) & COMPILERS
        return Instant(began, stacks, compilers, reading)

    def _note_unread(self, reading: GaugesAnswer) -> None:
        if reading.error:
            self.unread["GPUs"] = reading.error[:200]
        if self.asked.network.rdma and not reading.ports:
            self.unread["RDMA ports"] = "none could be read"

    def _stacks(self, pids: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """Of each process that tells them; all are asked at once."""
        program = py_spy(self.asked)
        if not program:
            self.unread["Python stacks"] = "py-spy is not installed: run `l40s-deploy prepare`"
            return {}
        end = time.monotonic() + min(STACK_S, self.left())
        asked = {pid: _StackDump(program, pid) for pid in pids}
        dumped = {pid: dump.frames(max(0.05, end - time.monotonic())) for pid, dump in asked.items()}
        wrong = next((dump.error for dump in asked.values() if dump.error), "")
        if wrong:
            self.unread["Python stacks"] = wrong
        return {pid: frames for pid, frames in dumped.items() if frames}

    def _ask_ras(self) -> None:
        """Twice, in a thread: nothing waits for it longer than for the rest."""
        address = self.asked.network.ras
        try:
            first = ras_words.read(ras.status(address))
            time.sleep(ras.APART_S)
            again = ras_words.read(ras.status(address))
        except (OSError, ValueError, RecursionError) as error:
            self.unread["NCCL RAS"] = str(error)[:200]
            return
        nodes = self.asked.addresses
        behind = [rank for rank in again.behind if rank in first.behind]
        self._ras = RasLook(
            launched=(first.launched, again.launched),
            behind=tuple(
                RasRank(
                    node=nodes.get(member.host, member.host), pid=member.pid, operation=name, launched=count, most=most
                )
                for member, name, count, most in behind
            ),
        )

    def _ports(self, first: GaugesAnswer | None, again: GaugesAnswer | None) -> list[PortLook]:
        """Those of the plan."""
        if first is None or again is None or not self.asked.network.rdma:
            return []
        before = {(port.device, port.port): port for port in first.ports}
        apart_s = round(again.now - first.now, 3)
        return [
            _rose(before.get((port.device, port.port)), port, apart_s)
            for port in again.ports
            if takes(self.asked.network.hca, port.device, port.port)
        ]

    def _gpus(self, reading: GaugesAnswer | None) -> list[GpuLook]:
        return [
            GpuLook(
                index=gpu.index,
                power_w=_watts(gpu.power_mw),
                power_limit_w=_watts(gpu.power_limit_mw),
                clock_mhz=gpu.sm_clock_mhz,
                utilization=gpu.utilization_percent,
            )
            for gpu in (reading.gpus if reading is not None else ())
            if gpu.index in self.asked.gpus and not gpu.error
        ]

    def _addresses(self, seen: Instant) -> list[str]:
        """PCI addresses of the engine's GPUs, of those that NVML told."""
        gpus = seen.gauges.gpus if seen.gauges else ()
        return [gpu.pci_bus_id for gpu in gpus if gpu.index in self.asked.gpus and gpu.pci_bus_id]

    def _facts(self, seen: Instant) -> HangFacts:
        asked, env = self.asked, self.asked.env
        log = _log(asked.path(ENGINE_LOG)) if self.left() > 1 else b""
        version = _NCCL_VERSION.search(log)
        known = HangFacts(
            nnodes=asked.nnodes,
            pp=asked.layout.pipeline_parallel if asked.layout is not None else 1,
            rdma=asked.network.rdma,
            serving_s=max(0.0, time.time() - self.wanted.ready_at) if self.wanted.ready_at else 0.0,
            registers=True if _REGISTERS.search(log) else None,
        )
        if asked.device != "cuda":
            return known
        return replace(
            known,
            nccl=version[1].decode() if version else _loaded_nccl([pid for _, pid in self.wanted.ranks]),
            roce=self._roce(seen.gauges),
            p2p_off=env.get("NCCL_P2P_DISABLE") == "1" or env.get("NCCL_P2P_LEVEL") in ("LOC", "0"),
            redirected=pci_paths.diverted(self._addresses(seen)),
            failover=asked.network.notice_s > 0,
        )

    def _roce(self, reading: GaugesAnswer | None) -> bool | None:
        """Whether the plan's ports are Ethernet; None without RDMA, or where no port tells."""
        if reading is None or not self.asked.network.rdma:
            return None
        ports = [port for port in reading.ports if takes(self.asked.network.hca, port.device, port.port)]
        paths = [f"/sys/class/infiniband/{port.device}/ports/{port.port}/link_layer" for port in ports]
        layers = {(files.read_text(path) or "").strip() for path in paths} - {""}
        return layers == {"Ethernet"} if layers else None


@dataclass(frozen=True)
class Instant:
    """What one look has: by process id, then of the node."""

    processes: Mapping[int, tuple[str, str, float]]
    """State of the main thread, the call that it is blocked in, processor seconds."""
    stacks: Mapping[int, tuple[str, ...]]
    compilers: frozenset[str]
    gauges: GaugesAnswer | None


def _joined(rank: tuple[int, int], first: Instant, again: Instant) -> RankLook:
    number, pid = rank
    before, after = first.processes.get(pid, _NOTHING), again.processes.get(pid, _NOTHING)
    stacks = [look.stacks[pid] for look in (first, again) if pid in look.stacks]
    return RankLook(
        tp_rank=number,
        pid=pid,
        states=(before[0], after[0]) if before[0] and after[0] else (),
        calls=(before[1], after[1]) if before[1] is not None and after[1] is not None else (),
        cpu_s=round(max(0.0, after[2] - before[2]), 3),
        stacks=tuple(stacks),
    )


_NOTHING: tuple[str, Any, float] = ("", None, 0.0)


def _process(pid: int) -> tuple[str, Any, float]:
    """State of its main thread, the call that this is blocked in (None where that may not be read), processor
    seconds."""
    process = processes.read(pid)
    if process is None or process.gone:
        return _NOTHING
    return process.state, _call(pid), supervision.processor_s(pid)


def _call(pid: int) -> str | None:
    """'read /data/w0', 'futex'; '' while it runs, None where the kernel does not tell (proc(5), syscall)."""
    words = (files.read_text(f"/proc/{pid}/syscall") or "").split()
    if not words or os.uname().machine != "x86_64":
        return None
    if words[0] == "running":
        return ""
    name = _CALLS.get(int(words[0]), f"system call {words[0]}")
    if name not in _ON_A_FILE or len(words) < 2:
        return name
    try:
        target = os.readlink(f"/proc/{pid}/fd/{int(words[1], 16)}")
    except (OSError, ValueError):
        return name
    return f"{name} {target[:LONGEST_FRAME]}"


def py_spy(asked: Run) -> str:
    """The program beside the stack's Python, else the machine's own; '' for none."""
    beside = os.path.join(os.path.dirname(asked.venv_python), "py-spy")
    if asked.venv_python and os.access(beside, os.X_OK):
        return beside
    return shutil.which("py-spy") or ""


class _StackDump:
    """One process's stacks, as py-spy reads them."""

    def __init__(self, program: str, pid: int) -> None:
        self.pid, self.error = pid, ""
        self._out = os.memfd_create("py-spy", os.MFD_CLOEXEC)
        try:
            self._child: subprocess.Popen[bytes] | None = subprocess.Popen(
                [program, "dump", "--nonblocking", "--json", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._out,
            )
        except OSError as error:
            self._child, self.error = None, f"py-spy can't be started: {error.strerror}"

    def frames(self, within_s: float) -> tuple[str, ...]:
        """Its main thread's, the innermost first; () where there are none in time, and `error` says why."""
        if self._child is None:
            return ()
        try:
            status = self._child.wait(within_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(1.0)
            status, self.error = -1, f"py-spy did not answer within {STACK_S:g} s"
        text = os.pread(self._out, MOST_BYTES, 0)
        os.close(self._out)
        if status:
            self.error = self.error or _reason(text)
            return ()
        return _main_thread(parsed(text), self.pid)


def _reason(text: bytes) -> str:
    """The first line of what py-spy says against it."""
    lines = text.decode("utf-8", "replace").splitlines() or ["py-spy ended without a word"]
    reason = next((line for line in lines if "ermission" in line or line.startswith("Error")), lines[0])
    if "ermission" in reason:
        return "py-spy may not read the ranks: ptrace is refused (run as root, or kernel.yama.ptrace_scope=0)"
    return f"py-spy: {reason[:160]}"


def _with(threads: Sequence[dict[str, Any]], key: str, value: object) -> dict[str, Any] | None:
    """The first thread that says this of itself."""
    return next((thread for thread in threads if thread.get(key) == value), None)


def _main_thread(value: object, pid: int) -> tuple[str, ...]:
    threads = [thread for thread in value if isinstance(thread, dict)] if isinstance(value, list) else []
    main = _with(threads, "os_thread_id", pid) or _with(threads, "thread_name", "MainThread") or {}
    frames = main.get("frames")
    if not isinstance(frames, list):
        return ()
    return tuple(_frame(frame) for frame in frames[:MOST_FRAMES] if isinstance(frame, dict))


def _frame(raw: Mapping[str, Any]) -> str:
    """`function (file:line)`; the file without what lies above its package."""
    file = str(raw.get("short_filename") or raw.get("filename") or "?")
    name = "".join(str(raw.get("name") or "?").split())
    return f"{name[:100]} ({file[-120:]}:{raw.get('line') or 0})"


def _rose(before: PortGauges | None, after: PortGauges, apart_s: float) -> PortLook:
    """How far each counter of a port rose; a port that was not there at first has not been read twice."""
    name = f"{after.device}:{after.port}"
    if before is None:
        return PortLook(name=name, state=after.state)
    differences = {key: value - before.counters.get(key, value) for key, value in after.counters.items()}
    rose = {key: value for key, value in differences.items() if value > 0}
    return PortLook(name=name, state=after.state, rose=rose, apart_s=apart_s)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _log(path: str) -> bytes:
    """Its beginning, where NCCL says its version; of a log that was cut since, the file before it."""
    for name in (predecessor(path), path):
        try:
            with open(files.opened(name), "rb") as file:
                text = file.read(MOST_LOG)
        except OSError:
            continue
        if _NCCL_VERSION.search(text):
            return text
    return b""


def _loaded_nccl(pids: Sequence[int]) -> str:
    """The version of the package whose library a rank has mapped; '' where none tells."""
    for pid in pids:
        maps = files.read_text(f"/proc/{pid}/maps") or ""
        library = next((line.split()[-1] for line in maps.splitlines() if "/nvidia/nccl/lib/libnccl.so" in line), "")
        folder = library.partition("/nvidia/nccl/lib/")[0]
        try:
            names = os.listdir(f"/proc/{pid}/root{folder}") if folder else []
        except OSError:
            names = []
        for match in filter(None, map(_NCCL_FOLDER.fullmatch, names)):
            return match[1]
    return ""
