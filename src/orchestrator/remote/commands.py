"""What sessions over SSH and on this machine share: a command's shell line, its input once its login has ended, its
output until its end, and commands that stay."""

from __future__ import annotations

import shlex
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.protocol.errors import DeployError, Unreachable
from orchestrator.remote import session
from orchestrator.remote.deadline import Deadline, DeadlinePassed
from orchestrator.remote.login import SAY_BEGIN, LoginOutput, shown
from orchestrator.remote.session import CommandResult, any_line, too_much

_STDERR_KEPT = 65536
"""Bytes of a stream's last errors."""


class RunningCommand(ABC):
    """A command that has been started."""

    @abstractmethod
    def output(self, login: LoginOutput) -> Iterator[tuple[bool, bytes]]:
        """(is stderr, chunk) until its end. Raises DeadlinePassed, and Unreachable where the connection is lost."""

    @abstractmethod
    def feed(self, stdin: bytes, deadline: Deadline) -> None:
        """All of its input, once it has begun: start-up files of a login may read what comes before. It is written
        while the output is read; a command that ends without reading it is no fault of ours."""

    @abstractmethod
    def say(self, line: bytes, deadline: Deadline) -> None:
        """Write input of a command that stays; one that has ended shows that in its output. Raises DeadlinePassed."""

    @abstractmethod
    def status(self, deadline: Deadline) -> int:
        """Its exit status after its output, -1 for a signal. Raises DeadlinePassed."""

    @abstractmethod
    def close(self) -> None:
        """End it."""

    def kill(self) -> None:
        """End it while another thread reads its output, which sees that."""
        self.close()

    def leave(self) -> None:
        """Let it notice that nobody reads or writes any more: it may put away what it made, and end by itself."""
        self.close()


class CommandSession(ABC):
    """Sessions differ in how a command is started, and in what a passed deadline means."""

    late_fix = "check that it responds: ssh {node} uptime"

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self._login: LoginOutput | None = None
        self._conversations: list[CommandConversation] = []

    @property
    def logging_in(self) -> bool:
        """Whether the command that was started last waits for its login's end."""
        return self._login is not None and self._login.waits

    @abstractmethod
    def begin(self, line: str, deadline: Deadline, *, stays: bool) -> RunningCommand:
        """Start a line for a shell. stays: its errors go nowhere. Raises Unreachable, NodeError."""

    def too_late(self, login: LoginOutput) -> Unreachable:
        """The error for a command that did not begin, or end, in time."""
        what, fix = login.late(self.late_fix)
        return Unreachable(what, where=self.spec.name, fix=fix)

    def started(self, login: LoginOutput, become: bool | None, *, stays: bool) -> RunningCommand:
        """The command of a login, started. Raises as `begin` does."""
        line = command_line(login.command, self.spec.reach, become)
        running = self.begin(line, login.deadline, stays=stays)
        self._login = login
        login.starts()
        return running

    def run(
        self, command: str | Sequence[str], *, stdin: bytes = b"", deadline_s: float, become: bool | None = None
    ) -> CommandResult:
        """As Session.run."""
        login = LoginOutput(self.spec, command, Deadline(deadline_s))
        out, err = bytearray(), bytearray()
        with self._running(login, become) as running:
            for is_error, chunk in _fed(running, login, stdin):
                (err if is_error else out).extend(chunk)
                if len(out) + len(err) > session.MOST_OUTPUT:
                    raise too_much(self.spec.name, shown(command), session.MOST_OUTPUT)
            status = running.status(login.deadline)
        login.expect_begun(status, bytes(err))
        return CommandResult(status, bytes(out), bytes(err))

    def stream(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        deadline_s: float | None,
        quiet_s: float | None = None,
    ) -> Iterator[bytes]:
        """As Session.stream."""
        login = LoginOutput(self.spec, command, Deadline(deadline_s), quiet_s)
        err = bytearray()

        def written(running: RunningCommand) -> Iterator[bytes]:
            for is_error, chunk in _fed(running, login, stdin):
                if is_error:
                    err.extend(chunk)
                    del err[:-_STDERR_KEPT]
                else:
                    yield chunk

        with self._running(login) as running:
            for line in lines(written(running)):
                yield line
                login.hears_a_line()
            status = running.status(login.deadline)
        login.expect_success(status, bytes(err))

    def converse(self, command: str | Sequence[str]) -> CommandConversation:
        """A command that stays; it ends with the session."""
        self._conversations.append(CommandConversation(self, command))
        return self._conversations[-1]

    @contextmanager
    def _running(self, login: LoginOutput, become: bool | None = None) -> Iterator[RunningCommand]:
        try:
            running = self.started(login, become, stays=False)
            try:
                yield running
            except GeneratorExit:
                running.leave()
                raise
            finally:
                running.close()
        except DeadlinePassed:
            raise self.too_late(login) from None


