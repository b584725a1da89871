"""Which ports a gang listens on, for whom they are, and what keeps strangers out. Pure.

The engine's own ports between nodes have no authentication by design: the rendezvous is torch's TCPStore, NCCL and
Gloo take whoever knows the address, and SGLang's ZMQ sockets unpickle what they receive (docs/security.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.model.plan import GangPlan, NodePlan

EPHEMERAL = "32768-60999"
"""net.ipv4.ip_local_port_range as Linux has it by default."""
ROCE = "4791"
"""UDP port of RoCEv2 (InfiniBand Architecture Specification, Annex A17)."""
_EPHEMERAL_USE = "NCCL, Gloo, ZMQ with pickle"
GANG, CLIENTS = "nodes of the gang", "clients, router"


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
    return tuple(row for node in gang.nodes for row in _of_node(gang, node))


def _of_node(gang: GangPlan, node: NodePlan) -> Iterator[PortUse]:
    def row(protocol: str, port: object, purpose: str, who: str, authenticates: str = "nobody") -> PortUse:
        return PortUse(
            gang=gang.name, node=node.name, address=node.address, protocol=protocol, port=str(port), purpose=purpose,
            who=who, authenticates=authenticates,
        )  # fmt: skip

    leads = node.node_rank == 0
    key = "the API key" if gang.api_key else "nobody"
    yield row("tcp", gang.http_port, "HTTP" if leads else "HTTP, health only", CLIENTS if leads else GANG, key)
    if len(gang.nodes) == 1:
        return
    if leads:
        yield row("tcp", gang.dist_init.rpartition(":")[2], "rendezvous", GANG)
        yield row("tcp", gang.agent_port, "agents", GANG, "the run's key, both sides")
    if gang.nccl_port:
        yield row("tcp", gang.nccl_port, "NCCL", GANG)
    yield row("tcp", EPHEMERAL, _EPHEMERAL_USE, GANG)
    if node.network.rdma:
        yield row("udp", ROCE, "RDMA over Ethernet", GANG)


def nftables(gang: GangPlan, node: NodePlan) -> str:
    """The rules of one node of a plan."""
    closed = [(use.port, use.purpose) for use in _of_node(gang, node) if use.who == GANG and use.protocol == "tcp"]
    return _table(gang.name, node.name, {member.name: member.address for member in gang.nodes}, closed)


def firewall(gang: GangSpec, node: NodeSpec, addresses: Mapping[str, str]) -> str:
    """The same without a plan, from the inventory's ports. addresses: of every node of the gang, by name."""
    leads = node.node_rank == 0
    closed = [] if leads else [(str(node.ports.http), "HTTP, health only")]
    if len(gang.nodes) > 1:
        closed += [(str(node.ports.dist_init), "rendezvous"), (str(node.ports.agent), "agents")] if leads else []
        closed += [(str(node.ports.nccl), "NCCL")] if node.ports.nccl else []
        closed.append((EPHEMERAL, _EPHEMERAL_USE))
    return _table(gang.name, node.name, addresses, closed)


def _table(gang: str, node: str, addresses: Mapping[str, str], closed: Iterable[tuple[str, str]]) -> str:
    """A table of its own, to load with `nft -f`: other nodes reach what is for the gang, strangers do not.

    Nothing else is touched: the service's port, SSH and other addresses of the node (rails) stay as they are.
    """
    address = addresses[node]
    family = "ip6" if ":" in address else "ip"
    members = ", ".join(addresses.values())
    rules = "\n".join(f"        tcp dport {port} ct state new drop comment {_quoted(why)}" for port, why in closed)
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


def _quoted(text: str) -> str:
    return f'"{_plain(text)}"'


def _plain(text: str) -> str:
    return "".join(letter for letter in text if letter.isalnum() or letter in " ,.-_")
