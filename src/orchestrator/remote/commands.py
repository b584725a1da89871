"""What sessions over SSH and on this machine share: a command's shell line, what a login prints before it begins,
its output until its end, and commands that stay."""

from __future__ import annotations

import re
import secrets
import shlex
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from orchestrator.model.deadlines import FIRST_LINE_S
from orchestrator.model.errors import DeployError, NodeError, Unreachable
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.remote import session
from orchestrator.remote.deadline import Deadline, DeadlinePassed
from orchestrator.remote.session import CommandFailed, CommandResult, any_line, too_much

_STDERR_KEPT = 65536
"""Bytes of a stream's last errors."""


class RunningCommand(ABC):
    """A command that has been started."""

    @abstractmethod
    def output(self, login: LoginOutput) -> Iterator[tuple[bool, bytes]]:
        """(is stderr, chunk) until its end. Raises DeadlinePassed, and Unreachable where the connection is lost."""

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
        self._conversations: list[CommandConversation] = []

    @abstractmethod
    def begin(self, line: str, stdin: bytes | None, deadline: Deadline) -> RunningCommand:
        """Start a line for a shell with this input; None where it comes later. Raises Unreachable, NodeError."""

    def too_late(self, command: str, seconds: float) -> Unreachable:
        """The error for a command that did not end in time."""
        name = self.spec.name
        return Unreachable(
            f"`{command}` did not end within {seconds:g} s", where=name, fix=self.late_fix.format(node=name)
        )

    def run(
        self, command: str | Sequence[str], *, stdin: bytes = b"", deadline_s: float, become: bool | None = None
    ) -> CommandResult:
        """As Session.run."""
        login = LoginOutput(self.spec, command, Deadline(deadline_s))
        out, err = bytearray(), bytearray()
        with self._running(login, stdin, become) as running:
            for is_error, chunk in running.output(login):
                (err if is_error else out).extend(chunk if is_error else login.past(chunk))
                if len(out) + len(err) > session.MOST_OUTPUT:
                    raise too_much(self.spec.name, shown(command), session.MOST_OUTPUT)
            status = running.status(login.deadline)
        login.expect_begun(status, bytes(err))
        return CommandResult(status, bytes(out), bytes(err))

    def stream(self, command: str | Sequence[str], *, stdin: bytes = b"", deadline_s: float | None) -> Iterator[bytes]:
        """As Session.stream."""
        login = LoginOutput(self.spec, command, Deadline(deadline_s))
        err = bytearray()

        def written(running: RunningCommand) -> Iterator[bytes]:
            for is_error, chunk in running.output(login):
                if is_error:
                    err.extend(chunk)
                    del err[:-_STDERR_KEPT]
                else:
                    yield login.past(chunk)

        with self._running(login, stdin) as running:
            yield from lines(written(running))
            status = running.status(login.deadline)
        login.expect_success(status, bytes(err))

    def converse(self, command: str | Sequence[str]) -> CommandConversation:
        """A command that stays; it ends with the session."""
        self._conversations.append(CommandConversation(self, command))
        return self._conversations[-1]

    @contextmanager
    def _running(self, login: LoginOutput, stdin: bytes, become: bool | None = None) -> Iterator[RunningCommand]:
        try:
            running = self.begin(command_line(login.command, self.spec.reach, become), stdin, login.deadline)
            try:
                yield running
            except GeneratorExit:
                running.leave()
                raise
            finally:
                running.close()
        except DeadlinePassed:
            raise self.too_late(shown(login.command), login.seconds) from None


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
        ours, deadline = self._session(), Deadline(deadline_s)
        if ours is None:
            return None
        with self._asking:
            try:
                running = self._running or self._begin(ours, deadline)
                self._login.until(deadline)
                running.say(line + b"\n", deadline)
                answer = next((one for one in self._lines if not one.endswith(b"\n") or wanted(one[:-1])), b"")
                if len(answer) > session.MOST_OUTPUT:
                    raise too_much(ours.spec.name, shown(self._command), session.MOST_OUTPUT)
            except DeadlinePassed:
                self._over()
                raise ours.too_late(shown(self._command), deadline_s) from None
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
        login = self._login = LoginOutput(ours.spec, self._command, deadline)
        running = self._running = ours.begin(command_line(self._command, ours.spec.reach, None), None, deadline)
        chunks = (login.past(chunk) for is_error, chunk in running.output(login) if not is_error)
        self._lines = lines(chunks, session.MOST_OUTPUT)
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


_OURS = f"l40s-deploy-{secrets.token_hex(8)}"
"""Of this process alone: some logins print what an earlier one has printed."""
BEGIN = f"\x1e{_OURS}\x1e".encode()
_SAY_BEGIN = f"printf '\\036%s\\036' {_OURS}"
"""Not what it prints: some logins print the command that they are asked for, and echo may resolve escapes."""
MOST_NOISE = 1 << 20
"""Bytes that a login may print before a command begins."""


