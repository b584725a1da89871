"""The time before a command begins: what a node's login prints is passed over, and has a limit and words of its own."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Sequence

from orchestrator.model.deadlines import LOGIN_S
from orchestrator.model.inventory import NodeSpec
from orchestrator.protocol.errors import NodeError
from orchestrator.remote.deadline import Deadline
from orchestrator.remote.refusals import OF_A_LOGIN, fix_of, last_words, sudo_refusal
from orchestrator.remote.session import CommandFailed, too_much

_OURS = f"l40s-deploy-{secrets.token_hex(8)}"
"""Of this process alone: some logins print what an earlier one has printed."""
BEGIN = f"\x1e{_OURS}\x1e".encode()
SAY_BEGIN = f"printf '\\036%s\\036' {_OURS}"
"""Not what it prints: some logins print the command that they are asked for, and echo may resolve escapes."""
MOST_NOISE = 1 << 20
"""Bytes that a login may print before a command begins."""


class LoginOutput:
    """What a node prints before our command begins: its login's start-up files, in any shell, and sudo. It is passed
    over, with or without a newline.

    The login has LOGIN_S, whatever the command's own time, which stands still meanwhile.
    quiet_s: the longest time between two lines of the command; None for any
    """

    def __init__(
        self, spec: NodeSpec, command: str | Sequence[str], deadline: Deadline, quiet_s: float | None = None
    ) -> None:
        self.command = command
        self._spec, self._of_command, self._quiet_s = spec, deadline, quiet_s
        self._quiet = Deadline(None)
        self._of_login: Deadline | None = None
        self._noise: bytearray | None = bytearray()

    @property
    def begun(self) -> bool:
        """The command has."""
        return self._noise is None

    @property
    def waits(self) -> bool:
        """For the login's end."""
        return self._of_login is not None and not self.begun

    def starts(self) -> None:
        """The node was told the command."""
        self._of_login, self._since = Deadline(LOGIN_S), time.monotonic()

    @property
    def deadline(self) -> Deadline:
        """What to wait for now."""
        if self._of_login is not None and not self.begun:
            return self._of_login
        return self._of_command.sooner(self._quiet)

    def until(self, deadline: Deadline) -> None:
        """The command's own deadline from now on."""
        self._of_command = deadline

    def hears_a_line(self) -> None:
        """The time for the next one begins."""
        self._quiet = Deadline(self._quiet_s)

    def late(self, fix: str) -> tuple[str, str]:
        """What was not done in time, and the fix. fix: where the command itself took too long"""
        name = self._spec.name
        if self.waits and self._noise is not None:
            words = last_words(bytes(self._noise))
            printed = f"; it printed: {words}" if words else ""
            what = f"its login did not come to an end within {LOGIN_S:g} s, so `{shown(self.command)}` did not begin"
            fix = f"see what that user's start-up files do or wait for (~/.bashrc, PAM): ssh {name} true"
            return what + printed, fix
        what = f"`{shown(self.command)}` did not end within {round(self._of_command.seconds or 0, 1):g} s"
        if self._quiet.is_over:
            what = f"`{shown(self.command)}` said nothing for {self._quiet.seconds:g} s"
        return what, fix.format(node=name)

    def past(self, chunk: bytes) -> bytes:
        """The part of stdout that is the command's. Raises NodeError past the limit."""
        if self._noise is None:
            return chunk
        searched = max(0, len(self._noise) - len(BEGIN))
        self._noise += chunk
        if (begin := self._noise.find(BEGIN, searched)) >= 0:
            rest, self._noise = bytes(self._noise[begin + len(BEGIN) :]), None
            if self._of_login is not None:
                self._of_command = self._of_command.later(time.monotonic() - self._since)
            self.hears_a_line()
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
        words = last_words(bytes(self._noise) + b"\n" + bytes(err))
        ended = "a signal" if status < 0 else f"status {status}"
        fix = f"check the shell of that user and what it runs at login: ssh {self._spec.name} true"
        raise NodeError(
            f"its login ended with {ended} before `{shown(self.command)}` began: {words or 'it printed nothing'}",
            where=self._spec.name,
            fix=fix_of(words, OF_A_LOGIN, fix, self._spec.reach),
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


def shown(command: str | Sequence[str]) -> str:
    """A command for an error message, cut to one short line."""
    words = " ".join((command if isinstance(command, str) else shlex.join(command)).split())
    return words if len(words) <= 70 else words[:67] + "..."
