"""The one line of shell that a command becomes, with `sudo -n` before it where the inventory says become."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from orchestrator.model.errors import NodeError
from orchestrator.model.inventory import Reach

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
