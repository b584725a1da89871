"""Limits too small for RDMA and for a gang's files, judged where the engine will run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.snapshot import Snapshot
from orchestrator.rules.cluster import Cluster
from orchestrator.rules.registry import Rule

RULE = Rule(
    id="LIMITS",
    title="a limit is too small for the engine",
    explain=(
        "RDMA pins memory: without an unlimited memlock, registration fails inside NCCL. Under systemd the engine's "
        "unit sets its own limits, so the session's do not matter there."
    ),
    reads=("RLIMIT_MEMLOCK, RLIMIT_NOFILE of the probing process", "/run/systemd/system", "size of /dev/shm"),
    source="NCCL troubleshooting guide (memlock, shm); design of the agent's unit (LimitMEMLOCK=infinity)",
    weight=6,
)
UNLIMITED = -1
SMALLEST_SHM = 1 << 30
FEWEST_FILES = 65536


def check(cluster: Cluster) -> Iterator[Finding]:
    """memlock stops a gang that needs RDMA; a small /dev/shm stops any; few files are worth a note."""
    for name, topology, snapshot in cluster.nodes:
        limits = snapshot.host.get("limits") or {}
        has_unit = snapshot.exists("/run/systemd/system") or bool(snapshot.host.get("systemd"))
        memlock, files = _hard(limits, "memlock"), _hard(limits, "nofile")
        if not has_unit and topology.rdma and memlock is not None and memlock != UNLIMITED:
            yield _memlock(name, memlock)
        if not has_unit and files is not None and 0 <= files < FEWEST_FILES:
            yield _files(name, files)
        yield from _shm(name, snapshot)


def _hard(limits: Any, which: str) -> int | None:
    value = limits.get(which) if isinstance(limits, dict) else None
    if isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[1], int):
        return value[1]
    return None


def _memlock(name: str, found: int) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.STOP,
        node=name,
        devices=("memlock",),
        title=f"memlock is limited to {found >> 10} KiB",
        evidence=(f"RLIMIT_MEMLOCK (hard) = {found}",),
        effect="NCCL can't register memory with the RDMA cards: ncclSystemError at the first collective",
        fix="'* - memlock unlimited' in /etc/security/limits.d/l40s.conf, log in again; or LimitMEMLOCK=infinity",
    )


def _files(name: str, found: int) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.NOTE,
        node=name,
        devices=("nofile",),
        title=f"at most {found} open files",
        evidence=(f"RLIMIT_NOFILE (hard) = {found}",),
        effect="many connections at once can run out of descriptors",
        fix="'* - nofile 1048576' in /etc/security/limits.d/l40s.conf",
    )


def _shm(name: str, snapshot: Snapshot) -> Iterator[Finding]:
    size = snapshot.host.get("shm_bytes")
    if isinstance(size, int) and 0 < size < SMALLEST_SHM:
        yield Finding(
            id=RULE.id,
            severity=Severity.STOP,
            node=name,
            devices=("/dev/shm",),  # noqa: S108
            title=f"/dev/shm has {size >> 20} MiB, 1 GiB is wanted",  # noqa: S108
            evidence=(f"statvfs /dev/shm = {size} bytes",),
            effect="NCCL and the engine's processes share memory there: 'unhandled system error' or a bus error",
            fix="mount -o remount,size=16G /dev/shm (in a container: --shm-size 16g or --ipc host)",
        )
