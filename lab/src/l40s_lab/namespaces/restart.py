"""Switch a node of a running lab on again: `python -m l40s_lab.namespaces.restart DIRECTORY NODE [new-disk]`.

Its disk is as it was when the power went, or a new one. Like any machine, it has a new boot id afterwards.

This process joins the lab's namespaces, so that the new node runs below the lab's supervisor like all others. It is a
separate process because a node's PID 1 inherits all open files of its parent.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from pathlib import Path

from l40s_lab import files, syscalls
from l40s_lab.life.blueprint import Blueprint
from l40s_lab.life.home import Home
from l40s_lab.life.machines import machine_of
from l40s_lab.namespaces import cgroups, links, supervisor
from l40s_lab.namespaces.layers import MEMORY, Shared
from l40s_lab.namespaces.mounts import Spaces
from l40s_lab.processes import wait_until

_LAB = ("net", "uts", "ipc", "pid", "mnt")
_GROUP_S = 10.0
NEW_DISK = "new-disk"


def main(directory: Path, name: str, *, new_disk: bool) -> int:
    """Returns once the node has booted; 1 if it did not, with the reason on stderr."""
    blueprint = Blueprint.read(directory)
    found = Home(blueprint.name, directory).supervisor()
    if found is None:
        raise OSError("the lab's supervisor is gone")
    os.umask(0o022)
    Spaces(found.pid, _LAB).join()
    child = os.fork()  # our first process in the lab's PID namespace
    if child == 0:
        os._exit(_start(blueprint, blueprint.nodes.index(name), new_disk=new_disk))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _start(blueprint: Blueprint, index: int, *, new_disk: bool) -> int:
    try:
        machine = machine_of(blueprint, index)
        shared = Shared(blueprint.path / MEMORY, {index: machine}, blueprint.rootfs)
        _clear(blueprint, index, shared)
        if new_disk:
            _take_out(shared.disk(index))
        _boot_anew(shared.proc_files(index))
        node = supervisor.make(blueprint, index, shared)
        pid = supervisor.start(node)
        links.connect_node(index, pid, machine)
        node.let_go()
        built = node.is_built()
        pids = json.loads((blueprint.path / supervisor.NODES).read_text())
        files.put(blueprint.path / supervisor.NODES, json.dumps({**pids, node.name: pid}))
    except OSError as failure:
        sys.stderr.write(f"lab: {failure}\n")
        return 1
    return 0 if built else 1


def _clear(blueprint: Blueprint, index: int, shared: Shared) -> None:
    """Remove what is left of the node's previous boot."""
    name = blueprint.nodes[index]
    links.unplug_node(index, shared.machines[index])
    (shared.memory / f"{name}.booted").unlink(missing_ok=True)
    if blueprint.level == 2:
        group = cgroups.of_lab(blueprint.mark, shared.memory / supervisor.CGROUP) / name
        if not wait_until(lambda: cgroups.clear(group), deadline_s=_GROUP_S):
            raise OSError(f"a process of {name} does not end")


def _take_out(disk: Path) -> None:
    syscalls.detach(disk)
    shutil.rmtree(disk)


def _boot_anew(proc: Path) -> None:
    boot = proc / "sys/kernel/random/boot_id"
    if boot.exists():  # a node with real hardware shows this machine's
        boot.write_text(f"{uuid.uuid4()}\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], new_disk=NEW_DISK in sys.argv[3:]))
