"""`ansible_connection: local`: this machine as a node, without SSH."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence

from orchestrator.model.errors import Unreachable
from orchestrator.model.inventory import NodeSpec
from orchestrator.remote.command_line import command_line, shown, sudo_refusal
from orchestrator.remote.deadline import Deadline, Passed
from orchestrator.remote.lines import lines
from orchestrator.remote.session import CommandFailed, Completed

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
        process = self._start(command_line(command, self.spec.reach, become), subprocess.PIPE)
        try:
            out, err = process.communicate(stdin, timeout=deadline_s)
        except subprocess.TimeoutExpired:
            raise self._too_slow(command, deadline_s) from None
        finally:
            _end(process)
        refusal = sudo_refusal(self.spec.name, self.spec.reach, process.returncode, err)
        if refusal is not None:
            raise refusal
        return Completed(max(process.returncode, -1), out, err)

    def stream(self, command: str | Sequence[str], *, stdin: bytes = b"", deadline_s: float | None) -> Iterator[bytes]:
        """As Session.stream."""
        deadline = Deadline(deadline_s)
        with tempfile.TemporaryFile() as errors:
            process = self._start(command_line(command, self.spec.reach, None), errors.fileno())
            try:
                threading.Thread(target=_feed, args=(process, stdin), daemon=True).start()
                yield from lines(_chunks(process, deadline))
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


def _chunks(process: subprocess.Popen[bytes], deadline: Deadline) -> Iterator[bytes]:
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(deadline.left()):
                continue
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return
            yield chunk


def _feed(process: subprocess.Popen[bytes], stdin: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):
        process.stdin.write(stdin)
        process.stdin.close()


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
