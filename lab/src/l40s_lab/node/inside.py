"""`lab shell` and `lab exec`: a node's console. It works when the network doesn't, and its user is root.

At level 0, where nodes are only SSH servers, it is a process of this machine with the node's environment.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from l40s_lab.loopback.supervisor import environment, node_folder
from l40s_lab.namespaces.node import PATH
from l40s_lab.node.living import LivingNode, find_node
from orchestrator.protocol.errors import NodeError

_SPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
_AT_HOME = ("/bin/sh", "-c", 'cd; exec "$@"', "sh")
"""Lets the shell report a command that can't be run, with its message and exit status."""


@dataclass(frozen=True, slots=True)
class Console:
    """How to start a process in a node: the words before the command, and its environment."""

    before: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)


def execute(name: str, node: str, command: Sequence[str]) -> int:
    """Run a command on a node with our own standard streams; returns its exit status, 128 + N after signal N.

    Raises InputError or NodeError if there is no such node or it is switched off.
    """
    return _run(_console(find_node(name, node)), command)


def shell(name: str, node: str) -> int:
    """A login shell on a node; returns its exit status."""
    living = find_node(name, node)
    if not living.has_namespaces:
        return _run(_console(living), [pwd.getpwuid(os.geteuid()).pw_shell or "/bin/sh", "-i"])
    return _run(_console(living), ["/bin/bash", "--login"])


def _console(living: LivingNode) -> Console:
    if not living.has_namespaces:
        folder = node_folder(living.blueprint, living.name)
        return Console(_AT_HOME, {**os.environ, **environment(living.blueprint, living.name), "HOME": str(folder)})
    env = {"PATH": PATH, "HOME": "/root", "USER": "root", "LOGNAME": "root", "SHELL": "/bin/bash", "LANG": "C.UTF-8"}
    env["TERM"] = os.environ.get("TERM", "dumb")
    return Console(("nsenter", "-t", str(living.pid), *_SPACES, "--", *_AT_HOME), env)


def _run(console: Console, command: Sequence[str]) -> int:
    try:
        process = subprocess.Popen([*console.before, *command], env=console.env)
    except FileNotFoundError:
        raise NodeError("nsenter is missing", where="this machine", fix="run `apt-get install util-linux`") from None
    while True:
        try:
            status = process.wait()
        except KeyboardInterrupt:  # the terminal sent it to the command too, which decides
            continue
        return status if status >= 0 else 128 - status
