"""A port on a node's loopback that leads to one on ours, through OpenSSH: paramiko moves a tenth of the bytes a second.

It connects as Ansible does: the inventory's settings as options, ~/.ssh/config for the rest.
"""

from __future__ import annotations

import re
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from orchestrator.model.inventory import NodeSpec
from orchestrator.protocol.errors import InputError, Unreachable
from orchestrator.remote.deadline import Deadline, DeadlinePassed, ahead

_ALLOCATED = re.compile(r"Allocated port ([0-9]+) for remote forward")
"""ssh(1), -R with port 0; on stderr, at LogLevel INFO and above."""
_DEADLINE_S = 20.0
_UNTIL_WE_END = "cat >/dev/null"
"""Runs as long as our end of its stdin is open: not longer than this process, however that ends."""


@contextmanager
def port_forward(spec: NodeSpec, port: int) -> Iterator[int]:
    """The port on the node's 127.0.0.1 that leads to our 127.0.0.1:port until the block ends.

    Raises Unreachable where ssh can't, InputError where there is no ssh.
    """
    command = [*ssh_command(spec), "-T", "-R", f"127.0.0.1:0:127.0.0.1:{port}", spec.reach.host, _UNTIL_WE_END]
    try:
        ssh = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except OSError as wrong:
        what = f"OpenSSH's client can't be started: {wrong.strerror}"
        raise InputError(what, where="ssh", fix="install openssh-client") from None
    try:
        yield _port(ssh, spec)
    finally:
        ssh.terminate()
        try:
            ssh.wait(5)
        except subprocess.TimeoutExpired:
            ssh.kill()
            ssh.wait()


def ssh_command(spec: NodeSpec) -> list[str]:
    """argv of ssh for a node, without the host. ssh takes an option's first value, so ours stand first."""
    reach = spec.reach
    options = dict(reach.ssh_options)
    config = options.pop("configfile", None)
    words = ["ssh", *(("-F", config) if config else ())]
    words += ["-o", "LogLevel=INFO", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes"]
    words += ["-o", "ControlPath=none", "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"]
    if reach.port is not None:
        words += ["-p", str(reach.port)]
    if reach.user is not None:
        words += ["-l", reach.user]
    if reach.key_file:
        words += ["-i", reach.key_file]
    if reach.known_hosts_file:
        words += ["-o", f"UserKnownHostsFile={reach.known_hosts_file}"]
    return words + [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def _port(ssh: subprocess.Popen[bytes], spec: NodeSpec) -> int:
    """Wait for what ssh says on stderr: the port that the node gave, or why there is none. Raises Unreachable."""
    lines = iter(ssh.stderr or ())
    last = "no answer"

    def allocated() -> int:
        nonlocal last
        for raw in lines:
            last = raw.decode("utf-8", "replace").strip() or last
            if match := _ALLOCATED.search(last):
                ahead(lambda: deque(lines, 0))  # ssh must not wait for a reader
                return int(match[1])
        return 0

    with suppress(DeadlinePassed):
        if port := Deadline(_DEADLINE_S).of(allocated):
            return port
    raise Unreachable(
        f"ssh does not forward a port there: {last}",
        where=spec.name,
        fix="allow it (AllowTcpForwarding in its sshd_config), or copy to one node and push NODE:/path",
    )
