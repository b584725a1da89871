"""A node on which memory can't be locked, which RDMA needs."""

from __future__ import annotations

from l40s_lab.faults import ssh_server, words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.node.living import LivingNode

FAULT = Fault(
    name="memlock",
    argument="[KIB]",
    summary="sessions may lock KIB (default: 64) KiB of memory, and can't raise that",
    shows="ulimit -l in new sessions; with systemd the agent's unit has its own limit",
    levels=(1, 2),
)
_FILE = "/etc/security/limits.d/zz-l40s-lab-fault.conf"


def strike(node: LivingNode, asked: Words) -> Undo:
    """With systemd, through pam_limits; else as in a container without CAP_SYS_RESOURCE."""
    words.at_most(asked, 1)
    kib = words.number(asked, 0, what="KiB", lowest=1, highest=1 << 40, default=64)
    if node.blueprint.level == 2:
        node.write(_FILE, "".join(f"{who} - memlock {kib}\n" for who in ("*", "root")))
    else:
        ssh_server.stop(node)
        ssh_server.start(node, memlock=kib << 10)
    return {}


def heal(node: LivingNode, _: Undo) -> None:
    """New sessions get the limit that the node was built with."""
    if node.blueprint.level == 2:
        node.file(_FILE).unlink(missing_ok=True)
    else:
        ssh_server.stop(node)
        ssh_server.start(node)
