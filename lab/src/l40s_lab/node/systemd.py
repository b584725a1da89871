"""The /etc of a node that boots systemd, besides its distribution's files: who may log in, and what starts."""

from __future__ import annotations

import resource

from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.life.levels import session_limits
from l40s_lab.node import sshd
from l40s_lab.node.rootfs import USER
from l40s_lab.node.tree import FileTree

_MASKED = (
    "apt-daily-upgrade.timer", "apt-daily.timer", "console-getty.service", "dev-hugepages.mount", "dev-mqueue.mount",
    "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer", "getty.target",
    "logrotate.timer", "modprobe@.service", "sys-fs-fuse-connections.mount", "sys-kernel-config.mount",
    "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "systemd-journal-flush.service",
    "systemd-modules-load.service", "systemd-networkd.service", "systemd-pstore.service",
    "systemd-remount-fs.service", "systemd-resolved.service", "systemd-sysusers.service",
    "systemd-timesyncd.service", "systemd-tmpfiles-setup-dev.service", "systemd-udev-trigger.service",
    "systemd-udevd.service", "systemd-update-utmp-runlevel.service", "systemd-update-utmp.service",
)  # fmt: skip
"""Units that need a kernel, a console or real devices, that do what the lab has already done, or that slow the boot."""
_MASKED_GENERATORS = ("cryptsetup", "debug", "getty", "gpt-auto", "hibernate-resume", "integritysetup", "rc-local",
                      "run", "system-update", "sysv", "veritysetup")  # fmt: skip
"""They look for disks and consoles, which a node lacks."""
_SSHD = f"""AllowUsers {USER}
AuthorizedKeysFile /etc/ssh/authorized_keys
PermitRootLogin no
PrintLastLog no
{sshd.ALL_LEVELS}"""


def render(node: NodeMachine) -> FileTree:
    """The tree below /."""
    tree = FileTree()
    units = "/etc/systemd/system"
    tree.links |= {f"{units}/{unit}": "/dev/null" for unit in _MASKED}
    generators = "/etc/systemd/system-generators"
    tree.links |= {f"{generators}/systemd-{name}-generator": "/dev/null" for name in _MASKED_GENERATORS}
    tree.links[f"{units}/default.target"] = "/lib/systemd/system/multi-user.target"
    tree.put(f"/etc/sudoers.d/{USER}", f"{USER} ALL=(ALL:ALL) NOPASSWD: ALL", 0o440)
    tree.put("/etc/ssh/sshd_config.d/l40s-lab.conf", _SSHD.encode())
    tree.put("/etc/security/limits.d/l40s-lab.conf", _limits(node).encode())
    return tree


def _limits(node: NodeMachine) -> str:
    """Session limits (limits.conf(5)), as far as they can be set: else pam_limits would refuse the session."""
    memlock, nofile = session_limits(node.machine.system).values()
    kib = "unlimited" if memlock == resource.RLIM_INFINITY else str(memlock // 1024)
    return "".join(f"{who} - memlock {kib}\n{who} - nofile {nofile}\n" for who in ("*", "root"))
