"""RDMA ports that NCCL has left behind while a gang serves: which, what it costs, and what brings them back. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.protocol.report import Rail, Report
from orchestrator.topology.speed import Traffic, price


def words(node: str, report: Report) -> Iterator[str]:
    """One sentence a port; NCCL's word alone where no port of this node is down: the other end's may be."""
    for rail in report.rails:
        yield f"{node}: {sentence(rail, report.gang)}"
    if report.moved and not report.rails:
        yield (
            f"{node}: NCCL moved connections to the other port of a card, and this node's own ports are up:"
            " another node's port may have failed"
        )


def sentence(rail: Rail, gang: str) -> str:
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
    """The command that has NCCL use a port again. Not --maintenance, which waits for a reboot: nothing is to be done on
    the nodes."""
    return f"l40s-deploy restart --gang {gang}"
