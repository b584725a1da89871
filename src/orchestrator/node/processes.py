"""Processes as /proc shows them. A process is named by its id and its start time, since ids are used again."""

from __future__ import annotations

import os
from dataclasses import dataclass

LONGEST_STAT = 4096


@dataclass(frozen=True)
class Process:
    """One entry of /proc/PID/stat (proc(5)).

    start:     field 22, clock ticks since boot: with pid it names the process for good
    flags:     field 9, of its main thread
    state:     R, S, D, Z, T, ...
    exit_code: field 52, a wait status; it is there for a zombie that we may ptrace, else 0
    name:      field 2, the program's name, at most 15 bytes
    """

    pid: int
    parent: int
    start: int
    state: str
    exit_code: int
    flags: int = 0
    name: str = ""

    @property
    def gone(self) -> bool:
        """It has ended; its parent may not have noticed yet."""
        return self.state in "ZX"


def read(pid: int) -> Process | None:
    """The process with this id, None where there is none."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)  # an agent reads all, again and again
        try:
            text = os.read(descriptor, LONGEST_STAT)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the name may hold blanks and brackets
    return Process(
        pid=pid,
        parent=int(fields[1]),
        start=int(fields[19]),
        state=fields[0].decode(),
        exit_code=int(fields[49]) if len(fields) > 49 else 0,
        flags=int(fields[6]),
        name=text[text.index(b"(") + 1 : text.rindex(b")")].decode("utf-8", "replace"),
    )


def start_of(pid: int) -> int:
    """Start time of a process; 0 where it does not exist."""
    process = read(pid)
    return process.start if process else 0


def alive(pid: int, start: int) -> bool:
    """The very process still runs (a zombie does not)."""
    process = read(pid)
    return process is not None and process.start == start and not process.gone


def lives(pid: int) -> bool:
    """Some process with this id runs."""
    process = read(pid)
    return process is not None and not process.gone


def boot_id() -> str:
    """Names this boot of the machine (random(4)); '' where the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
