"""A session: commands run on one node, over SSH or on this machine, each with a deadline; their shell line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from orchestrator.model.errors import NodeError
from orchestrator.model.inventory import NodeSpec, Reach

MOST_OUTPUT = 512 << 20
"""Bytes of a command's output that are taken: above every list and file that a node is asked for."""
MOST_ANSWER = 64 << 20
"""Bytes of one line of a conversation: the longest is what a look reads of a node, some megabytes."""


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

        command: a string is shell text for the user's login shell, a sequence is quoted word by word
        become:  None follows the inventory (`sudo -n -H -u USER --`)
        Raises Unreachable when the connection is lost or the deadline passes (the connection is then closed),
        NodeError when sudo refuses.
        """
        ...

    def stream(self, command: str | Sequence[str], *, stdin: bytes = b"", deadline_s: float | None) -> Iterator[bytes]:
        """Lines of stdout as they come, each with its newline (the last may lack it); for `logs -f`.

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


LONGEST = 1 << 20
"""A line without a newline for this many bytes is handed on in parts."""


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines with their newlines; what follows the last newline comes at the end."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in whole)
        if len(rest) > LONGEST:
            yield rest
            rest = b""
    if rest:
        yield rest


_REFUSED = re.compile(rb"^(sudo: |Sorry, user |.{1,80} is not in the sudoers file|.*sudo: (command )?not found)")
"""First line of sudo's own complaints; the part before the colon is not translated."""


def command_line(command: str | Sequence[str], reach: Reach, become: bool | None) -> str:
    """Shell text for a node: a sequence is quoted word by word, a string is taken as shell.

    become: None follows the inventory.
    """
    line = command if isinstance(command, str) else shlex.join(command)
    if not (reach.become if become is None else become):
        return line
    return f"sudo -n -H -u {shlex.quote(reach.become_user)} -- /bin/sh -c {shlex.quote(line)}"


def shown(command: str | Sequence[str]) -> str:
    """A command for an error message, cut to one short line."""
    words = " ".join((command if isinstance(command, str) else shlex.join(command)).split())
    return words if len(words) <= 70 else words[:67] + "..."


def sudo_refusal(node: str, reach: Reach, status: int, err: bytes) -> NodeError | None:
    """The error if sudo would not run the command, else None."""
    first = err.lstrip().split(b"\n", 1)[0][:300]
    if status == 0 or _REFUSED.match(first) is None:
        return None
    who = reach.user or "the SSH user"
    return NodeError(
        f"sudo does not let {who} become {reach.become_user} without a password: "
        f"{first.decode('utf-8', 'replace').strip()}",
        where=node,
        fix=f"allow it on the node: echo '{reach.user or 'USER'} ALL=({reach.become_user}) NOPASSWD: ALL' "
        "> /etc/sudoers.d/l40s-deploy, or set ansible_become: false and log in as that user",
    )
