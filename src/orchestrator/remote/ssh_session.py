"""Commands over one SSH connection. paramiko's timeouts are per read; here a deadline covers the entire command."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence

import paramiko

from orchestrator.model.deadlines import FIRST_LINE_S
from orchestrator.model.errors import NodeError, Unreachable
from orchestrator.model.inventory import NodeSpec
from orchestrator.remote import session
from orchestrator.remote.deadline import Deadline, DeadlinePassed
from orchestrator.remote.session import CommandResult, LoginOutput, command_line, lines, shown
from orchestrator.remote.ssh_target import target_of
from orchestrator.remote.ssh_way import SshConnection, open_way

_CHUNK = 65536
_STDERR_KEPT = 65536
LINGER_S = 5.0
"""What a login left running may hold the output open: it has ended where nothing comes for so long after the exit."""
_FED_INLINE = 1 << 20
"""Input up to this size fits into sshd's first window (2 MiB), so writing it can't wait for the command."""


def open_session(spec: NodeSpec, *, deadline_s: float) -> SshSession:
    """Connect to a node; see connect.connect."""
    return SshSession(spec, open_way(target_of(spec), deadline_s))


class SshSession:
    """One connection to one node; each command has its own channel."""

    def __init__(self, spec: NodeSpec, way: SshConnection) -> None:
        self.spec = spec
        self._way = way

    @property
    def alive(self) -> bool:
        """False once the connection has ended, by us or by anything else."""
        return self._way.transport.is_active()

    def run(
        self, command: str | Sequence[str], *, stdin: bytes = b"", deadline_s: float, become: bool | None = None
    ) -> CommandResult:
        """As Session.run."""
        deadline = Deadline(deadline_s)
        login = LoginOutput(self.spec, command, deadline)
        out, err = bytearray(), bytearray()
        with self._bounded(command, deadline):
            channel = self._start(command_line(command, self.spec.reach, become), deadline)
            with contextlib.closing(channel):
                _feed(channel, stdin, deadline)
                for is_error, chunk in _output(channel, login):
                    (err if is_error else out).extend(chunk if is_error else login.past(chunk))
                    if len(out) + len(err) > session.MOST_OUTPUT:
                        raise session.too_much(self.spec.name, shown(command), session.MOST_OUTPUT)
                status = self._status(channel, command)
        login.expect_begun(status, bytes(err))
        return CommandResult(status, bytes(out), bytes(err))

    def stream(self, command: str | Sequence[str], *, stdin: bytes = b"", deadline_s: float | None) -> Iterator[bytes]:
        """As Session.stream."""
        deadline = Deadline(deadline_s)
        login = LoginOutput(self.spec, command, deadline)
        err = bytearray()
        with self._bounded(command, deadline):
            channel = self._start(command_line(command, self.spec.reach, None), login.deadline)
            with contextlib.closing(channel):
                _feed(channel, stdin, deadline)
                yield from lines(_out_only(channel, login, err))
                status = self._status(channel, command)
        login.expect_success(status, bytes(err))

    def converse(self, command: str | Sequence[str]) -> SshConversation:
        """A command that stays, in a channel of its own; it ends with the session."""
        return SshConversation(self, command)

    def close(self) -> None:
        """End the connection and everything on it."""
        self._way.close()

    @contextlib.contextmanager
    def _bounded(self, command: str | Sequence[str], deadline: Deadline) -> Iterator[None]:
        """Past the deadline it is unknown whether the node still hears us, so the connection is closed too."""
        try:
            yield
        except DeadlinePassed:
            self.close()
            raise Unreachable(
                f"`{shown(command)}` did not end within {deadline.seconds or FIRST_LINE_S:g} s",
                where=self.spec.name,
                fix=f"check that it responds: ssh {self.spec.name} uptime",
            ) from None

    def _start(self, line: str, deadline: Deadline) -> paramiko.Channel:
        transport = self._way.transport
        try:
            with deadline.breaking(self.close):
                channel = transport.open_session(timeout=deadline.left())
                channel.exec_command(line)
                return channel
        except paramiko.ChannelException as refused:
            raise NodeError(
                f"its sshd opens no more sessions: {refused.text}",
                where=self.spec.name,
                fix="increase MaxSessions in its sshd_config",
            ) from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            deadline.left()
            if transport.is_active() and not isinstance(error, EOFError):  # which is its end, noticed here first
                raise NodeError(
                    f"its sshd runs no commands for this user: {error}",
                    where=self.spec.name,
                    fix="check ForceCommand and the user's shell",
                ) from None
            raise self._lost() from None

    def _status(self, channel: paramiko.Channel, command: str | Sequence[str]) -> int:
        """The exit status. Without one, an orderly end of output means that a signal ended the command, and
        anything else that the connection is gone: paramiko says -1 for both and raises nothing."""
        status = channel.exit_status
        if status == -1 and not channel.eof_received:
            raise self._lost(f" while `{shown(command)}` ran")
        return status

    def _lost(self, when: str = "") -> Unreachable:
        self.close()
        return Unreachable(
            f"the connection was lost{when}",
            where=self.spec.name,
            fix="check the node and the network, then run the same command again; it continues from the current state",
        )


class SshConversation:
    """See session.Conversation. One line at a time. It does not keep its session: the caller has it."""

    def __init__(self, of: SshSession, command: str | Sequence[str]) -> None:
        self._session = weakref.ref(of)
        self._command = command
        self._channel: paramiko.Channel | None = None
        self._login = LoginOutput(of.spec, command, Deadline(None))
        self._arrived = _Arrived()
        self._rest = bytearray()

    def ask(
        self, line: bytes, *, deadline_s: float, wanted: Callable[[bytes], bool] = session.any_line
    ) -> bytes | None:
        """As Conversation.ask."""
        ours, deadline = self._session(), Deadline(deadline_s)
        if ours is None:
            return None
        with ours._bounded(self._command, deadline):
            channel = self._open(ours, deadline)
            try:
                channel.settimeout(deadline.left())
                channel.sendall(line + b"\n")
            except (OSError, EOFError, paramiko.SSHException):
                deadline.left()
                self._ended(ours, channel)
                return None
            try:
                while (answer := self._line(ours, channel, deadline)) is not None and not wanted(answer):
                    pass
            except NodeError:
                self._ended(ours, channel)
                raise
            return answer

    def _open(self, ours: SshSession, deadline: Deadline) -> paramiko.Channel:
        if self._channel is None:
            line = command_line(self._command, ours.spec.reach, None)
            self._channel = ours._start(line, deadline)
            self._login = LoginOutput(ours.spec, self._command, deadline)
            self._channel.in_buffer.set_event(self._arrived)
            self._channel.in_stderr_buffer.set_event(self._arrived)
        return self._channel

    def _line(self, ours: SshSession, channel: paramiko.Channel, deadline: Deadline) -> bytes | None:
        searched = 0
        while True:
            self._arrived.forget()
            finished = channel.closed or channel.eof_received
            while channel.recv_ready() and len(self._rest) <= session.MOST_OUTPUT:
                self._rest += self._login.past(channel.recv(_CHUNK))
            while channel.recv_stderr_ready():
                channel.recv_stderr(_CHUNK)
            end, searched = self._rest.find(b"\n", searched), len(self._rest)
            if end >= 0:
                answer = bytes(self._rest[:end])
                del self._rest[: end + 1]
                return answer
            if len(self._rest) > session.MOST_OUTPUT:
                raise session.too_much(ours.spec.name, shown(self._command), session.MOST_OUTPUT)
            if finished:
                self._ended(ours, channel)
                return None
            deadline.wait(self._arrived)

    def _ended(self, ours: SshSession, channel: paramiko.Channel) -> None:
        """The command is over, and the next line would start it again; a lost connection is a failure."""
        self._channel, self._arrived, self._rest = None, _Arrived(), bytearray()
        lost = not ours.alive
        channel.close()
        if lost:
            raise ours._lost(f" while `{shown(self._command)}` ran")


def _feed(channel: paramiko.Channel, stdin: bytes, deadline: Deadline) -> None:
    """Write the input and end it; a command that ends without reading it is no fault of ours."""
    if len(stdin) > _FED_INLINE:
        threading.Thread(target=_write, args=(channel, stdin, deadline), daemon=True).start()
    else:
        _write(channel, stdin, deadline)


def _write(channel: paramiko.Channel, stdin: bytes, deadline: Deadline) -> None:
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException, DeadlinePassed):
        channel.settimeout(deadline.left())
        channel.sendall(stdin)
        channel.shutdown_write()


def _out_only(channel: paramiko.Channel, login: LoginOutput, err: bytearray) -> Iterator[bytes]:
    for is_error, chunk in _output(channel, login):
        if is_error:
            err.extend(chunk)
            del err[:-_STDERR_KEPT]
        else:
            yield login.past(chunk)


def _output(channel: paramiko.Channel, login: LoginOutput) -> Iterator[tuple[bool, bytes]]:
    """(is stderr, chunk) until both ends are closed and the exit status is there. Raises Passed."""
    arrived = _Arrived()
    channel.in_buffer.set_event(arrived)
    channel.in_stderr_buffer.set_event(arrived)
    while True:
        arrived.forget()
        finished = channel.closed or channel.eof_received
        while channel.recv_ready():
            yield False, channel.recv(_CHUNK)
        while channel.recv_stderr_ready():
            yield True, channel.recv_stderr(_CHUNK)
        if finished:
            login.deadline.wait(channel.status_event)
            return
        left = login.deadline.left()
        if not arrived.wait(min(LINGER_S, LINGER_S if left is None else left)) and channel.exit_status_ready():
            return


class _Arrived(threading.Event):
    """Set when either of a channel's buffers gets data or its end. Only the reader forgets, before it looks:
    the pipe of Channel.fileno() is cleared by one buffer while the other one fills, and then a wake-up is lost."""

    def clear(self) -> None:
        """paramiko calls this when one buffer runs empty; the other may not be."""

    def forget(self) -> None:
        super().clear()
