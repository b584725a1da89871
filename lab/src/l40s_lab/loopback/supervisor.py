"""The parent process of a level-0 lab's SSH servers: `python -m l40s_lab.loopback.supervisor DIRECTORY`.

It adopts orphans of their sessions (PR_SET_CHILD_SUBREAPER) and ends all of them when it is asked to end. Its protocol
is that of level 1's supervisor.
"""

from __future__ import annotations

import getpass
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from l40s_lab import syscalls
from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.life.blueprint import Blueprint
from l40s_lab.life.home import Home
from l40s_lab.life.machines import machine_of
from l40s_lab.loopback import MARK, hardware
from l40s_lab.node import files as node_files
from l40s_lab.node import models, sshd, tree
from l40s_lab.node.tree import FileTree
from l40s_lab.nvml import library
from l40s_lab.processes import Identity, outlive_starter, reap_for_ever, to_nothing

PRIVILEGE_SEPARATION = Path("/run/sshd")

_HOSTS_OWN = (
    "/etc/os-release",
    "/proc/uptime",
    "/proc/mounts",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/proc/sys/vm/max_map_count",
    "/proc/sys/vm/overcommit_memory",
)
"""Files that a level-1 node shows as they are on this machine."""


def main(directory: Path) -> NoReturn:
    """Build the lab in the directory's blueprint, then run until SIGTERM."""
    syscalls.die_with_parent(signal.SIGKILL)
    os.umask(0o022)
    blueprint = Blueprint.read(directory)
    Home(blueprint.name, directory).record_supervisor(os.getpid())
    syscalls.adopt_orphans()
    _write_shared(blueprint)
    for index in range(len(blueprint.nodes)):
        _write_node(blueprint, machine_of(blueprint, index))
        _start_sshd(blueprint, index)
    signal.signal(signal.SIGTERM, _end)
    _detach()
    reap_for_ever()


def node_folder(blueprint: Blueprint, name: str) -> Path:
    """Directory of one node's own files."""
    return blueprint.path / "nodes" / name


def _write_shared(blueprint: Blueprint) -> None:
    shared = models.render("/workspace")
    shared.put(f"/lib/{library.NAME}", library.build().read_bytes(), 0o755)
    shared.update(node_files.verbs_library("/lib", blueprint.rootfs))
    tree.write(shared, blueprint.path)
    for show in blueprint.shows:
        if show.inside.startswith("/workspace/"):
            (blueprint.path / show.inside.lstrip("/")).symlink_to(show.outside)


def _write_node(blueprint: Blueprint, node: NodeMachine) -> None:
    folder = node_folder(blueprint, node.node)
    for name, shown in hardware.trees(node).items():
        tree.write(shown, folder / "root" / name)
    tree.write(_hosts_own(), folder / "root")
    tree.write(_devices(node), folder / "root/dev")
    exports = "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in environment(blueprint, node.node).items()
    )
    exports += node_files.played(blueprint.deaths)
    tree.write(node_files.engine_files("/lab", "/venvs", exports=exports, below=str(folder)), folder)
    for show in blueprint.shows:
        if show.inside.startswith(f"{node_files.VENVS}/"):
            (folder / "venvs" / Path(show.inside).name).symlink_to(show.outside)
    node_files.write_nvml_state(folder, node)


def _devices(node: NodeMachine) -> FileTree:
    seen = FileTree()
    for name in node_files.devices(node):
        seen.put(f"/{name}", b"")
    return seen


def _hosts_own() -> FileTree:
    own = FileTree()
    for path in _HOSTS_OWN:
        with suppress(OSError):
            own.put(path, Path(path).read_bytes())
    return own


def environment(blueprint: Blueprint, name: str) -> dict[str, str]:
    """Environment variables of every process of a node."""
    folder = node_folder(blueprint, name)
    return {
        MARK: str(blueprint.path),
        "LD_LIBRARY_PATH": f"{blueprint.path}/lib",
        "L40S_LAB_NVML": f"{folder}/nvml.conf",
        "L40S_LAB_GPU_CLAIMS": f"{folder}/gpu-claims",
    }


def _separate_privileges() -> None:
    """Debian's sshd, started by root, needs this directory, which only its own service creates (sshd_config(5))."""
    if os.geteuid() == 0:
        PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)


def _start_sshd(blueprint: Blueprint, index: int) -> None:
    name = blueprint.nodes[index]
    folder = node_folder(blueprint, name)
    variables = " ".join(f'"{key}={value}"' for key, value in environment(blueprint, name).items())
    (folder / "sshd_config").write_text(
        f"""Port {blueprint.port}
ListenAddress {blueprint.address(index)}
HostKey {folder}/host_key
AuthorizedKeysFile {blueprint.path}/client.pub
AllowUsers {getpass.getuser()}
PidFile none
SetEnv {variables}
{sshd.ALL_LEVELS}{sshd.WITHOUT_PAM}"""
    )
    _separate_privileges()
    with (folder / "sshd.log").open("wb") as log:
        subprocess.Popen(
            ["/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config")],
            env={"PATH": os.environ.get("PATH", os.defpath), MARK: str(blueprint.path)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: syscalls.die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - one thread
        )


def _detach() -> None:
    outlive_starter(lambda: _end(0, None))
    sys.stdout.write("alone\n")
    sys.stdout.flush()
    to_nothing(0, 1)


def _end(_number: int, _frame: FrameType | None) -> None:
    """Kill all descendants until there are none; orphans become our children, so none escapes."""
    end = time.monotonic() + 10.0
    while (below := _descendants(os.getpid())) and time.monotonic() < end:
        for identity in below:
            identity.kill()
        while _reaped_one():
            pass
        time.sleep(0.005)
    os._exit(0)


def _reaped_one() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _descendants(pid: int) -> list[Identity]:
    found: list[Identity] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            identity = Identity.of(int(child))
            found += [identity] if identity else []
            found += _descendants(int(child))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
