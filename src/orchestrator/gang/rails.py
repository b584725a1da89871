"""Whether a gang's traffic takes the planned path, by its layout; RDMA ports that NCCL no longer uses. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchestrator.engines.nccl_log import findings
from orchestrator.model.finding import Finding
from orchestrator.protocol.planned import Layout, Transport
from orchestrator.protocol.report import RailChange, RankReport, Report
from orchestrator.topology.speed import Traffic, price


def words(node: str, report: Report) -> Iterator[str]:
    """One sentence per port; only NCCL's report if no port of this node is down: the other end's may be."""
    for rail in report.rails:
        yield f"{node}: {sentence(rail, report.gang)}"
    if report.moved and not report.rails:
        yield (
            f"{node}: NCCL moved connections to the other port of a card, and this node's own ports are up:"
            " another node's port may have failed"
        )


def sentence(rail: RailChange, gang: str) -> str:
    """Without the node: 'RDMA port mlx5_1:1 is down, ...'."""
    if rail.up:
        return (
            f"RDMA port {rail.port} is back, but NCCL uses it only after a restart: run `{restart_of(gang)}` when it"
            " suits you, with --rolling where other gangs serve behind the router"
        )
    return (
        f"RDMA port {rail.port} is down; NCCL continues over the other port of its card (not measured on this"
        f" hardware). {price(Traffic.HALF_THE_PORTS)}"
    )


def restart_of(gang: str) -> str:
    """The command that makes NCCL use a port again. Not --maintenance, which waits for a reboot: the nodes need no
    work."""
    return f"l40s-deploy restart {gang}"


def planned_tcp(reports: Mapping[str, Report]) -> str:
    """Says that traffic between the nodes travels over TCP because the plan wants it; '' where it does not."""
    planned = [report.transport.network for report in reports.values() if report.transport is not None]
    if len(reports) < 2 or not any(network.transport is Transport.TCP for network in planned):
        return ""
    over = ", ".join(dict.fromkeys(name for network in planned for name in network.sockets or (network.interface,)))
    return f"traffic between the nodes travels over TCP{f' ({over})' if over else ''}, as the plan says"


def transport(reports: Mapping[str, Report]) -> tuple[Finding, ...]:
    """Findings of all nodes; none for a gang of one node, or if the engine uses no GPUs."""
    if len(reports) < 2:
        return ()
    complete = all(report.nnodes in (0, len(reports)) for report in reports.values())
    layout = layout_of([report.ranks for report in reports.values()]) if complete else None
    return tuple(
        finding
        for name, report in reports.items()
        if report.transport is not None and report.transport.network.logged
        for finding in findings(name, report.transport.network, report.transport.lines, layout, report.model)
    )


def layout_of(nodes: Sequence[Sequence[RankReport]]) -> Layout | None:
    """nodes: the ranks of each. TP ranks restart at 0 in every pipeline stage. Degrees that don't divide ranks among
    processes (experts, attention) can't be seen. None if a node reports no ranks: it may hold any."""
    if not nodes or not all(nodes):
        return None
    tensor = 1 + max(rank.tp_rank for ranks in nodes for rank in ranks)
    return Layout(
        tensor_parallel=tensor,
        pipeline_parallel=max(1, sum(map(len, nodes)) // tensor),
        nnodes=len(nodes),
        gpus_per_node=max(map(len, nodes)),
    )
