"""A gang whose nodes talk over TCP because they have nothing else, or because the inventory asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import Area
from orchestrator.planning.transport import ASKED, TCP, over_tcp
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id=TCP,
    title="traffic between the nodes uses TCP",
    explain=(
        "NCCL needs one network on all ranks, so if one node has no RDMA device, all nodes of the gang use TCP."
        " Severity: slow where tensor parallelism crosses nodes, note where only pipeline stages do. The rule uses"
        " the running layout, else the plan's, else tensor parallelism over all nodes. TRAFFIC-ON-TCP reports a node"
        " with cards but no usable port."
    ),
    reads=("/sys/class/infiniband", "l40s_transport", "the layout of the running gang"),
    source="NCCL src/plugin/net.cc (one network for a communicator); the articles' third fault",
    weight=13,
    needs=(Area.PCI, Area.RDMA),
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding on each node without an RDMA device; on the leader where the inventory asks for TCP; a note on what
    NCCL's own file shows."""
    yield from (_as_nccl_wrote(node) for node in cluster.nodes if node.topology.sockets)
    for gang in () if cluster.saved else cluster.gangs:
        name = gang[0].spec.gang
        if cluster.is_alone(name) or _on_cpu(cluster, gang):
            continue
        layout = cluster.layouts.get(name)
        asked = {node.spec.transport for node in gang}
        if asked == {"tcp"}:
            yield over_tcp(name, ASKED, layout, node=gang[0].name)
        elif "tcp" not in asked:
            without = (node for node in gang if not node.topology.rdma)
            yield from (over_tcp(name, "it has no RDMA device", layout, node=node.name) for node in without)


def _as_nccl_wrote(node: Node) -> Finding:
    names = node.topology.sockets
    return Finding(
        id=RULE.id,
        severity=Severity.NOTE,
        node=node.name,
        devices=names,
        title=f"NCCL used TCP: this topology lists {len(names)} socket{'s' * (len(names) > 1)} as its network",
        evidence=(f'<net port="0">: {", ".join(names)}',),
        effect="whether the node has RDMA ports too is not known: NCCL writes those that it uses",
        fix="run `l40s-deploy doctor` on the node itself, which shows its RDMA ports",
    )


def _on_cpu(cluster: Cluster, gang: Sequence[Node]) -> bool:
    """An engine on CPU talks by Gloo, which knows no RDMA."""
    return any(stack.device == "cpu" for node in gang if (stack := cluster.stacks.get(node.name)))
