"""A node's SSH server, stopped and started from outside: shared by its faults."""

from __future__ import annotations

import os
from dataclasses import replace

from l40s_lab import syscalls
from l40s_lab.life.levels import session_limits
from l40s_lab.life.status import answering
from l40s_lab.namespaces.mounts import Spaces, in_child
from l40s_lab.namespaces.node import start_sshd
from l40s_lab.node.living import LivingNode, cmdline
from l40s_lab.processes import Identity, wait_until
from orchestrator.protocol.errors import NodeError

_SPACES = ("net", "uts", "ipc", "pid", "mnt")
_CHANGES_S = 10.0
_CAP_SYS_RESOURCE = 24


def stop(node: LivingNode) -> None:
    """End the process that listens, but none of its sessions."""
    if node.blueprint.level == 2:
        node.run_here(["systemctl", "kill", "--kill-who=main", "--signal=KILL", "ssh.service"], what="systemctl kill")
        node.run_here(["systemctl", "stop", "ssh.service"], what="systemctl stop")
        return
    for one in listeners(node):
        if not one.end(deadline_s=_CHANGES_S):
            raise NodeError(
                f"its SSH server (process {one.pid}) does not end",
                where=node.name,
                fix="run `l40s-deploy lab down`, then `lab up`",
            )


def start(node: LivingNode, *, memlock: int | None = None) -> None:
    """Start it again. memlock: hard limit of its sessions in bytes; None: as the node was built."""
    if node.blueprint.level == 2:
        node.run_here(["systemctl", "start", "ssh.service"], what="systemctl start")
    else:
        _start_listener(node, memlock)
    if not wait_until(lambda: answering(node.blueprint)[node.name], deadline_s=_CHANGES_S, step_s=0.05):
        fix = f"l40s-deploy lab exec {node.name} -- sshd -t"
        raise NodeError("its SSH server does not start", where=node.name, fix=fix)


def listeners(node: LivingNode) -> list[Identity]:
    """The SSH server itself; sessions have other titles (`sshd: root [priv]`)."""
    found = []
    for one in node.processes():
        title = cmdline(one.pid)
        if b"sshd" in title and (b"-D" in title.split(b"\0") or b"[listener]" in title):
            found.append(one)
    return found


def _start_listener(node: LivingNode, memlock: int | None) -> None:
    system = node.machine.machine.system
    limits = session_limits(system if memlock is None else replace(system, memlock=memlock))

    def work() -> None:
        spaces.join()
        if memlock is not None:
            syscalls.drop_capability(_CAP_SYS_RESOURCE)
        os.umask(0o022)
        start_sshd(limits)

    with Spaces(node.pid, _SPACES) as spaces:
        in_child(work)
