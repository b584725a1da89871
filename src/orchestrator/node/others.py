"""Agents on this machine by what /proc shows to everybody: those of other users and state directories too."""

from __future__ import annotations

import os
import pwd
import re

from orchestrator.node import processes
from orchestrator.protocol.verbs import OtherAgent

_RUN = re.compile(r"(/.*)/gangs/([^/]+)/runs/[^/]+")


def agent_words(folder: str, node: str, port: int) -> tuple[str, ...]:
    """What an agent's command line ends with: its run's folder, its node's name, and the port of its gang's leader."""
    return ("agent", folder, node, str(port))


def other_agents(state: str) -> tuple[OtherAgent, ...]:
    """Those whose state is not in this directory."""
    own = os.path.realpath(state)
    found = (agent_of(process.pid) for process in processes.everything())
    return tuple(dict.fromkeys(one for one in found if one is not None and os.path.realpath(one.state_dir) != own))


def agent_above(pid: int) -> OtherAgent | None:
    """The agent that a process belongs to, of whichever state directory; None where its ancestors show none."""
    seen = set[int]()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        if (found := agent_of(pid)) is not None:
            return found
        process = processes.read(pid)
        pid = process.parent if process is not None else 0
    return None


def agent_of(pid: int) -> OtherAgent | None:
    """The agent, or its guardian, that this process is; one of an older release does not name its node."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")[:-1]
        user = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    for place in range(len(words) - 4, len(words) - 1):
        where = _RUN.fullmatch(words[place + 1]) if place > 1 and words[place] == "agent" else None
        if where is not None:
            node, port = (*words[place + 2 :], "", "")[:2]
            known = int(port) if port.isdecimal() else 0
            return OtherAgent(gang=where[2], node=node, port=known, state_dir=where[1], user=user_name(user))
    return None


def user_name(number: int) -> str:
    """Of a user id; the number where it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