class LoginOutput:
    """What a node prints before our command begins: its login's start-up files, in any shell, and sudo. It is passed
    over, with or without a newline.

    deadline: of the whole command; a login without an end has FIRST_LINE_S where that is None
    """

    def __init__(self, spec: NodeSpec, command: str | Sequence[str], deadline: Deadline) -> None:
        self.command, self.seconds = command, deadline.seconds or FIRST_LINE_S
        self._spec, self._deadline = spec, deadline
        self._first = deadline if deadline.seconds is not None else Deadline(FIRST_LINE_S)
        self._noise: bytearray | None = bytearray()

    @property
    def deadline(self) -> Deadline:
        """What to wait for now."""
        return self._deadline if self._noise is None else self._first

    def until(self, deadline: Deadline) -> None:
        """Wait for this from now on."""
        self._deadline = self._first = deadline

    def past(self, chunk: bytes) -> bytes:
        """The part of stdout that is the command's. Raises NodeError past the limit."""
        if self._noise is None:
            return chunk
        searched = max(0, len(self._noise) - len(BEGIN))
        self._noise += chunk
        if (begin := self._noise.find(BEGIN, searched)) >= 0:
            rest, self._noise = bytes(self._noise[begin + len(BEGIN) :]), None
            return rest
        if len(self._noise) > MOST_NOISE:
            raise too_much(self._spec.name, "what it runs at login", MOST_NOISE)
        return b""

    def expect_begun(self, status: int, err: bytes) -> None:
        """Raises NodeError where the command ended before it began, with the cause: sudo, or the login."""
        if self._noise is None:
            return
        refusal = sudo_refusal(self._spec.name, self._spec.reach, bytes(err) + b"\n" + bytes(self._noise))
        if refusal is not None:
            raise refusal
        words = (bytes(err).strip() or bytes(self._noise).strip()).decode("utf-8", "replace").rsplit("\n", 1)[-1][:300]
        ended = "a signal" if status < 0 else f"status {status}"
        raise NodeError(
            f"its login ended with {ended} before `{shown(self.command)}` began: {words or 'it printed nothing'}",
            where=self._spec.name,
            fix=f"check the shell of that user and what it runs at login: ssh {self._spec.name} true",
        )

    def expect_success(self, status: int, err: bytes) -> None:
        """Raises as expect_begun does, and CommandFailed for a status other than 0."""
        self.expect_begun(status, err)
        if status:
            last = err.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
            raise CommandFailed(
                f"`{shown(self.command)}` ended with status {status}: {last}",
                where=self._spec.name,
                fix="run it on the node yourself",
                status=status,
                err=err,
            )


_REFUSED = re.compile(
    rb"^(sudo: |Sorry, user |.{1,80} is not in the sudoers file|"
    rb".*sudo: (command )?not found|.*(command not found|[Uu]nknown command): '?sudo\b).*",
    re.MULTILINE,
)
"""Sudo's own complaints, and what sh, bash, zsh and fish say without one; the part before a colon is not translated."""


def command_line(command: str | Sequence[str], reach: Reach, become: bool | None) -> str:
    """Text for a node's login shell, whichever it is: /bin/sh tells that it begins, and runs the command.

    A sequence is quoted word by word, a string is taken as text for /bin/sh. become: None follows the inventory.
    """
    line = command if isinstance(command, str) else f"exec {shlex.join(command)}"
    line = f"/bin/sh -c {shlex.quote(f'{_SAY_BEGIN}; {line}')}"
    if not (reach.become if become is None else become):
        return f"exec {line}"
    return f"exec sudo -n -H -u {shlex.quote(reach.become_user)} -- {line}"


def shown(command: str | Sequence[str]) -> str:
    """A command for an error message, cut to one short line."""
    words = " ".join((command if isinstance(command, str) else shlex.join(command)).split())
    return words if len(words) <= 70 else words[:67] + "..."


def sudo_refusal(node: str, reach: Reach, said: bytes) -> NodeError | None:
    """The error if sudo would not run a command, by what was said before it could begin; else None."""
    if (found := _REFUSED.search(said)) is None:
        return None
    who = reach.user or "the SSH user"
    return NodeError(
        f"sudo does not let {who} become {reach.become_user} without a password: "
        f"{found[0][:300].decode('utf-8', 'replace').strip()}",
        where=node,
        fix=f"allow it on the node: echo '{reach.user or 'USER'} ALL=({reach.become_user}) NOPASSWD: ALL' "
        "> /etc/sudoers.d/l40s-deploy, or set ansible_become: false and log in as that user",
    )
