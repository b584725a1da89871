"""`lab down`: removes a lab completely, whatever its state."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path

from l40s_lab import loopback
from l40s_lab.life.home import Home, held, home
from l40s_lab.life.request import check_name
from l40s_lab.namespaces import cgroups
from l40s_lab.namespaces.links import host_alias
from l40s_lab.processes import wait_until
from orchestrator.protocol.errors import NodeError

_DEADLINE_S = 20.0


def down(name: str) -> bool:
    """Remove a lab; False if there was none. Raises DeployError."""
    check_name(name)
    with held():
        place = home(name)
        if not place.path.exists() and not place.strays():
            return False
        remove(place)
        return True


def remove(place: Home) -> None:
    """End all processes below the lab's supervisor, then delete its files. The caller holds the lock."""
    blueprint = place.blueprint()
    supervisor = place.supervisor()
    if supervisor and blueprint and blueprint.level == 0:
        loopback.ask_to_end(supervisor)
    for process in (*([supervisor] if supervisor else []), *place.strays()):
        if not process.end(deadline_s=_DEADLINE_S):
            raise NodeError(
                f"process {process.pid} does not end",
                where=f"lab {place.name}",
                fix="check it with `ps`: it hangs in the kernel",
            )
    loopback.end_marked(str(place.path), deadline_s=_DEADLINE_S)
    if (blueprint is None or blueprint.level == 2) and not cgroups.remove(place.mark, deadline_s=_DEADLINE_S):
        raise NodeError(
            "the lab's control groups can't be removed",
            where=f"lab {place.name}",
            fix=f"find the process that is still in l40s-lab-{place.mark}:"
            f" `grep -l l40s-lab-{place.mark} /proc/*/cgroup`",
        )
    _remove_links(host_alias(place.mark))
    if place.path.exists():
        shutil.rmtree(place.path)


def _remove_links(alias: str) -> None:
    """The kernel removes a lab's link with its namespace, but a little later; we don't wait for that."""
    for link in _links(alias):
        subprocess.run(["ip", "link", "delete", link], capture_output=True, check=False, timeout=10)
        if not wait_until(partial(_is_gone, link), deadline_s=_DEADLINE_S):
            raise NodeError(f"the link {link} can't be removed", where="ip link", fix=f"run `ip link delete {link}`")


def _is_gone(link: str) -> bool:
    return not Path(f"/sys/class/net/{link}").exists()


def _links(alias: str) -> list[str]:
    """This machine's interfaces with a lab's mark; `ifalias` in sysfs is empty for others."""
    found = []
    for place in Path("/sys/class/net").glob("*/ifalias"):
        with suppress(OSError):  # it is gone meanwhile
            if place.read_text().strip() == alias:
                found.append(place.parent.name)
    return found
