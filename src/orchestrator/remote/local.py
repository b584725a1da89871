"""`ansible_connection: local`: this machine as a node, without SSH."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

from orchestrator.model.errors import Unreachable
from orchestrator.model.inventory import NodeSpec
from orchestrator.remote import session
from orchestrator.remote.command_line import command_line, shown, sudo_refusal
from orchestrator.remote.deadline import Deadline, Passed
from orchestrator.remote.lines import lines
from orchestrator.remote.session import CommandFailed, Completed

_CHUNK = 65536
_STDERR_KEPT = 65536
_NOTICES_S = 2.0


class LocalSession:
    """Runs commands with /bin/sh in process groups of their own."""

    alive = True

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec

    def run(
        self, command: str | Sequence[str], *, stdin: bytes = b"", deadline_s: float, become: bool | None = None
    ) -> Completed:
        """As Session.run."""
        deadline = Deadline(deadline_s)
        out, err = bytearray(), bytearray()
        process = self._start(command_line(command, self.spec.reach, become), subprocess.PIPE)
        try:
            for is_error, chunk in _traffic(process, stdin, deadline):
                (err if is_error else out).extend(chunk)
                if len(out) + len(err) > session.MOST_OUTPUT:
                    raise session.too_much(self.spec.name, shown(command), session.MOST_OUTPUT)
            status = process.wait(deadline.left())
        except (Passed, subprocess.TimeoutExpired):
            raise self._too_slow(command, deadline_s) from None
        finally:
            _end(process)
        refusal = sudo_refusal(self.spec.name, self.spec.reach, status, bytes(err))
        if refusal is not None:
            raise refusal
        return Completed(max(status, -1), bytes(out), bytes(err))

    def stream(self, command: str | Sequence[str], *, stdin: bytes = b"", deadline_s: float | None) -> Iterator[bytes]:
        """As Session.stream."""
        deadline = Deadline(deadline_s)
        with tempfile.TemporaryFile() as errors:
            process = self._start(command_line(command, self.spec.reach, None), errors.fileno())
            try:
                yield from lines(chunk for _, chunk in _traffic(process, stdin, deadline))
                status = process.wait(deadline.left())
            except (Passed, subprocess.TimeoutExpired):
                raise self._too_slow(command, deadline_s or 0) from None
            finally:
                _let_go(process)
                _end(process)
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _STDERR_KEPT))
            _raise_failure(self.spec, command, status, errors.read())

    def close(self) -> None:
        """Nothing stays open between commands."""

    def _start(self, line: str, stderr: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )

    def _too_slow(self, command: str | Sequence[str], seconds: float) -> Unreachable:
        return Unreachable(
            f"`{shown(command)}` did not end within {seconds:g} s",
            where=self.spec.name,
            fix="check the load of this machine (`uptime`), then try again",
        )


def _raise_failure(spec: NodeSpec, command: str | Sequence[str], status: int, err: bytes) -> None:
    refusal = sudo_refusal(spec.name, spec.reach, status, err)
    if refusal is not None:
        raise refusal
    if status:
        last = err.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
        raise CommandFailed(
            f"`{shown(command)}` ended with status {status}: {last}",
            where=spec.name,
            fix="run it on the node yourself",
            status=status,
            err=err,
        )


def _traffic(process: subprocess.Popen[bytes], stdin: bytes, deadline: Deadline) -> Iterator[tuple[bool, bytes]]:
    """(is stderr, chunk) of the output that is piped, until its end; feeds the input meanwhile. Raises Passed."""
    left = memoryview(stdin)
    assert process.stdin is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        told = {stream for stream in (process.stdout, process.stderr) if stream is not None}
        for stream in told:
            selector.register(stream, selectors.EVENT_READ)
        while told:
            for key, _ in selector.select(deadline.left()):
                if key.fileobj is process.stdin:
                    left = _feed(key.fd, left)
                    if not left:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                elif chunk := os.read(key.fd, _CHUNK):
                    yield key.fileobj is process.stderr, chunk
                else:
                    selector.unregister(key.fileobj)
                    told = {stream for stream in told if stream is not key.fileobj}


def _feed(descriptor: int, left: memoryview) -> memoryview:
    """What of the input is left after one write that can't block; nothing where nobody reads it."""
    try:
        return left[os.write(descriptor, left[: select.PIPE_BUF]) :]
    except BrokenPipeError:
        return left[:0]


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """Nobody reads any more: a command that notices puts away what it made, as it would behind an SSH channel."""
    if process.poll() is None and process.stdout is not None:
        process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_NOTICES_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process group that we started, if its leader still runs, and take its status."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
