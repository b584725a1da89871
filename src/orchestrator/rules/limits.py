"""Limits too small for RDMA and for a gang's files, judged where the engine will run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS
from orchestrator.rules.support.cluster import Cluster, Node, whole
from orchestrator.rules.support.registry import Rule, unjudged

RULE = Rule(
    id="LIMITS",
    title="a resource limit is too low for the engine",
    explain=(
        "RDMA pins memory: without an unlimited memlock, registration fails inside NCCL. The rule checks the limits"
        " that the engine will have. Under systemd its unit sets them (root only); elsewhere the node agent raises"
        " them as far as allowed, and the probe tries the same in its own process."
    ),
    reads=("RLIMIT_MEMLOCK, RLIMIT_NOFILE, RLIMIT_STACK of the probe", "/run/systemd/system", "size of /dev/shm"),
    source="NCCL troubleshooting guide (memlock, shm, stack); the agent's unit (LimitMEMLOCK=infinity)",
    weight=6,
)
_ASKED = ("systemd", "uid", "limits_attainable")
UNLIMITED = -1
SMALLEST_SHM = 1 << 30
FEWEST_FILES = 65536


def check(cluster: Cluster) -> Iterator[Finding]:
    """memlock stops a gang that needs RDMA; a small /dev/shm stops any; few files and an endless stack are notes."""
    for node in cluster.nodes:
        if not _unit_sets_them(node):
            yield from _memlock(node)
            yield from _files(node)
        yield from _stack(node)
        yield from _shm(node)


def _unit_sets_them(node: Node) -> bool:
    """The agent is a unit where systemd runs and the agent is root."""
    return bool(node.snapshot.host.get("systemd")) and node.snapshot.host.get("uid") == 0


def _attainable(node: Node, which: str) -> int | None:
    """What the engine can have: what the probe could raise its limit to, else its hard limit; None where not read."""
    for key in ("limits_attainable", "limits"):
        limits = node.snapshot.host.get(key)
        value = limits.get(which) if isinstance(limits, Mapping) else None
        if isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[1], int):
            return value[1]
    return None


def _memlock(node: Node) -> Iterator[Finding]:
    found = _attainable(node, "memlock")
    if found is None or found == UNLIMITED or not node.rail_ports or node.spec.transport == "tcp":
        return
    unread = [str(one) for one in node.topology.lacks(*RAILS)]
    unread += [f"{name}: not collected" for name in _ASKED if name not in node.snapshot.host]
    if unread:
        yield unjudged(RULE, node, "what the limits depend on", unread)
        return
    yield Finding(
        id=RULE.id,
        severity=Severity.STOP,
        node=node.name,
        devices=("memlock",),
        title=f"memlock is {found >> 10} KiB where the engine will run; RDMA needs unlimited",
        evidence=(f"RLIMIT_MEMLOCK, raised as far as allowed = {found}", *_where(node)),
        effect="NCCL can't register memory with the RDMA cards: ncclSystemError in the first collective",
        fix="run `l40s-deploy prepare --tags limits`; in a service of your own, set LimitMEMLOCK=infinity",
    )


def _where(node: Node) -> Iterator[str]:
    user = node.snapshot.host.get("user")
    systemd = "runs" if node.snapshot.host.get("systemd") else "does not run"
    yield f"user = {user or 'unknown'}, systemd {systemd} here"


def _files(node: Node) -> Iterator[Finding]:
    found = _attainable(node, "nofile")
    if found is not None and 0 <= found < FEWEST_FILES:
        yield Finding(
            id=RULE.id,
            severity=Severity.NOTE,
            node=node.name,
            devices=("nofile",),
            title=f"at most {found} files may be open; 1048576 is recommended",
            evidence=(f"RLIMIT_NOFILE, raised as far as allowed = {found}",),
            effect="the engine can run out of file descriptors with many connections",
            fix="run `l40s-deploy prepare --tags limits`",
        )


def _stack(node: Node) -> Iterator[Finding]:
    limits = node.snapshot.host.get("limits")
    stack = limits.get("stack") if isinstance(limits, Mapping) else None
    if isinstance(stack, (list, tuple)) and stack and stack[0] == UNLIMITED:
        yield Finding(
            id=RULE.id,
            severity=Severity.NOTE,
            node=node.name,
            devices=("stack",),
            title="the thread stack size is unlimited",
            evidence=("RLIMIT_STACK (soft) = unlimited",),
            effect="each NCCL thread may reserve a large amount of memory for its stack",
            fix="set `ulimit -s 8192` for the engine's user",
        )


def _shm(node: Node) -> Iterator[Finding]:
    size = whole(node.snapshot.host.get("shm_bytes"))
    if 0 < size < SMALLEST_SHM:
        yield Finding(
            id=RULE.id,
            severity=Severity.STOP,
            node=node.name,
            devices=("/dev/shm",),  # noqa: S108
            title=f"/dev/shm has {size >> 20} MiB, 1 GiB is needed",  # noqa: S108
            evidence=(f"statvfs /dev/shm = {size} bytes",),
            effect="NCCL and the engine's processes share memory there: they fail with 'unhandled system error' or a"
            " bus error",
            fix="run `mount -o remount,size=16G /dev/shm` (in a container: --shm-size 16g or --ipc host)",
        )
