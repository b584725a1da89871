"""Deaths like those of processes with CUDA, if $STANDIN_DEATHS is `cuda`.

Seen on H200: a killed rank's main thread is a zombie after 2 to 3 ms, but its parent and holders of its pidfd see the
process end only after 210 to 390 ms, because the driver delays the exit of another of its threads. Its connections
close at once, and its peers end 20 to 40 ms later with errors of their own.

Here ptrace(2) delays the exit of threads without files of their own for as long (PTRACE_EVENT_EXIT).
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
import time
from collections.abc import Sequence

from .title import set_title

EXIT_S = (0.2, 0.4)
PEERS_S = (0.02, 0.04)
_THREADS = 3
"""A second SIGKILL frees one delayed thread (ptrace(2), BUGS): the tree's parent and the agent may both send one."""
_LOOK_S = 0.005
_CLONE_FILES = 0x400
_SEIZE, _DETACH, _TRACE_EXIT = 0x4206, 17, 0x40
_EVENT_EXIT = 6
_SET_PTRACER = 0x59616D61
_ALL_THREADS = 0x40000000
_RANDOM = random.SystemRandom()
"""Forked ranks share all other state."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long


def slow_exit() -> None:
    """From now on this process ends EXIT_S after its main thread. Raises OSError without ptrace."""
    ours, theirs = os.pipe(), os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            _hold(ours[0], theirs[1])
        finally:
            os._exit(0)
    _libc.prctl(_SET_PTRACER, helper, 0, 0, 0)
    started = threading.Barrier(_THREADS + 1)
    threads = [threading.Thread(target=_linger, args=(started,), daemon=True) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    started.wait()
    os.write(ours[1], " ".join(str(thread.native_id) for thread in threads).encode())
    answer = os.read(theirs[0], 64)
    for end in (*ours, *theirs):
        os.close(end)
    if answer != b"held":
        raise OSError(f"STANDIN_DEATHS=cuda needs ptrace(2): {answer.decode() or 'refused'}")


def peers_pause() -> None:
    """Wait for the time that a rank takes to end after a peer has."""
    time.sleep(_RANDOM.uniform(*PEERS_S))


def words(address: str) -> str:
    """Gloo's message about a peer that is gone, with the peer's address."""
    where = f"[{address}]:{_RANDOM.randint(32768, 60999)}"
    said = (f"Read error {where}: Connection reset by peer", f"Connection closed by peer {where}")
    return f"[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] {_RANDOM.choice(said)}"


def _linger(started: threading.Barrier) -> None:
    """A thread without files of its own, so that connections close with the main thread."""
    _libc.unshare(_CLONE_FILES)
    os.closerange(0, 1 << 20)
    started.wait()
    while True:
        time.sleep(3600)


def _hold(asked: int, answer: int) -> None:
    """In the helper process: trace the threads, and delay their exit."""
    threads = [int(word) for word in os.read(asked, 64 * _THREADS).split()]
    for descriptor in range(max(asked, answer, 64) + 1):
        if descriptor != answer:
            _close(descriptor)
    set_title("stand-in: holds a rank's exit")
    for thread in threads:
        if _libc.ptrace(_SEIZE, thread, None, ctypes.c_void_p(_TRACE_EXIT)):
            os.write(answer, os.strerror(ctypes.get_errno()).encode())
            return
    os.write(answer, b"held")
    os.close(answer)
    _until_gone(_RANDOM.uniform(*EXIT_S))


def _until_gone(seconds: float) -> None:
    until, stopped = 0.0, list[int]()
    while True:
        try:
            thread, status = os.waitpid(-1, _ALL_THREADS | (os.WNOHANG if until else 0))
        except ChildProcessError:
            return
        if not thread:
            time.sleep(_LOOK_S)
        elif os.WIFSTOPPED(status) and status >> 16 == _EVENT_EXIT:
            until = until or time.monotonic() + seconds
            stopped.append(thread)
        elif os.WIFSTOPPED(status):
            _detach([thread])
        if until and time.monotonic() >= until:
            _detach(stopped)
            stopped = []


def _detach(threads: Sequence[int]) -> None:
    for thread in threads:
        _libc.ptrace(_DETACH, thread, None, None)


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        return


def refuse(error: OSError) -> None:
    """Say why such deaths can't be played here, and exit: deaths of another kind would make the test worthless."""
    sys.stderr.write(f"stand-in: {error}\n")
    sys.stderr.flush()
    os._exit(2)