def _fed(running: RunningCommand, login: LoginOutput, stdin: bytes) -> Iterator[tuple[bool, bytes]]:
    """(is stderr, chunk) of the command alone, which gets its input when it begins."""
    began = False
    for is_error, chunk in running.output(login):
        yield is_error, chunk if is_error else login.past(chunk)
        if login.begun and not began:
            began = True
            running.feed(stdin, login.deadline)


class CommandConversation:
    """See session.Conversation. One line at a time. It does not keep its session: who asks has it."""

    def __init__(self, of: CommandSession, command: str | Sequence[str]) -> None:
        self._session = weakref.ref(of)
        self._command = command
        self._asking = threading.Lock()
        self._running: RunningCommand | None = None
        self._login = LoginOutput(of.spec, command, Deadline(None))
        self._lines: Iterator[bytes] = iter(())

    def ask(self, line: bytes, *, deadline_s: float, wanted: Callable[[bytes], bool] = any_line) -> bytes | None:
        """As Conversation.ask."""
        ours = self._session()
        if ours is None:
            return None
        with self._asking:
            try:
                if (running := self._running) is None:
                    running = self._begin(ours, Deadline(deadline_s))
                else:
                    self._login.until(Deadline(deadline_s))
                running.say(line + b"\n", self._login.deadline)
                answer = next((reply for reply in self._lines if not reply.endswith(b"\n") or wanted(reply[:-1])), b"")
                if len(answer) > session.MOST_OUTPUT:
                    raise too_much(ours.spec.name, shown(self._command), session.MOST_OUTPUT)
            except DeadlinePassed:
                self._over()
                raise ours.too_late(self._login) from None
            except DeployError:
                self._over()
                raise
            if answer.endswith(b"\n"):
                return answer[:-1]
            self._over()
            return None

    def close(self) -> None:
        """End the command; the next line would start it again. Who waits for an answer sees its end."""
        if self._asking.acquire(blocking=False):
            try:
                self._over()
            finally:
                self._asking.release()
        elif (running := self._running) is not None:
            running.kill()

    def _begin(self, ours: CommandSession, deadline: Deadline) -> RunningCommand:
        """With the login behind it: start-up files may read what comes before."""
        login = self._login = LoginOutput(ours.spec, self._command, deadline)
        running = self._running = ours.started(login, None, stays=True)
        chunks = (login.past(chunk) for is_error, chunk in running.output(login) if not is_error)
        first = next((chunk for chunk in chunks if login.begun), b"")
        self._lines = lines(chain((first,), chunks), session.MOST_OUTPUT)
        return running

    def _over(self) -> None:
        running, self._running, self._lines = self._running, None, iter(())
        if running is not None:
            running.leave()
            running.close()


LONGEST = 1 << 20
"""A line without a newline for this many bytes is handed on in parts."""


def lines(chunks: Iterable[bytes], longest: int = LONGEST) -> Iterator[bytes]:
    """Whole lines with their newlines; what follows the last newline comes at the end."""
    rest, searched = bytearray(), 0
    for chunk in chunks:
        rest += chunk
        while end := rest.find(b"\n", searched) + 1:
            yield bytes(rest[:end])
            del rest[:end]
            searched = 0
        searched = len(rest)
        if searched > longest:
            yield bytes(rest)
            rest, searched = bytearray(), 0
    if rest:
        yield bytes(rest)


def command_line(command: str | Sequence[str], reach: Reach, become: bool | None) -> str:
    """Text for a node's login shell, whichever it is: /bin/sh tells that it begins, and runs the command.

    A sequence is quoted word by word, a string is taken as text for /bin/sh. become: None follows the inventory.
    """
    line = command if isinstance(command, str) else f"exec {shlex.join(command)}"
    line = f"/bin/sh -c {shlex.quote(f'{SAY_BEGIN}; {line}')}"
    if not (reach.become if become is None else become):
        return f"exec {line}"
    return f"exec sudo -n -H -u {shlex.quote(reach.become_user)} -- {line}"
