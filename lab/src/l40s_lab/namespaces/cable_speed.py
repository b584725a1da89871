"""Limits the speed of a lab's cable with the kernel's own queues (tc-htb(8)); unlimited, it is as fast as the
machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable

from l40s_lab import syscalls
from orchestrator.model.errors import NodeError

_ALL = "100gbit"
"""Rate for other traffic: a class needs one."""
_COMMAND_S = 30.0


def slow(interface: str, rate: str, *, senders: Iterable[str] = ()) -> list[str]:
    """tc(8) commands that limit the rate of packets leaving an interface; senders: only those from these addresses."""
    commands = [
        f"qdisc replace dev {interface} root handle 1: htb default {10 if not senders else 20} r2q 1000",
        f"class replace dev {interface} parent 1: classid 1:10 htb rate {rate} burst 32k cburst 32k",
        f"class replace dev {interface} parent 1: classid 1:20 htb rate {_ALL} quantum 60000",
    ]
    commands += [
        f"filter add dev {interface} parent 1: protocol ip prio 1 u32 match ip src {address}/32 flowid 1:10"
        for address in senders
    ]
    return commands


def as_before(interface: str) -> list[str]:
    """Undoes `slow`, even if already undone: a restarted node has new interfaces."""
    return [f"qdisc replace dev {interface} root noqueue"]


def run(pid: int, commands: Iterable[str]) -> None:
    """Run them in the network of a process. Raises NodeError with tc's own message."""
    tc = shutil.which("tc")
    if tc is None:
        raise NodeError("tc is missing", where="this machine", fix="apt-get install iproute2")

    def join() -> None:
        syscalls.setns(f"/proc/{pid}/ns/net", syscalls.CLONE_NEWNET)

    done = subprocess.run(
        [tc, "-batch", "-"],
        input="".join(f"{command}\n" for command in commands),
        text=True,
        capture_output=True,
        timeout=_COMMAND_S,
        check=False,
        preexec_fn=join,
    )
    if done.returncode:
        fix = "use a kernel with the queue htb and the filter u32 (CONFIG_NET_SCH_HTB, CONFIG_NET_CLS_U32)"
        raise NodeError(f"tc: {done.stderr.strip()[:300]}", where="this machine", fix=fix)
