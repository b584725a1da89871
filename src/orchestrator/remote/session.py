"""What a session can do: run commands on one node, each with a deadline. How it does is in commands.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from orchestrator.model.inventory import NodeSpec
from orchestrator.protocol.errors import NodeError

MOST_OUTPUT = 64 << 20
"""Bytes of a command's output that are taken, and of a line of a conversation: the longest is what a look reads of a
node, some megabytes."""


def any_line(_line: bytes) -> bool:
    """Every line is wanted."""
    return True


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command came to: exit status (-1 when a signal ended it), stdout, stderr."""

    status: int
    out: bytes
    err: bytes


def too_much(node: str, command: str, most: int) -> NodeError:
    """A node that answers without an end must not take this machine's memory."""
    return NodeError(
        f"`{command}` wrote more than {most >> 20} MB",
        where=node,
        fix=f"check what that node runs at login: ssh {node} true",
    )


class CommandFailed(NodeError):
    """A streamed command ended with a status other than 0; err holds the end of its stderr."""

    def __init__(self, what: str, *, where: str, fix: str, status: int, err: bytes) -> None:
        super().__init__(what, where=where, fix=fix)
        self.status = status
        self.err = err


class Session(Protocol):
    """An open connection to one node. Sessions are safe to use from several threads."""

    @property
    def spec(self) -> NodeSpec: ...

    def run(
        self, command: str | Sequence[str], *, stdin: bytes = b"", deadline_s: float, become: bool | None = None
    ) -> CommandResult:
        """Run a command to its end; a status other than 0 is a value.

        command: a string is text for /bin/sh, a sequence is quoted word by word
        become:  None follows the inventory (`sudo -n -H -u USER --`)
        Raises Unreachable when the connection is lost or the deadline passes (the connection is then closed),
        NodeError when sudo refuses, or the login ends before the command begins.
        """
        ...

    def stream(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        deadline_s: float | None,
        quiet_s: float | None = None,
    ) -> Iterator[bytes]:
        """Lines of stdout as they come, each with its newline (the last may lack it); for `logs -f`.

        deadline_s: for all of them; quiet_s: for each, which bytes without a newline do not lengthen
        Closing the iterator closes the channel. Raises CommandFailed at the end when the status is not 0,
        and what `run` raises.
        """
        ...

    def close(self) -> None:
        """End the session; what still runs on it ends with Unreachable."""
        ...


class Conversation(Protocol):
    """A command on a node that stays: one line in, one line out."""

    def ask(self, line: bytes, *, deadline_s: float, wanted: Callable[[bytes], bool] = any_line) -> bytes | None:
        """The first wanted line after this one, both without a newline; None where the command has ended instead.

        Started at the first line. Raises what `Session.run` raises.
        """
        ...


@runtime_checkable
class Conversant(Protocol):
    """A session on which a command may stay."""

    def converse(self, command: str | Sequence[str]) -> Conversation: ...


class Connection(Session, Protocol):
    """A session that knows whether it can still be used. spec: another one of the same node may take its place."""

    spec: NodeSpec

    @property
    def alive(self) -> bool: ...

    @property
    def logging_in(self) -> bool:
        """Whether the command that was started last waits for its login's end."""
        ...
