"""The parent process of a lab of namespaces: `python -m l40s_lab.namespaces.supervisor DIRECTORY`.

It is PID 1 of a PID namespace, so killing it ends every process of the lab, and with them the mounts, links and
namespaces. Until its starter says `detach`, it dies with its starter: an interrupted `lab up` leaves nothing but files.

stdout is its protocol: a line `ready` once every node has been built, then a line `alone` once it has detached; else
the connection ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from l40s_lab import files, syscalls
from l40s_lab.life.blueprint import Blueprint
from l40s_lab.life.home import Home
from l40s_lab.namespaces import cgroups, layers, links
from l40s_lab.namespaces.host_node import HostNode
from l40s_lab.namespaces.layers import Shared
from l40s_lab.namespaces.node import Node
from l40s_lab.namespaces.systemd_node import SystemdNode
from l40s_lab.processes import outlive_starter, reap_for_ever, to_nothing

NODES = "nodes.json"
CGROUP = "cgroup"
"""Mount point of the control group tree, in the lab's tmpfs."""
_OWN = syscalls.CLONE_NEWNET | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC


def main(directory: Path) -> int:
    """Build the lab in the directory's blueprint; returns once it may run without its starter."""
    syscalls.die_with_parent(signal.SIGKILL)
    os.umask(0o022)
    blueprint = Blueprint.read(directory)
    host_network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    detached, tell_detached = os.pipe2(os.O_CLOEXEC)
    go, tell_go = os.pipe2(os.O_CLOEXEC)
    syscalls.unshare(_OWN | syscalls.CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        syscalls.die_with_parent(signal.SIGKILL)
        os.close(tell_go)
        if os.read(go, 1):
            _run(lambda: _supervise(blueprint, host_network, tell_detached))
        os._exit(1)
    Home(blueprint.name, directory).record_supervisor(child)
    os.write(tell_go, b"g")
    os.close(tell_detached)
    if not os.read(detached, 1):
        return 1
    sys.stdout.write("alone\n")
    return 0


def _supervise(blueprint: Blueprint, host_network: int, tell_detached: int) -> None:
    syscalls.make_mounts_private()
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    shared = layers.prepare(blueprint)
    links.build_switch(blueprint)
    links.connect_host(blueprint, host_network)
    nodes = _nodes(blueprint, shared)
    pids = {node.name: start(node) for node in nodes}
    links.connect_nodes({node.index: pids[node.name] for node in nodes}, shared.machines)
    for node in nodes:
        node.let_go()
    failed = [node.name for node in nodes if not node.is_built()]
    if failed:
        raise OSError(f"{', '.join(failed)} could not be built; see the lab's log")
    files.put(blueprint.path / NODES, json.dumps(pids))
    _detach(tell_detached)
    reap_for_ever()


def _nodes(blueprint: Blueprint, shared: Shared) -> list[Node]:
    if blueprint.level == 2:
        cgroups.create(blueprint.mark, shared.memory / CGROUP)
    return [make(blueprint, index, shared) for index in range(len(blueprint.nodes))]


def make(blueprint: Blueprint, index: int, shared: Shared) -> Node:
    """A node that is not yet started."""
    if blueprint.devices:
        return HostNode(blueprint, index, shared)
    if blueprint.level == 1:
        return Node(blueprint, index, shared)
    return SystemdNode(blueprint, index, shared, cgroups.of_lab(blueprint.mark, shared.memory / CGROUP))


def start(node: Node) -> int:
    """Fork PID 1 of a node; returns its process id in our own PID namespace."""
    node.insert_disk()
    syscalls.unshare(syscalls.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        _run(node.live)
        os._exit(1)
    syscalls.setns("/proc/self/ns/pid", syscalls.CLONE_NEWPID)  # our next child is in our own namespace again
    node.was_started(pid)
    return pid


def _detach(tell_detached: int) -> None:
    outlive_starter(lambda: os._exit(1))
    to_nothing(0, 1)
    os.write(tell_detached, b"d")
    os.close(tell_detached)


def _run(work: Callable[[], None]) -> None:
    """Run a forked child's work; errors are written to the log, and the child exits."""
    try:
        work()
    except BaseException as failure:  # a forked child must never return into its parent's code
        with suppress(OSError):
            sys.stderr.write(f"lab: {type(failure).__name__}: {failure}\n")
            sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
