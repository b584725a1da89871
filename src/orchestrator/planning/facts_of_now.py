"""What a reboot or a changed card moves under a plan that was staged: found again in the facts of now. Pure.

Only names and numbers that the kernel hands out are resolved: the interface that has the node's address, the RDMA ports
on the rails, their GID index, or the range of addresses by which NCCL finds it. What an operator pinned in the
inventory stays as staged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from orchestrator.model.errors import InputError
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.topology import RAILS, Topology
from orchestrator.planning.choices import RdmaChoice, rdma_choice
from orchestrator.protocol.staging import StagingRequest
from orchestrator.topology.network import Choice
from orchestrator.topology.speed import Traffic, price

GID = "NCCL_IB_GID_INDEX"
HCA = "NCCL_IB_HCA"
RANGE = "NCCL_IB_ADDR_RANGE"
"""NCCL before 2.21 does not know it, and is not disturbed by it."""
_GLOO, _NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


@dataclass(frozen=True, slots=True)
class Moved:
    """An environment variable whose value is another one now; None: it is not to be set. words: for the operator."""

    name: str
    now: str | None
    words: str


def moved(
    request: StagingRequest, spec: NodeSpec, node: Topology, met: Mapping[str, int] = MappingProxyType({})
) -> tuple[Moved, ...]:
    """Settings of a node's staged environment that no longer name what they meant; empty if nothing has changed.

    spec: the node in the inventory, for what is pinned there; node: as it is now; met: networks_met of the gang's nodes
    as they are now. What is gone altogether (an address, every usable RDMA port) can't be found again:
    `still_there.gone` says so. Of a node that was not read in full, nothing is said to have moved.
    """
    if node.lacks(*RAILS):
        return ()
    kept = {name for name, _ in spec.overrides.env}
    return tuple(one for one in _moved(request, spec, node, met) if one.name not in kept)


def _moved(request: StagingRequest, spec: NodeSpec, node: Topology, met: Mapping[str, int]) -> Iterator[Moved]:
    env = request.env
    side = _side(request, spec, node)
    was = env.get(_GLOO, "")
    if side.interface and side.interface != was:
        yield Moved(_GLOO, side.interface, f"interface {was} -> {side.interface}")
        if env.get(_NCCL) == f"={was}":
            yield Moved(_NCCL, f"={side.interface}", "")
    if env.get("NCCL_IB_DISABLE") != "1" and env.get(HCA):
        yield from _rdma(env, spec, node, side, met)


def off_the_rails(request: StagingRequest, spec: NodeSpec, node: Topology) -> bool:
    """Whether the staged plan has this node's traffic travel over RDMA alone, and none of its ports can carry that now,
    while the inventory leaves it to a plan to do without (l40s_transport auto, no l40s_ib_hca)."""
    env = request.env
    kept = {name for name, _ in spec.overrides.env}
    if env.get("NCCL_NET") != "IB" or not env.get(HCA) or {"NCCL_NET", HCA} & kept:
        return False
    if spec.transport != "auto" or spec.overrides.ib_hca or node.lacks(*RAILS):
        return False
    return not rdma_choice(spec, node, _side(request, spec, node)).ports


def _side(request: StagingRequest, spec: NodeSpec, node: Topology) -> Choice:
    """The interface that has the address by which the other nodes know this one; '' where none has it."""
    known = [value for value in request.env.values() if request.addresses.get(value) == request.node]
    was = request.env.get(_GLOO, "")
    if spec.overrides.socket_ifname or not known or not was:
        return Choice(was, known[0] if known else "", "as staged")
    for interface in node.interfaces:
        if interface.up and known[0] in {text.partition("/")[0] for text in interface.ipv4}:
            return Choice(interface.name, known[0], "it has the node's address")
    return Choice(was, known[0], "as staged")


def _rdma(
    env: Mapping[str, str], spec: NodeSpec, node: Topology, side: Choice, met: Mapping[str, int]
) -> Iterator[Moved]:
    try:
        choice = rdma_choice(spec, node, side, met)
    except InputError:
        return  # the ports that are pinned are not there
    if not choice.ports:
        return
    names = f"={','.join(port.name for port in choice.ports)}"
    if not spec.overrides.ib_hca and env[HCA] != names:
        yield Moved(HCA, names, f"RDMA ports {env[HCA][1:]} -> {names[1:]}{_cost(env[HCA], names)}")
    if any(port.link_layer != "InfiniBand" for port in choice.ports):
        yield from _gids(env, choice)


def _cost(was: str, now: str) -> str:
    fewer = now.count(",") < was.count(",")
    return f" (with fewer ports, {price(Traffic.HALF_THE_PORTS)})" if fewer else ""


def _gids(env: Mapping[str, str], choice: RdmaChoice) -> Iterator[Moved]:
    was, index = env.get(GID), choice.gid.index
    now = None if index is None else str(index)
    if now is None and was is not None:
        yield Moved(GID, None, f"GID index {was} -> chosen by NCCL for each port ({choice.gid.reason})")
    elif now != was:
        yield Moved(GID, now, f"GID index {was or 'chosen by NCCL'} -> {now}")
    before, after = env.get(RANGE), choice.range or None
    if before != after:
        words = f"addresses among which NCCL finds each port's GID {before or 'any'} -> {after or 'any'}"
        yield Moved(RANGE, after, words if now == was else "")
