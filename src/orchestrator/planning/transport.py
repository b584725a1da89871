"""RDMA or TCP between a gang's nodes: what the inventory asks, what the facts allow, which network is fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.model.errors import FindingsError, InputError
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.inventory import GangSpec
from orchestrator.model.plan import GangPlan
from orchestrator.model.profile import ModelProfile
from orchestrator.model.topology import Topology
from orchestrator.planning.choices import RdmaChoice, not_read
from orchestrator.protocol.layout import Layout
from orchestrator.protocol.network import Transport
from orchestrator.topology.network import SharedWay, shared_networks
from orchestrator.topology.speed import Traffic, price, tcp_severity

TCP = "TRANSPORT-TCP"
_PCIE_IPC = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
ASKED = "the inventory asks for it"


@dataclass(frozen=True, slots=True)
class TransportDecision:
    """One transport for the entire gang, why, and what an operator should know about it."""

    transport: Transport
    reason: str
    findings: tuple[Finding, ...] = ()


def decide(gang: GangSpec, rdma: Mapping[str, RdmaChoice], layout: Layout | None = None) -> TransportDecision:
    """rdma: the choice of every node whose facts were read; layout: see `topology.speed.tcp_severity`.

    Raises FindingsError where RDMA is demanded and a node has no usable port, InputError where the nodes of the gang
    ask for different transports, NodeError where a node's ports were not all read.
    """
    wanted = _asked(gang)
    if len(gang.nodes) == 1:
        return TransportDecision(Transport.NONE, "one node: NCCL stays inside it")
    if wanted == "tcp":
        return TransportDecision(Transport.TCP, "l40s_transport is tcp", (over_tcp(gang.name, ASKED, layout),))
    _refuse_unread(rdma)
    without = [node.name for node in gang.nodes if node.name in rdma and not rdma[node.name].ports]
    unread = [node.name for node in gang.nodes if node.name not in rdma]
    if wanted == "rdma" and without:
        raise FindingsError(
            f"l40s_transport is rdma, but {without[0]} has no usable port: {rdma[without[0]].reason}",
            where=f"node {without[0]}",
            fix="bring its RDMA ports up (`l40s-deploy doctor` shows how), or set `l40s_transport: auto`",
        )
    if wanted == "auto" and (unread or without):
        return _instead(gang, layout, unread, {name: rdma[name].reason for name in without})
    usable = ", and every node has usable RDMA ports" if wanted == "auto" else ""
    return TransportDecision(Transport.RDMA, f"l40s_transport is {wanted}{usable}", _uneven(gang, rdma))


def _asked(gang: GangSpec) -> str:
    asked = {node.transport for node in gang.nodes}
    if len(asked) > 1:
        each = ", ".join(f"{node.name} {node.transport}" for node in gang.nodes)
        raise InputError(
            f"the nodes of gang {gang.name} have different transports: {each}",
            where="inventory: l40s_transport",
            fix="set the same l40s_transport for all nodes of the gang",
        )
    return asked.pop()


def _instead(
    gang: GangSpec, layout: Layout | None, unread: Sequence[str], without: Mapping[str, str]
) -> TransportDecision:
    """TCP, since the facts of nodes were not read, or have no usable port. without: why, by node"""
    if unread:
        why = f"{', '.join(unread)} could not be read"
        reason = f"l40s_transport is auto, and {why}"
    else:
        why = next(f"{name}: {reason}" for name, reason in without.items())
        reason = f"l40s_transport is auto; {why}"
    return TransportDecision(Transport.TCP, reason, (over_tcp(gang.name, why, layout),))


def _refuse_unread(rdma: Mapping[str, RdmaChoice]) -> None:
    for name, choice in rdma.items():
        if choice.unread:
            unknown = "which of its RDMA ports can be used"
            raise not_read(name, choice.unread, unknown, "set l40s_ib_hca, or `l40s_transport: tcp`")


def over_tcp(gang: str, why: str, layout: Layout | None, *, node: str = "") -> Finding:
    """The one verdict of `doctor`, `plan` and `up --strict` on a gang whose nodes talk over TCP."""
    return Finding(
        id=TCP,
        severity=tcp_severity(layout),
        node=node,
        title=f"gang {gang}: traffic between its nodes uses TCP",
        evidence=(why,),
        effect=price(Traffic.TCP, layout),
        fix="check each node's ports with `l40s-deploy discover`, then set `l40s_transport: rdma`. If one card"
        " carries both TCP and RDMA, set l40s_ib_hca to it",
    )


def by_hand(decision: TransportDecision, plan: GangPlan) -> tuple[Finding, ...]:
    """What an operator should know where variables of theirs put TCP in the place of the RDMA that was decided on."""
    nodes = [node.name for node in plan.nodes if node.network.transport is Transport.TCP]
    if decision.transport is not Transport.RDMA or not nodes:
        return ()
    why = f"NCCL_NET or NCCL_IB_DISABLE is set for {', '.join(nodes)} (`l40s-deploy plan --sources` shows where)"
    return (over_tcp(plan.name, why, plan.layout),)


def pcie_ipc(plan: GangPlan, profile: ModelProfile) -> tuple[Finding, ...]:
    """Whether FlashInfer's table of tuned schedules has an all-reduce over PCIe that the plan asks for (flashinfer
    0.7.2, comm/pcie_ipc_policy.py, _switchpair)."""
    ranks, hidden = plan.layout.tensor_parallel, profile.dimensions.hidden_size
    covered = (ranks == 8 and hidden >= 6144) or (ranks, hidden) == (4, 4096)
    if covered or not any(dict(node.env).get(_PCIE_IPC) == "1" for node in plan.nodes):
        return ()
    return (
        Finding(
            id="PCIE-IPC-UNTUNED",
            severity=Severity.NOTE,
            node="",
            title=f"gang {plan.name}: no tuned PCIe all-reduce in FlashInfer for {ranks} ranks at hidden {hidden}",
            effect="its table has 8 ranks from 6144 on and 4 ranks at 4096 (flashinfer issue 4463); others fall back",
            fix=f"measure with and without {_PCIE_IPC}: `l40s-deploy bench`; the log says whether it is in use",
        ),
    )


def _uneven(gang: GangSpec, rdma: Mapping[str, RdmaChoice]) -> tuple[Finding, ...]:
    counts = {node.name: len(rdma[node.name].ports) for node in gang.nodes if node.name in rdma}
    if len(set(counts.values())) < 2:
        return ()
    return (
        Finding(
            id="RDMA-PORTS-UNEVEN",
            severity=Severity.SLOW,
            node="",
            title=f"gang {gang.name}: its nodes have different numbers of RDMA ports",
            evidence=tuple(f"{name}: {count}" for name, count in counts.items()),
            effect="NCCL uses as many as the node with the fewest has; it logs this only at INFO level",
            fix="bring the missing ports up",
        ),
    )


@dataclass(frozen=True, slots=True)
class DataNetwork:
    """addresses: each node's in it. reason: why this one, with interface and speed; for people"""

    addresses: Mapping[str, str]
    reason: str


