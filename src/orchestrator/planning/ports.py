"""Which ports a gang listens on, for whom they are, and what keeps strangers out. Pure.

The engine's own ports between nodes have no authentication by design: the rendezvous is torch's TCPStore, NCCL and
Gloo take whoever knows the address, and SGLang's ZMQ sockets unpickle what they receive (docs/security.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.model.inventory import GangPorts, GangSpec, NodeSpec
from orchestrator.model.plan import GangPlan
from orchestrator.protocol.staging import NodePlan

EPHEMERAL = "32768-60999"
"""net.ipv4.ip_local_port_range as Linux has it by default."""
_DERIVED = 35
"""Ports above the rendezvous that the leader's ZMQ sockets have with attention groups, and which unpickle: up to 13 in
SGLang 0.5.23, 3 and one per group in 0.4.4 (PortArgs.init_new; managers/data_parallel_controller.py)."""
ROCE = "4791"
"""UDP port of RoCEv2 (InfiniBand Architecture Specification, Annex A17)."""
GANG, CLIENTS = "nodes of the gang", "clients, router"
HEALTH, AGENTS = "HTTP, health only", "agents"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortUse:
    """One row. port: a number or a range; who: whom it is for; authenticates: how, 'nobody' where it does not"""

    gang: str
    node: str
    address: str
    protocol: str
    port: str
    purpose: str
    who: str
    authenticates: str


def port_uses(gang: GangPlan) -> tuple[PortUse, ...]:
    """In the order of the nodes."""
    key = "the API key" if gang.leader.api_key else "nobody"
    return tuple(
        PortUse(
            gang=gang.name,
            node=node.name,
            address=node.network.address,
            protocol=protocol,
            port=port,
            purpose=purpose,
            who=who,
            authenticates={"HTTP": key, HEALTH: key, AGENTS: "the run's key, both sides"}.get(purpose, "nobody"),
        )
        for node in gang.nodes
        for protocol, port, purpose, who in _of_node(
            _ports(gang), leads=node.node_rank == 0, alone=len(gang.nodes) == 1, rdma=node.network.rdma
        )
    )


def _ports(gang: GangPlan) -> GangPorts:
    dist_init = int(gang.dist_init.rpartition(":")[2])
    return GangPorts(dist_init=dist_init, http=gang.http_port, nccl=gang.nccl_port, agent=gang.leader.leader.port)


def _of_node(ports: GangPorts, *, leads: bool, alone: bool, rdma: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """Protocol, port, purpose, and whom it is for."""
    yield ("tcp", str(ports.http), "HTTP", CLIENTS) if leads else ("tcp", str(ports.http), HEALTH, GANG)
    if alone:
        return
    if leads:
        yield "tcp", str(ports.dist_init), "rendezvous", GANG
        yield "tcp", str(ports.agent), AGENTS, GANG
        if (last := ports.dist_init + _DERIVED) < 65536 and not ports.dist_init < ports.http <= last:
            yield "tcp", f"{ports.dist_init + 1}-{last}", "ZMQ with pickle, for attention DP", GANG
    if ports.nccl:
        yield "tcp", str(ports.nccl), "NCCL", GANG
    yield "tcp", EPHEMERAL, "NCCL, Gloo, ZMQ with pickle", GANG
    if rdma:
        yield "udp", ROCE, "RDMA over Ethernet", GANG


def nftables(gang: GangPlan, node: NodePlan) -> str:
    """The rules of one node of a plan."""
    addresses = {member.name: member.network.address for member in gang.nodes}
    return _table(gang.name, node.name, addresses, _ports(gang), leads=node.node_rank == 0)


def firewall(gang: GangSpec, node: NodeSpec, addresses: Mapping[str, str]) -> str:
    """The same without a plan, from the inventory's ports. addresses: of every node of the gang, by name."""
    return _table(gang.name, node.name, addresses, node.ports, leads=node.node_rank == 0)


def _table(gang: str, node: str, addresses: Mapping[str, str], ports: GangPorts, *, leads: bool) -> str:
    """A table of its own, to load with `nft -f`: other nodes reach what is for the gang, strangers do not.

    Nothing else is touched: the service's port, SSH and other addresses of the node (rails) stay as they are.
    """
    address = addresses[node]
    family = "ip6" if ":" in address else "ip"
    members = ", ".join(addresses.values())
    uses = _of_node(ports, leads=leads, alone=len(addresses) == 1)
    closed = [(port, purpose) for _, port, purpose, who in uses if who == GANG]
    rules = "\n".join(f'        tcp dport {port} ct state new drop comment "{_plain(why)}"' for port, why in closed)
    return f"""# {_plain(node)} in gang {_plain(gang)}: the engine's ports for the gang's own nodes only.
# Load: nft -f FILE. Undo: nft delete table inet l40s_deploy. To survive a reboot, include it in /etc/nftables.conf.
table inet l40s_deploy
delete table inet l40s_deploy
table inet l40s_deploy {{
    set gang {{
        type {"ipv6_addr" if family == "ip6" else "ipv4_addr"}
        elements = {{ {members} }}
    }}
    chain input {{
        type filter hook input priority filter; policy accept;
        iif lo accept
        {family} daddr != {address} accept
        {family} saddr @gang accept
{rules}
    }}
}}
"""


def _plain(text: str) -> str:
    return "".join(letter for letter in text if letter.isalnum() or letter in " ,.-_")
