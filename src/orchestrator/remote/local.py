"""`ansible_connection: local`: this machine as a node, without SSH."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence

from orchestrator.model.deadlines import FIRST_LINE_S
from orchestrator.model.errors import NodeError, Unreachable
from orchestrator.model.inventory import NodeSpec
from orchestrator.remote import session
from orchestrator.remote.deadline import Deadline, DeadlinePassed
from orchestrator.remote.session import CommandResult, LoginOutput, command_line, lines, shown

_CHUNK = 65536
_STDERR_KEPT = 65536
_NOTICES_S = 2.0


class LocalSession:
    """Runs commands with /bin/sh in process groups of their own."""

    alive = True

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self._conversations: list[LocalConversation] = []

    def run(
        self, command: str | Sequence[str], *, stdin: bytes = b"", deadline_s: float, become: bool | None = None
    ) -> CommandResult:
        """As Session.run."""
        deadline = Deadline(deadline_s)
        login = LoginOutput(self.spec, command, deadline)
        out, err = bytearray(), bytearray()
        process = _start(command_line(command, self.spec.reach, become), subprocess.PIPE)
        try:
            for is_error, chunk in _traffic(process, stdin, login):
                (err if is_error else out).extend(chunk if is_error else login.past(chunk))
                if len(out) + len(err) > session.MOST_OUTPUT:
                    raise session.too_much(self.spec.name, shown(command), session.MOST_OUTPUT)
            status = process.wait(deadline.left())
        except (DeadlinePassed, subprocess.TimeoutExpired):
            raise _too_slow(self.spec, command, deadline_s) from None
        finally:
            _end(process)
        login.expect_begun(status, bytes(err))
        return CommandResult(max(status, -1), bytes(out), bytes(err))

    def stream(self, command: str | Sequence[str], *, stdin: bytes = b"", deadline_s: float | None) -> Iterator[bytes]:
        """As Session.stream."""
        deadline = Deadline(deadline_s)
        login = LoginOutput(self.spec, command, deadline)
        with tempfile.TemporaryFile() as errors:
            process = _start(command_line(command, self.spec.reach, None), errors.fileno())
            try:
                yield from lines(login.past(chunk) for _, chunk in _traffic(process, stdin, login))
                status = process.wait(deadline.left())
            except (DeadlinePassed, subprocess.TimeoutExpired):
                raise _too_slow(self.spec, command, deadline_s or FIRST_LINE_S) from None
            finally:
                _let_go(process)
                _end(process)
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _STDERR_KEPT))
            login.expect_success(status, errors.read())

    def converse(self, command: str | Sequence[str]) -> LocalConversation:
        """A command that stays; it ends with the session."""
        self._conversations.append(LocalConversation(self.spec, command))
        return self._conversations[-1]

    def close(self) -> None:
        """End what stays between commands."""
        for conversation in self._conversations:
            conversation.close()


class LocalConversation:
    """See session.Conversation. One line at a time. It does not keep its session: who asks has it."""

    def __init__(self, spec: NodeSpec, command: str | Sequence[str]) -> None:
        self._spec = spec
        self._command = command
        self._asking = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._login = LoginOutput(spec, command, Deadline(None))
        self._rest = bytearray()

    def ask(
        self, line: bytes, *, deadline_s: float, wanted: Callable[[bytes], bool] = session.any_line
    ) -> bytes | None:
        """As Conversation.ask."""
        deadline = Deadline(deadline_s)
        with self._asking:
            try:
                process = self._running()
                _write(process, line + b"\n", deadline)
                while (answer := self._line(process, deadline)) is not None and not wanted(answer):
                    pass
            except DeadlinePassed:
                self._over()
                raise _too_slow(self._spec, self._command, deadline_s) from None
            except NodeError:
                self._over()
                raise
            return answer

    def close(self) -> None:
        """End the command; the next line would start it again. Who waits for an answer sees its end."""
        if self._asking.acquire(blocking=False):
            try:
                self._over()
            finally:
                self._asking.release()
        elif (process := self._process) is not None:
            _kill(process)

    def _over(self) -> None:
        process, self._process, self._rest = self._process, None, bytearray()
        if process is not None:
            _dismiss(process)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = _start(command_line(self._command, self._spec.reach, None), subprocess.DEVNULL)
            self._login = LoginOutput(self._spec, self._command, Deadline(None))
            weakref.finalize(self, _dismiss, self._process)
        return self._process

    def _line(self, process: subprocess.Popen[bytes], deadline: Deadline) -> bytes | None:
        assert process.stdout is not None
        searched, source = 0, process.stdout.fileno()
        while (end := self._rest.find(b"\n", searched)) < 0:
            searched = len(self._rest)
            if searched > session.MOST_OUTPUT:
                raise session.too_much(self._spec.name, shown(self._command), session.MOST_OUTPUT)
            if not select.select([source], [], [], deadline.left())[0]:
                raise DeadlinePassed
            chunk = os.read(source, _CHUNK)
            if not chunk:
                self._over()
                return None
            self._rest += self._login.past(chunk)
        answer = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return answer


def _start(line: str, stderr: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", line],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )


def _too_slow(spec: NodeSpec, command: str | Sequence[str], seconds: float) -> Unreachable:
    return Unreachable(
        f"`{shown(command)}` did not end within {seconds:g} s",
        where=spec.name,
        fix="check the load of this machine (`uptime`), then try again",
    )


def _write(process: subprocess.Popen[bytes], data: bytes, deadline: Deadline) -> None:
    """All of it, by writes that can't block; nothing where nobody reads. Raises Passed."""
    assert process.stdin is not None
    left, target = memoryview(data), process.stdin.fileno()
    while left:
        if not select.select([], [target], [], deadline.left())[1]:
            raise DeadlinePassed
        left = _feed(target, left)


def _dismiss(process: subprocess.Popen[bytes]) -> None:
    """End a command that stays: without input it ends by itself, in time or not."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_NOTICES_S)
    _end(process)


def _traffic(process: subprocess.Popen[bytes], stdin: bytes, login: LoginOutput) -> Iterator[tuple[bool, bytes]]:
    """(is stderr, chunk) of the output that is piped, until its end; feeds the input meanwhile. Raises Passed."""
    left = memoryview(stdin)
    assert process.stdin is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        told = {stream for stream in (process.stdout, process.stderr) if stream is not None}
        for stream in told:
            selector.register(stream, selectors.EVENT_READ)
        while told:
            for key, _ in selector.select(login.deadline.left()):
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
    """The rest of the input after one non-blocking write; nothing if it is not read."""
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
        _kill(process)
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
