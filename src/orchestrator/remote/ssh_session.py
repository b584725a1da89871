"""Commands over one SSH connection. paramiko's timeouts are per read; here a deadline covers the entire command."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import paramiko

from orchestrator.model.inventory import NodeSpec
from orchestrator.protocol.errors import NodeError, Unreachable
from orchestrator.remote.commands import CommandSession, RunningCommand
from orchestrator.remote.deadline import Deadline, DeadlinePassed
from orchestrator.remote.login import LoginOutput, shown
from orchestrator.remote.ssh_target import target_of
from orchestrator.remote.ssh_way import SshConnection, open_way

_CHUNK = 65536
LINGER_S = 5.0
"""What a login left running may hold the output open: it has ended where nothing comes for so long after the exit."""
_FED_INLINE = 1 << 20
"""Input up to this size fits into sshd's first window (2 MiB), so writing it can't wait for the command."""


def open_session(spec: NodeSpec, *, deadline_s: float) -> SshSession:
    """Connect to a node; see connect.connect."""
    return SshSession(spec, open_way(target_of(spec), deadline_s))


class SshSession(CommandSession):
    """One connection to one node; each command has its own channel."""

    def __init__(self, spec: NodeSpec, way: SshConnection) -> None:
        super().__init__(spec)
        self._way = way

    @property
    def alive(self) -> bool:
        """False once the connection has ended, by us or by anything else."""
        return self._way.transport.is_active()

    def begin(self, line: str, deadline: Deadline, *, stays: bool) -> RunningCommand:  # noqa: ARG002
        """As CommandSession.begin."""
        return _SshCommand(self.spec.name, self._way, self._channel(line, deadline))

    def _channel(self, line: str, deadline: Deadline) -> paramiko.Channel:
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
            raise _lost(self.spec.name, self._way) from None

    def too_late(self, login: LoginOutput) -> Unreachable:
        """It is unknown whether the node still hears us, so the connection is closed too."""
        self.close()
        return super().too_late(login)

    def close(self) -> None:
        """End the connection and everything on it."""
        self._way.close()


class _SshCommand(RunningCommand):
    """A channel."""

    def __init__(self, node: str, way: SshConnection, channel: paramiko.Channel) -> None:
        self._node, self._way, self._channel = node, way, channel
        self._arrived = _Arrived()
        channel.in_buffer.set_event(self._arrived)
        channel.in_stderr_buffer.set_event(self._arrived)

    def output(self, login: LoginOutput) -> Iterator[tuple[bool, bytes]]:
        """Without an exit status, an orderly end means that a signal ended the command, and anything else that the
        connection is gone: paramiko says -1 for both and raises nothing."""
        channel, arrived = self._channel, self._arrived
        while True:
            arrived.forget()
            finished = channel.closed or channel.eof_received
            while channel.recv_ready():
                yield False, channel.recv(_CHUNK)
                login.deadline.left()
            while channel.recv_stderr_ready():
                yield True, channel.recv_stderr(_CHUNK)
                login.deadline.left()
            if finished:
                login.deadline.wait(channel.status_event)
                break
            left = login.deadline.left()
            if not arrived.wait(min(LINGER_S, LINGER_S if left is None else left)) and channel.exit_status_ready():
                break
        if channel.exit_status == -1 and not channel.eof_received:
            raise _lost(self._node, self._way, f" while `{shown(login.command)}` ran")

    def feed(self, stdin: bytes, deadline: Deadline) -> None:
        if len(stdin) > _FED_INLINE:
            threading.Thread(target=_write, args=(self._channel, stdin, deadline), daemon=True).start()
        else:
            _write(self._channel, stdin, deadline)

    def say(self, line: bytes, deadline: Deadline) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            _send(self._channel, line, deadline)

    def status(self, _: Deadline) -> int:
        return self._channel.exit_status

    def close(self) -> None:
        """A connection that has ended is noticed here first, at times; what the command answered is known by then."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()


def _lost(node: str, way: SshConnection, when: str = "") -> Unreachable:
    way.close()
    return Unreachable(
        f"the connection was lost{when}",
        where=node,
        fix="check the node and the network, then run the same command again; it continues from the current state",
    )


def _write(channel: paramiko.Channel, stdin: bytes, deadline: Deadline) -> None:
    """Write the input and end it; a command that ends without reading it is no fault of ours."""
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException, DeadlinePassed):
        _send(channel, stdin, deadline)
        channel.shutdown_write()


def _send(channel: paramiko.Channel, data: bytes, deadline: Deadline) -> None:
    """A node that makes room for a byte at a time does not lengthen it."""
    left = memoryview(data)
    while left:
        channel.settimeout(deadline.left())
        left = left[channel.send(bytes(left[:_CHUNK])) :]


class _Arrived(threading.Event):
    """Set when either of a channel's buffers gets data or its end. Only the reader forgets, before it looks:
    the pipe of Channel.fileno() is cleared by one buffer while the other one fills, and then a wake-up is lost."""

    def clear(self) -> None:
        """paramiko calls this when one buffer runs empty; the other may not be."""

    def forget(self) -> None:
        super().clear()