def data_network(topologies: Mapping[str, Topology], interface: str = "") -> DataNetwork:
    """One network for all nodes; RDMA rails count too, since nothing but their speed matters here.

    interface: the operator's word: one that leads to the network to use
    Raises InputError where there is none.
    """
    found = shared_networks(topologies)
    if interface:
        found = tuple(ways for ways in found if any(way.interface.name == interface for way in ways.values()))
    if not found:
        wanted = f"no network on {interface}" if interface else "no IPv4 network"
        what = f"{wanted} is shared by {', '.join(topologies)}"
        raise InputError(what, where="network", fix="list every node's interfaces with `l40s-deploy discover`")
    best = min(found, key=_rank)
    slowest = min(way.interface.speed_mbps for way in best.values())
    names = sorted({way.interface.name for way in best.values()})
    speed = f"{slowest / 1000:g} Gbit/s" if slowest else "speed unread"
    chosen = "--interface" if interface else f"the fastest of {len(found)} shared networks" if len(found) > 1 else ""
    reason = f"{', '.join(names)} ({speed}{', ' * bool(chosen)}{chosen})"
    return DataNetwork({name: way.address for name, way in best.items()}, reason)


def _rank(ways: Mapping[str, SharedWay]) -> tuple[int, int, str]:
    """The fastest first; of equals one that the engine's rails do not use."""
    return (
        -min(way.interface.speed_mbps for way in ways.values()),
        sum(way.is_rail for way in ways.values()),
        min(way.interface.name for way in ways.values()),
    )
