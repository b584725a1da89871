"""A limit on the processor time of a node: of its control group in the v2 tree where that has the controller, else of
one beside it in the v1 tree, which is made for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from l40s_lab.namespaces import cgroups
from l40s_lab.processes import Identity, wait_until

PERIOD_US = 100_000
"""As is usual: a node that has used its share stands still for the rest of it."""
_MOVES_S = 5.0


def limit(mark: str, group: Path, share: float, processes: Callable[[], Iterable[Identity]]) -> Path:
    """Give a node this share of one processor's time; returns what `lift` needs. Raises OSError where no tree has the
    controller.

    mark: the lab's; group: the node's in the v2 tree; processes: those of the node, now
    """
    quota = int(PERIOD_US * share)
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        return group
    folder = cgroups.of_lab(mark, cgroups.v1_of_cpu()) / group.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (folder / "cpu.cfs_quota_us").write_text(str(quota))
    wait_until(lambda: not _moved((one.pid for one in processes()), folder), deadline_s=_MOVES_S)
    return folder


def lift(folder: Path) -> None:
    """The end of a limit; a node that was switched off meanwhile has no such group in the v2 tree."""
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"max {PERIOD_US}")
    elif (folder / "cgroup.procs").exists():
        tree = cgroups.v1_of_cpu()
        wait_until(lambda: not _moved(_members(folder), tree), deadline_s=_MOVES_S)
        folder.rmdir()
        with suppress(OSError):  # another node of the lab has one
            folder.parent.rmdir()


def _moved(pids: Iterable[int], folder: Path) -> int:
    """How many processes were moved that were not there: their children may have begun before."""
    there, moved = set(_members(folder)), 0
    for pid in pids:
        if pid not in there:
            with suppress(ProcessLookupError):
                (folder / "cgroup.procs").write_text(str(pid))
                moved += 1
    return moved


def _members(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
