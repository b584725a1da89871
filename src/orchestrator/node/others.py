"""Agents on this machine: those of other users and state directories too.

Each shows itself by names of abstract sockets (unix(7)), which go with its process and which /proc/net/unix lists for
everybody, also where /proc is mounted with hidepid and shows a user's own processes alone. Anybody can make such names:
the kernel says whose they are, and a name of somebody who is neither root nor us is only said.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from orchestrator.node import processes
from orchestrator.node.network import netlink
from orchestrator.node.network.netlink import UnixSocket
from orchestrator.node.viewers import user_name
from orchestrator.protocol.verbs import OtherAgent

_MARK = b"l40s-agent"
_PIECE = 75
"""Bytes of the text in one name, which has 107 in all (sun_path of unix(7) less its leading zero)."""
_MOST = 64
"""Agents that are told of; those of root and ours come first."""


def announce(state: str, gang: str, node: str, port: int) -> list[socket.socket]:
    """Show this process to be the agent of a gang's node, as long as it or a fork of it holds the sockets.

    port: of its gang's leader; where no socket can be named, nothing is shown
    """
    text = " ".join((str(port), node, user_name(os.geteuid()), gang, os.path.realpath(state))).encode()
    shown = []
    with contextlib.suppress(OSError):
        for place in range(0, len(text), _PIECE):
            shown.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            shown[-1].bind(b"\0%s %d %d %s" % (_MARK, os.getpid(), place, text[place : place + _PIECE]))
    return shown


def other_agents(state: str) -> tuple[OtherAgent, ...]:
    """Those whose state is not in this directory."""
    own = os.path.realpath(state)
    return tuple(dict.fromkeys(shown.agent for shown in _agents().values() if shown.agent.state_dir != own))


def agents_of(state: str) -> dict[int, ShownAgent]:
    """Those whose state is in this directory, whatever is left of it, by process id."""
    own = os.path.realpath(state)
    return {pid: shown for pid, shown in _agents().items() if shown.agent.state_dir == own}


@dataclass(frozen=True, slots=True)
class ShownAgent:
    """What an agent shows of itself. sockets: inodes of those that say so."""

    agent: OtherAgent
    sockets: frozenset[int]

    def is_held_by(self, pid: int) -> bool | None:
        """Whether a process holds such a socket; None where we may not look. One that was started since with the
        agent's id does not, whatever a fork of the agent still shows."""
        shown = {f"socket:[{inode}]" for inode in self.sockets}
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            return None
        except OSError:
            return False
        return any(_target(f"/proc/{pid}/fd/{name}") in shown for name in names)

    def is_ours(self, pid: int) -> bool:
        """Whether a process is surely this agent, and of our own user."""
        if self.agent.stranger or not self.is_held_by(pid):
            return False
        try:
            return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
        except OSError:
            return False


def _target(link: str) -> str:
    """What a link leads to; '' where it is gone."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def agent_above(pid: int) -> OtherAgent | None:
    """The agent that a process belongs to, of whichever state directory; None where its ancestors show none. What a
    stranger says of somebody else's process counts for nothing."""
    agents = _agents()
    above = ((parent, agents[parent].agent) for parent in _ancestors(pid) if parent in agents)
    return next((agent for parent, agent in above if not agent.stranger or _owner_name(parent) == agent.stranger), None)


def _owner_name(pid: int) -> str:
    """Whose process it is; '' where that is not shown."""
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return ""


def hidden_above(pid: int) -> bool:
    """Some of a process's ancestors are not shown to us, so whose it is can't be told."""
    return any(processes.read(ancestor) is None for ancestor in _ancestors(pid))


def _agents() -> dict[int, ShownAgent]:
    """By process id; that of another PID namespace means nothing here. Of two names for one process, root's or ours
    counts."""
    pieces: dict[tuple[str, int], dict[int, tuple[bytes, int]]] = {}
    for name, (owner, inode) in _names():
        words = name.split(b" ", 2)
        if len(words) == 3 and all(word.isdigit() and len(word) <= _DIGITS for word in words[:2]):
            pieces.setdefault((_stranger(owner), int(words[0])), {})[int(words[1])] = words[2], inode
    agents: dict[int, ShownAgent] = {}
    for (stranger, pid), parts in islice(sorted(pieces.items()), _MOST):
        agent = _read(stranger, b"".join(parts[place][0] for place in sorted(parts)))
        if agent is not None:
            agents.setdefault(pid, ShownAgent(agent, frozenset(inode for _, inode in parts.values())))
    return agents


_DIGITS = 9
"""Of a process id, a place or a port."""


def _names() -> list[tuple[bytes, UnixSocket]]:
    """What stands after our mark in the names of abstract sockets, and whose they are. Where the kernel does not tell
    that, /proc shows the names, and before each the inode (proc_net(5))."""
    try:
        sockets = netlink.unix_names()
    except (OSError, struct.error):
        with open("/proc/net/unix", "rb") as file:
            lines = [line.rstrip(b"\n").partition(b" @%s " % _MARK) for line in file]
        named = [(name, before.split()) for before, mark, name in lines if mark]
        return [(name, UnixSocket(None, int(fields[6]))) for name, fields in named if _is_line(fields)]
    start = b"\0%s " % _MARK
    return [(name.removeprefix(start), inode) for name, inode in sockets.items() if name.startswith(start)]


def _is_line(fields: list[bytes]) -> bool:
    """Whether a line's fields before the name are seven, the inode the last: names may have blanks and newlines."""
    return len(fields) == 7 and fields[6].isdigit()


def _stranger(owner: int | None) -> str:
    """The name of a user who is neither root nor us; '' for these, and where it is not known."""
    return "" if owner is None or owner in (0, os.geteuid()) else user_name(owner)


def _read(stranger: str, text: bytes) -> OtherAgent | None:
    words = text.decode("utf-8", "replace").split(" ", 4)
    if len(words) != 5 or not words[0].isdecimal() or len(words[0]) > _DIGITS:
        return None
    port, node, user, gang, state = words
    return OtherAgent(gang=gang, node=node, port=int(port), state_dir=state, user=user, stranger=stranger)


def _ancestors(pid: int) -> Iterator[int]:
    """A process, its parent, and so on up to one whose parent is not shown."""
    seen = set[int]()
    while pid > 0 and pid not in seen:
        seen.add(pid)
        yield pid
        process = processes.read(pid)
        pid = process.parent if process is not None else 0
