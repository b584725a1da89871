"""A session: commands run on one node, over SSH or on this machine, each with a deadline; their shell line."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from orchestrator.model.deadlines import FIRST_LINE_S
from orchestrator.model.errors import NodeError
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.remote.deadline import Deadline

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
        self._spec, self._command = spec, command
        self._deadline = deadline
        self._first = deadline if deadline.seconds is not None else Deadline(FIRST_LINE_S)
        self._noise: bytearray | None = bytearray()

    @property
    def deadline(self) -> Deadline:
        """What to wait for now."""
        return self._deadline if self._noise is None else self._first

    def past(self, chunk: bytes) -> bytes:
        """The part of stdout that is the command's. Raises NodeError past the limit."""
        if self._noise is None:
            return chunk
        searched = max(0, len(self._noise) - len(BEGIN))
        self._noise += chunk
        begin = self._noise.find(BEGIN, searched)
        if begin >= 0:
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
            f"its login ended with {ended} before `{shown(self._command)}` began: {words or 'it printed nothing'}",
            where=self._spec.name,
            fix=f"check the shell of that user and what it runs at login: ssh {self._spec.name} true",
        )

    def expect_success(self, status: int, err: bytes) -> None:
        """Raises as expect_begun does, and CommandFailed for a status other than 0."""
        self.expect_begun(status, err)
        if status:
            last = err.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
            raise CommandFailed(
                f"`{shown(self._command)}` ended with status {status}: {last}",
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
    found = _REFUSED.search(said)
    if found is None:
        return None
    who = reach.user or "the SSH user"
    return NodeError(
        f"sudo does not let {who} become {reach.become_user} without a password: "
        f"{found[0][:300].decode('utf-8', 'replace').strip()}",
        where=node,
        fix=f"allow it on the node: echo '{reach.user or 'USER'} ALL=({reach.become_user}) NOPASSWD: ALL' "
        "> /etc/sudoers.d/l40s-deploy, or set ansible_become: false and log in as that user",
    )
