"""Whether a node still has what a plan made earlier names: a reboot or a changed card may have taken it."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.topology import Area, RdmaPort, Topology
from orchestrator.protocol.network import NodeNetwork
from orchestrator.protocol.staging import StagingRequest


def gone(request: StagingRequest, node: Topology) -> Iterator[str]:
    """What a staging request (docs/agent.md) names and the node no longer has, each as text.

    GPUs by index, RDMA ports that are named whole, and the kind of the GID at the index that is named: with RoCE,
    another kind means another network. What could not be read is left out; the doctor reports it.
    """
    if not (node.nvml_error or node.lacks(Area.GPUS)):
        there = {gpu.index for gpu in node.gpus if not gpu.lost}
        yield from (f"GPU {gpu}" for gpu in request.gpus if gpu not in there)
    if request.network.rdma and not node.lacks(Area.RDMA, Area.PORTS):
        yield from _ports(request.network, node)


def _ports(network: NodeNetwork, node: Topology) -> Iterator[str]:
    ports = {port.name: port for port in node.rdma}
    for name in network.ports:
        port = ports.get(name if ":" in name else f"{name}:1")
        if port is None:
            yield f"RDMA port {name}"
        elif not port.active:
            yield f"RDMA port {name} ({port.state or 'state unknown'})"
        else:
            yield from _gid(port, network.gid_index)


def _gid(port: RdmaPort, index: int | None) -> Iterator[str]:
    if port.link_layer != "Ethernet" or not port.gids or index is None:
        return
    kind = next((gid.type for gid in port.gids if gid.index == index), None)
    if kind != "RoCE v2":
        yield f"a RoCE v2 GID at index {index} of {port.name} (it has {kind or 'none'} there)"
