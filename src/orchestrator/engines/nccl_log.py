"""Proof of transport: what NCCL says that it uses, against what was planned.

Its lines: `NET/IB : Using`, `Using network`, `Channel ... via NET/...` and `comm ... nNodes`, from NCCL
src/transport/net_ib, src/plugin/net.cc, src/transport/net.cc and src/init.cc, as 2.18 to 2.30 write them: 2.20 to 2.22
merge the ports of a card in `Using`, newer ones in `Made virtual device`; a network plugin has a name of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.model.finding import Finding
from orchestrator.protocol.planned import Layout, NodeNetwork
from orchestrator.protocol.severity import Severity
from orchestrator.topology.nccl_devices import each_once, opened
from orchestrator.topology.speed import Traffic, price_of, tcp_severity

_NETWORK = re.compile(r"^Using network (\w[\w .-]{0,62}\w)")
_CHANNEL = re.compile(r"^Channel \d+/\d+ : .* via NET/([^/]{1,64})/\d+(?:\(\d+\))?(/GDRDMA)?")
_TCP = re.compile(r"socket|tcp", re.IGNORECASE)
"""In the name of a network: Socket, FastSocket, GPUDirectTCPX. Other plugins (IBext, UCX, AWS Libfabric) are RDMA."""
_COMM = re.compile(r"^comm .*nRanks (\d+) nNodes (\d+) localRanks (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTransport:
    """One node's part of a start.

    networks:  every network that a communicator of several nodes took: IB, Socket, or a plugin's name
    devices:   RDMA ports that NCCL opened, as mlx5_0:1
    direct:    channels between nodes with GPUDirect RDMA, and staged: those without
    nodes, local_ranks: as NCCL counts them in the largest communicator; 0 where it does not say
    """

    networks: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    direct: int = 0
    staged: int = 0
    nodes: int = 0
    local_ranks: int = 0

    @property
    def words(self) -> str:
        """'IB over mlx5_0:1, mlx5_1:1 with GPUDirect RDMA'."""
        over = f" over {', '.join(self.devices)}" if self.devices else ""
        rdma = any(not _TCP.search(network) for network in self.networks)
        direct = " with GPUDirect RDMA" if self.direct and not self.staged else ""
        without = " without GPUDirect RDMA" if rdma and self.staged and not self.direct else ""
        return f"{' and '.join(self.networks) or 'an unknown network'}{over}{direct or without}"


def read(lines: Iterable[str]) -> NcclTransport:
    """Out of NCCL's lines, without the words before `NCCL INFO` and including it or not."""
    networks: dict[str, None] = {}
    direct = staged = 0
    largest = (0, 0, 0)
    messages = [raw.partition("NCCL INFO ")[2] or raw for raw in lines]
    for line in messages:
        if match := _NETWORK.match(line):
            networks.setdefault(match.group(1))
        elif match := _CHANNEL.match(line):
            networks.setdefault(match.group(1))
            direct, staged = (direct + 1, staged) if match.group(2) else (direct, staged + 1)
        elif match := _COMM.match(line):
            ranks, nodes, local = map(int, match.groups())
            largest = max(largest, (ranks, nodes, local))
    return NcclTransport(
        networks=tuple(networks),
        devices=each_once(opened(messages).values()),
        direct=direct,
        staged=staged,
        nodes=largest[1],
        local_ranks=largest[2],
    )


def findings(
    node: str, planned: NodeNetwork, lines: Iterable[str], layout: Layout | None = None, model: str = ""
) -> tuple[Finding, ...]:
    """What differs from an RDMA plan, with its price; nothing where TCP was planned.

    layout, model: what the gang runs, where it is known: see `price_of`
    """
    return tuple(_differences(node, planned, read(lines), layout, model)) if planned.rdma else ()


def _differences(
    node: str, planned: NodeNetwork, seen: NcclTransport, layout: Layout | None, model: str
) -> Iterator[Finding]:
    if not seen.networks:
        yield Finding(
            id="TRANSPORT-UNPROVEN",
            severity=Severity.UNKNOWN,
            node=node,
            title="NCCL did not log which network it uses",
            effect="a fallback to TCP would go unnoticed",
            fix="set NCCL_DEBUG to INFO, and include INIT and NET in NCCL_DEBUG_SUBSYS",
        )
        return
    if wrong := [network for network in seen.networks if _TCP.search(network)]:
        yield Finding(
            id="TRANSPORT-NOT-RDMA",
            severity=tcp_severity(layout),
            node=node,
            title=f"the plan is RDMA, but NCCL uses {', '.join(wrong)}",
            evidence=(f"NCCL: Using network {wrong[0]}",),
            effect=price_of(Traffic.TCP, layout, model),
            fix="read the NET/IB lines before it (`l40s-deploy logs`), and run `l40s-deploy doctor`",
        )
        return
    yield from _unused(node, planned, seen, layout, model)
    if seen.staged:
        yield Finding(
            id="TRANSPORT-NO-GDR",
            severity=Severity.SLOW,
            node=node,
            title="channels between nodes do not use GPUDirect RDMA" + (" in part" if seen.direct else ""),
            evidence=("NCCL: Channel ... via NET/IB without /GDRDMA",),
            effect=price_of(Traffic.HOST_STAGED, layout, model),
            fix="load nvidia-peermem, or use NVIDIA's open kernel module (dma-buf); see `l40s-deploy doctor`",
        )


def _unused(
    node: str, planned: NodeNetwork, seen: NcclTransport, layout: Layout | None, model: str
) -> Iterator[Finding]:
    """Ports of the plan that NCCL did not open."""
    wanted = [name if ":" in name else f"{name}:1" for name in planned.ports]
    if missing := [port for port in wanted if port not in seen.devices]:
        yield Finding(
            id="TRANSPORT-DEVICE-UNUSED",
            severity=Severity.SLOW,
            node=node,
            devices=tuple(missing),
            title=f"NCCL did not open {', '.join(missing)}, which the plan uses",
            evidence=(f"NCCL: NET/IB : Using {', '.join(seen.devices) or 'nothing'}",),
            effect=price_of(Traffic.HALF_THE_PORTS, layout, model),
            fix="check the port with `l40s-deploy doctor`; if it is gone for good, plan again",
        )
