"""The model root is on a network file system: a cold start may take longer than the engine waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="MODEL-ROOT-REMOTE",
    title="the model root is on a network file system",
    explain=(
        "At TP32 every node reads about half of a checkpoint, all at once from one server. SGLang 0.5.23 exits when a"
        " rank has waited 480 s for the others to load (0.4.4: 300 s), and no flag changes that."
    ),
    reads=("/proc/mounts", "l40s_model_root of the inventory"),
    source="sglang 0.5.23 srt/model_executor/model_runner_components/load_model_utils.py and 0.4.4 model_runner.py, "
    "UNBALANCED_MODEL_LOADING_TIMEOUT_S; PR 39629: 539 GB, four nodes, one NFS server: 290 s warm, over 480 s cold",
    weight=60,
)
_REMOTE = ("nfs", "cifs", "smb", "ceph", "lustre", "beegfs", "glusterfs", "gpfs", "9p", "virtiofs", "fuse.")
"""Beginnings of file system types whose bytes come over a network, or from a host behind us."""


class _Mount(NamedTuple):
    source: str
    point: str
    kind: str


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node whose model root is mounted from elsewhere."""
    for node in cluster.nodes:
        mount = _mount_of(node.snapshot.text("/proc/mounts"), node.spec.model_root)
        if mount is None or not mount.kind.startswith(_REMOTE):
            continue
        yield Finding(
            id=RULE.id,
            severity=Severity.NOTE,
            node=node.name,
            devices=(mount.point,),
            title=f"model root {node.spec.model_root} is on {mount.kind} from {mount.source}",
            evidence=(f"/proc/mounts: {mount.source} {mount.point} {mount.kind}",),
            effect="all nodes load from one server; the engine exits if one rank is 480 s behind the others, which a"
            " cold cache can cause",
            fix="copy the checkpoint to local disks with `l40s-deploy checkpoint push`, or read the files on every"
            " node before `up`: `cat MODEL/*.safetensors >/dev/null`",
        )


def _mount_of(mounts: str, path: str) -> _Mount | None:
    """The mount that a path is on: the longest mount point above it, the last of several at one place."""
    found: _Mount | None = None
    for line in mounts.splitlines():
        fields = [_plain(field) for field in line.split(" ")]
        if len(fields) < 3:
            continue
        mount = _Mount(*fields[:3])
        above = mount.point.rstrip("/") + "/"
        if f"{path.rstrip('/')}/".startswith(above) and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def _plain(field: str) -> str:
    """proc(5) and getmntent(3): blanks and backslashes are written in octal."""
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
