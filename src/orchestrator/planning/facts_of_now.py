"""What a reboot or a changed card moves under a plan that was staged: found again in the facts of now. Pure.

Only names and numbers that the kernel hands out are resolved: the interface that has the node's address, the RDMA ports
on the rails, their GID index, or the range of addresses by which NCCL finds it. What an operator pinned in the
inventory stays as staged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from orchestrator.model.topology import RAILS, Area, RdmaPort, Topology
from orchestrator.planning.choices import rdma_choice
from orchestrator.planning.environment import exactly, set_by_hand
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import NodeNetwork
from orchestrator.protocol.staging import StagingRequest
from orchestrator.topology.gpus import Machine
from orchestrator.topology.network import TcpChoice
from orchestrator.topology.speed import Traffic, price


@dataclass(frozen=True, slots=True)
class Moved:
    """A node's network as it is now; words: what is another one than was staged, for the operator, '' for nothing."""

    network: NodeNetwork
    words: str


def moved(request: StagingRequest, machine: Machine, met: Mapping[str, int] = MappingProxyType({})) -> Moved:
    """A node's staged network, with what no longer names what it meant found again.

    machine: the node as it is now, and what is pinned in its inventory; met: networks_met of the gang's nodes as they
    are now. What is gone altogether (an address, every usable RDMA port) can't be found again:
    `gone` says so. Of a node that was not read in full, nothing is said to have moved.
    """
    was, kept = request.network, set_by_hand(machine.spec)
    if machine.topology.lacks(*RAILS):
        return Moved(was, "")
    side = _side(was, machine)
    fields: list[_Change] = [("interface", side.interface, f"interface {was.interface} -> {side.interface}")]
    if was.sockets == (was.interface,):
        fields.append(("sockets", (side.interface,), ""))
    if was.hca:
        fields += _rdma(was, machine, side, met)
    changed = [(name, now, words) for name, now, words in fields if now != getattr(was, name) and name not in kept]
    network = replace(was, **{name: now for name, now, _ in changed})
    return Moved(network, ", ".join(words for _, _, words in changed if words))


_Change = tuple[str, Any, str]
"""A field of the network, what it is now, and words."""


def off_the_rails(request: StagingRequest, machine: Machine) -> bool:
    """Whether the staged plan has this node's traffic travel over RDMA alone, and none of its ports can carry that now,
    while the inventory leaves it to a plan to do without (l40s_transport auto, no l40s_ib_hca)."""
    was, spec = request.network, machine.spec
    wanted = spec.transport != "auto" or spec.overrides.ib_hca or {"transport", "hca"} & set_by_hand(spec)
    if wanted or not (was.rdma and was.hca) or machine.topology.lacks(*RAILS):
        return False
    return not rdma_choice(machine, _side(was, machine)).ports


def _side(was: NodeNetwork, machine: Machine) -> TcpChoice:
    """The interface that has the address by which the other nodes know this one; as staged where none has it."""
    if not machine.spec.overrides.socket_ifname and was.interface:
        for interface in machine.topology.interfaces:
            if interface.up and was.address in {text.partition("/")[0] for text in interface.ipv4}:
                return TcpChoice(interface.name, was.address, "it has the node's address")
    return TcpChoice(was.interface, was.address, "as staged")


def _index_words(index: int | None, reason: str = "") -> str:
    if index is not None:
        return str(index)
    return f"chosen by NCCL for each port ({reason})" if reason else "chosen by NCCL"


def _rdma(was: NodeNetwork, machine: Machine, side: TcpChoice, met: Mapping[str, int]) -> Iterator[_Change]:
    try:
        choice = rdma_choice(machine, side, met)
    except InputError:
        return  # the ports that are pinned are not there
    if not choice.ports:
        return
    hca = exactly(port.name for port in choice.ports)
    if not machine.spec.overrides.ib_hca:
        cost = f" (with fewer ports, {price(Traffic.HALF_THE_PORTS)})" if hca.count(",") < was.hca.count(",") else ""
        yield "hca", hca, f"RDMA ports {was.hca[1:]} -> {hca[1:]}{cost}"
    if any(port.link_layer != "InfiniBand" for port in choice.ports):
        before, now = was.gid_index, choice.gid.index
        yield "gid_index", now, f"GID index {_index_words(before)} -> {_index_words(now, choice.gid.reason)}"
        words = f"addresses among which NCCL finds each port's GID {was.gid_range or 'any'} -> {choice.range or 'any'}"
        yield "gid_range", choice.range, words if now == before else ""


def gone(request: StagingRequest, node: Topology) -> Iterator[str]:
    """What a staging request (docs/agent.md) names and the node no longer has, each as text.

    GPUs by index, RDMA ports that are named whole, and the kind of the GID at the index that is named: with RoCE,
    another kind means another network. What could not be read is left out; the doctor reports it. That a GPU is the
    one that was meant, its node's agent checks.
    """
    if not (node.nvml_error or node.lacks(Area.GPUS)):
        there = {gpu.index for gpu in node.gpus if not gpu.lost}
        yield from (f"GPU {gpu}" for gpu in request.gpus if gpu not in there)
    if request.network.rdma and not node.lacks(Area.RDMA, Area.PORTS):
        yield from _ports(request.network, node)


def lost_gpus(request: StagingRequest, node: Topology) -> list[str]:
    """Staged GPUs that the node shows no more; [] where its GPUs were not read, or an older release staged them."""
    there = {gpu.uuid for gpu in node.gpus if gpu.uuid and not gpu.lost}
    meant = zip(request.gpus, request.gpu_uuids, strict=False)
    return [f"GPU {index} ({uuid})" for index, uuid in meant if there and uuid and uuid not in there]


def _ports(network: NodeNetwork, node: Topology) -> Iterator[str]:
    ports = {port.name: port for port in node.rdma}
    for name in network.ports:
        port = ports.get(name if ":" in name else f"{name}:1")
        if port is None:
            yield f"RDMA port {name}"
        elif not port.active:
            yield f"RDMA port {name} ({port.state or 'state unknown'})"
        elif port.link_layer == "Ethernet" and port.gids and network.gid_index is not None:
            yield from _other_gid(port, network.gid_index)


def _other_gid(port: RdmaPort, index: int) -> Iterator[str]:
    kind = next((gid.type for gid in port.gids if gid.index == index), None)
    if kind != "RoCE v2":
        yield f"a RoCE v2 GID at index {index} of {port.name} (it has {kind or 'none'} there)"
