"""Agents on this machine: those of other users and state directories too.

Each shows itself by names of abstract sockets (unix(7)), which go with its process and which /proc/net/unix lists for
everybody, also where /proc is mounted with hidepid and shows a user's own processes alone.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
from collections.abc import Iterator
from itertools import islice

from orchestrator.node import processes
from orchestrator.protocol.verbs import OtherAgent

_MARK = b"l40s-agent"
_PIECE = 75
"""Bytes of the text in one name, which has 107 in all (sun_path of unix(7) less its leading zero)."""
_MOST = 64
"""Agents that are told of: anybody may make such names."""


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
    return tuple(dict.fromkeys(agent for agent in _agents().values() if agent.state_dir != own))


def agent_above(pid: int) -> OtherAgent | None:
    """The agent that a process belongs to, of whichever state directory; None where its ancestors show none."""
    agents = _agents()
    return next((agents[one] for one in _ancestors(pid) if one in agents), None)


def hidden_above(pid: int) -> bool:
    """Some of a process's ancestors are not shown to us, so whose it is can't be told."""
    return any(processes.read(one) is None for one in _ancestors(pid))


def user_name(number: int) -> str:
    """Of a user id; the number where it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _agents() -> dict[int, OtherAgent]:
    """By process id; that of another PID namespace means nothing here."""
    with open("/proc/net/unix", "rb") as file:
        names = [line.rstrip(b"\n").partition(b" @%s " % _MARK)[2].split(b" ", 2) for line in file]
    texts: dict[int, dict[int, bytes]] = {}
    for pid, place, piece in (name for name in names if len(name) == 3 and name[0].isdigit() and name[1].isdigit()):
        texts.setdefault(int(pid), {})[int(place)] = piece
    return dict(islice(_read(texts), _MOST))


def _read(texts: dict[int, dict[int, bytes]]) -> Iterator[tuple[int, OtherAgent]]:
    for pid, pieces in texts.items():
        words = b"".join(pieces[place] for place in sorted(pieces)).decode("utf-8", "replace").split(" ", 4)
        if len(words) == 5 and words[0].isdecimal():
            port, node, user, gang, state = words
            yield pid, OtherAgent(gang=gang, node=node, port=int(port), state_dir=state, user=user)


def _ancestors(pid: int) -> Iterator[int]:
    """A process, its parent, and so on up to one whose parent is not shown."""
    seen = set[int]()
    while pid > 0 and pid not in seen:
        seen.add(pid)
        yield pid
        process = processes.read(pid)
        pid = process.parent if process is not None else 0
