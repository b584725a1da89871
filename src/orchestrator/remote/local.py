"""How a node is reached: this machine (`ansible_connection: local`) by processes, any other over SSH."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess
import weakref
from collections.abc import Iterator
from typing import IO

from orchestrator.model.inventory import NodeSpec
from orchestrator.remote.commands import CommandSession, RunningCommand
from orchestrator.remote.deadline import Deadline, DeadlinePassed
from orchestrator.remote.login import LoginOutput
from orchestrator.remote.session import Connection

_CHUNK = 65536
_NOTICES_S = 2.0


class LocalSession(CommandSession):
    """Runs commands with /bin/sh in process groups of their own."""

    alive = True
    late_fix = "check the load of this machine (`uptime`), then try again"

    def begin(self, line: str, _: Deadline, *, stays: bool) -> RunningCommand:
        """As CommandSession.begin."""
        return _LocalCommand(line, stays)

    def close(self) -> None:
        """End what stays between commands."""
        for conversation in self._conversations:
            conversation.close()


class _LocalCommand(RunningCommand):
    """A process group. One that stays ends with this object, and its errors go nowhere."""

    def __init__(self, line: str, stays: bool) -> None:
        self._stdin: memoryview | None = None
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if stays else subprocess.PIPE,
            start_new_session=True,
        )
        weakref.finalize(self, _end, self._process)

    def _feed_some(self, stdin: IO[bytes], selector: selectors.BaseSelector) -> None:
        """What the process takes now; its input is closed after the last byte."""
        self._stdin = _feed(stdin.fileno(), self._stdin or memoryview(b""))
        if not self._stdin:
            selector.unregister(stdin)
            stdin.close()

    def output(self, login: LoginOutput) -> Iterator[tuple[bool, bytes]]:
        process, feeding = self._process, False
        with selectors.DefaultSelector() as selector:
            open_streams = set(filter(None, (process.stdout, process.stderr)))
            for stream in open_streams:
                selector.register(stream, selectors.EVENT_READ)
            while open_streams:
                if self._stdin is not None and process.stdin is not None and not feeding:
                    selector.register(process.stdin, selectors.EVENT_WRITE)
                    feeding = True
                for key, _ in selector.select(login.deadline.left()):
                    if key.fileobj is process.stdin:
                        self._feed_some(process.stdin, selector)
                    elif chunk := os.read(key.fd, _CHUNK):
                        yield key.fileobj is process.stderr, chunk
                    else:
                        selector.unregister(key.fileobj)
                        open_streams = {stream for stream in open_streams if stream is not key.fileobj}

    def feed(self, stdin: bytes, _: Deadline) -> None:
        self._stdin = memoryview(stdin)

    def say(self, line: bytes, deadline: Deadline) -> None:
        assert self._process.stdin is not None
        left, target = memoryview(line), self._process.stdin.fileno()
        while left:
            if not select.select([], [target], [], deadline.left())[1]:
                raise DeadlinePassed
            left = _feed(target, left)

    def status(self, deadline: Deadline) -> int:
        try:
            return max(self._process.wait(deadline.left()), -1)
        except subprocess.TimeoutExpired:
            raise DeadlinePassed from None

    def leave(self) -> None:
        if self._process.poll() is None:
            _close(self._process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_NOTICES_S)

    def kill(self) -> None:
        _kill(self._process)

    def close(self) -> None:
        _end(self._process)


def _feed(descriptor: int, left: memoryview) -> memoryview:
    """The rest of the input after one non-blocking write; nothing if it is not read."""
    try:
        return left[os.write(descriptor, left[: select.PIPE_BUF]) :]
    except BrokenPipeError:
        return left[:0]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        _kill(process)
        process.wait()
    _close(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The group that we started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def connect(spec: NodeSpec, deadline_s: float) -> Connection:
    """Open a session to a node.

    Raises Unreachable (refused, silent, unknown name, key refused), HostKeyError (unknown or changed host key),
    InputError (a key file or ssh option that cannot be used).
    """
    if spec.reach.connection == "local":
        return LocalSession(spec)
    from orchestrator.remote.ssh_session import open_session

    return open_session(spec, deadline_s=deadline_s)
