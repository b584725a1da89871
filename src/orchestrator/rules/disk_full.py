"""File systems without the room that a gang needs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from orchestrator.model.finding import Finding, Severity
from orchestrator.planning.options import HostFacts
from orchestrator.planning.places import state_dir
from orchestrator.rules.support.cluster import Cluster, Node, whole
from orchestrator.rules.support.registry import Rule

MIB, GIB = 1 << 20, 1 << 30

RULE = Rule(
    id="DISK-FULL",
    title="a file system has too little free space for a gang",
    explain=(
        "Checks the file systems of /, /tmp, the state directory (runs, logs, caches of compiled kernels) and the"
        " model root. Less than 64 MiB where a start writes is a stop. The state directory should have 4 GiB (each of"
        " five runs keeps up to 128 MiB of its engine's log; the rest is for compiled kernels), / and /tmp 1 GiB"
        " each. A full model root still serves the checkpoints it holds, but accepts no push; `checkpoint push`"
        " itself compares the free space with the checkpoint's size."
    ),
    reads=("statvfs of /, /tmp, the state directory and l40s_model_root",),
    source="statvfs(3), f_bavail; LOG_LIMIT of protocol/staging.py, RUNS_KEPT of node/verbs/stage.py; the space for"
    " compiled kernels is an allowance, not measured",
    weight=7,
)


class _Need(NamedTuple):
    """least: bytes below which a start fails; wanted: bytes below which there is a note; holds: its contents."""

    least: int
    wanted: int
    holds: str


_NEEDS = {
    "root": _Need(64 * MIB, GIB, "the system"),
    "tmp": _Need(64 * MIB, GIB, "temporary files"),
    "state": _Need(64 * MIB, 4 * GIB, "runs, logs and caches"),
    "models": _Need(0, GIB, "models"),
}


class _Room(NamedTuple):
    place: str
    path: str
    size: int
    free: int
    device: int

    @property
    def stops(self) -> bool:
        return self.free < _NEEDS[self.place].least


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a file system: no start succeeds on a full one, little room is noted."""
    for node in cluster.nodes:
        disks = node.snapshot.host.get("disks")
        if isinstance(disks, Mapping):
            yield from _judged(node, disks)


def _judged(node: Node, disks: Mapping[str, object]) -> Iterator[Finding]:
    paths = _paths(node)
    file_systems: dict[int, list[_Room]] = {}
    for place in _NEEDS:
        said = disks.get(place)
        if not isinstance(said, Mapping):
            continue
        if "error" in said:
            yield _unread(node, paths[place], said["error"])
        elif whole(said.get("bytes")) > 0 and {"free_bytes", "device"} <= said.keys():
            room = _Room(place, paths[place], *(whole(said.get(name)) for name in ("bytes", "free_bytes", "device")))
            file_systems.setdefault(room.device, []).append(room)
    for rooms in file_systems.values():
        short = [room for room in rooms if room.free < _NEEDS[room.place].wanted]
        if short:
            yield _short(node, short)


def _paths(node: Node) -> Mapping[str, str]:
    host = node.snapshot.host
    facts = HostFacts(user=str(host.get("user") or ""), home=str(host.get("home") or ""))
    return {"root": "/", "tmp": "/tmp", "state": state_dir(node.spec, facts), "models": node.spec.model_root}  # noqa: S108


def _short(node: Node, rooms: list[_Room]) -> Finding:
    stops = any(room.stops for room in rooms)
    first = rooms[0]
    wanted = sum(_NEEDS[room.place].wanted for room in rooms)
    held = ", ".join(f"{_NEEDS[room.place].holds} ({room.path})" for room in rooms)
    used = 100 * (first.size - first.free) // first.size
    return Finding(
        id=RULE.id,
        severity=Severity.STOP if stops else Severity.NOTE,
        node=node.name,
        devices=tuple(room.path for room in rooms),
        title=f"{first.path} is {used} % full: {_size(first.free)} of {_size(first.size)} free, {_size(wanted)}"
        f" needed for {held}",
        evidence=tuple(f"statvfs {room.path}: {room.free} of {room.size} bytes free" for room in rooms),
        effect="no run can be staged, and a running engine loses its log and its compiled kernels"
        if stops
        else "it may fill up while a gang runs, or during the next push",
        fix="free space there; find the largest directories with"
        f" `du -xh --max-depth=2 {shlex.quote(first.path)} | sort -h`"
        + ("; or set l40s_state_dir to a larger disk" if any(room.place == "state" for room in rooms) else ""),
    )


def _unread(node: Node, path: str, error: object) -> Finding:
    hangs = error == "ETIMEDOUT"
    return Finding(
        id=RULE.id,
        severity=Severity.UNKNOWN,
        node=node.name,
        devices=(path,),
        title=f"the free space of {path} could not be read" + (": its file system does not respond" if hangs else ""),
        evidence=(f"statvfs {path}: {error}",),
        effect="it is not known whether there is enough free space",
        fix=f"run `df -h {shlex.quote(path)}` on the node",
    )


def _size(number: int) -> str:
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / MIB:.0f} MiB"
