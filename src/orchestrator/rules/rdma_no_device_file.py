"""RDMA cards that the kernel knows and that a program can't open."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS
from orchestrator.rules.support.cluster import Cluster
from orchestrator.rules.support.registry import Rule, unjudged

RULE = Rule(
    id="RDMA-NO-DEVICE-FILE",
    title="RDMA device files or libraries are missing where the engine will run",
    explain=(
        "libibverbs opens /dev/infiniband/uverbsN. A container must be given these files; on a host, ib_uverbs must"
        " be loaded. Without the library, NCCL finds no RDMA device."
    ),
    reads=("/sys/class/infiniband_verbs/*/ibdev", "names in /dev/infiniband", "dlopen of libibverbs.so.1"),
    source="rdma-core libibverbs; sglang issue 1427 (libibverbs missing in the runtime)",
    weight=16,
    needs=RAILS,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """Stop, once a node, where the probe listed the device files and RDMA is wanted."""
    for node in cluster.nodes:
        files = node.snapshot.host.get("devices")
        if not isinstance(files, (list, tuple)) or node.spec.transport == "tcp":
            continue
        if why := node.snapshot.host.get("devices_error"):
            yield unjudged(RULE, node, "the device files", (str(why),))
            continue
        meant = {port.device for port in node.rail_ports}
        missing = {}
        for name in node.snapshot.names("/sys/class/infiniband_verbs"):
            device = node.snapshot.text(f"/sys/class/infiniband_verbs/{name}/ibdev")
            if device in meant and f"/dev/infiniband/{name}" not in files:
                missing[device] = f"/dev/infiniband/{name} ({device}): does not exist"
        library = node.snapshot.host.get("libibverbs")
        evidence = list(missing.values())
        if meant and library is False:
            evidence.append("dlopen libibverbs.so.1: no such library")
        if evidence:
            yield Finding(
                id=RULE.id,
                severity=Severity.STOP,
                node=node.name,
                devices=tuple(missing) or ("libibverbs.so.1",),
                title=f"{', '.join(missing)} can't be opened: no device file" if missing else "libibverbs is missing",
                evidence=tuple(evidence),
                effect="NCCL finds no RDMA device and the gang fails to start (NCCL_NET=IB), or falls back to TCP",
                fix="run `sudo modprobe ib_uverbs`; in a container, add --device=/dev/infiniband"
                if missing
                else "run `sudo apt install libibverbs1 ibverbs-providers`",
            )
