"""The cluster as its owner describes it: gangs of nodes, how to reach each, what is ours on it, who is notified."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from orchestrator.protocol.addresses import host_port


class Event(str, Enum):
    """What is worth a message."""

    FAILED = "failed"
    DEGRADED = "degraded"
    RESTORED = "restored"
    GIVEN_UP = "given-up"
    FINDING = "finding"
    CHANGED = "changed"
    """The inventory: a guard goes on by the new one."""


class ReceiverKind(str, Enum):
    """What a receiver understands."""

    SLACK = "slack"
    FEISHU = "feishu"
    DINGTALK = "dingtalk"
    WECOM = "wecom"
    WEBHOOK = "webhook"
    EMAIL = "email"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """How mail is sent. tls: starttls, tls (from the first byte) or none; password_file: '' for no login."""

    server: str
    port: int
    sender: str
    to: tuple[str, ...]
    tls: str = "starttls"
    user: str = ""
    password_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """One entry of `l40s_notify`.

    url, url_file: a webhook's address, or the file of mode 0600 that holds it (it often is a secret)
    sign_file: the file with the key that Feishu's and DingTalk's signed robots want, '' for none
    """

    kind: ReceiverKind
    url: str = field(default="", repr=False)
    url_file: str = ""
    sign_file: str = ""
    mail: Mail | None = None
    events: frozenset[Event] = frozenset(Event)


Transport = Literal["auto", "rdma", "tcp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How to reach a node, in Ansible's and OpenSSH's words, before ~/.ssh/config is applied.

    None means: not said in the inventory, so ~/.ssh/config or the default decides.
    """

    connection: Literal["ssh", "local"] = "ssh"
    host: str
    port: int | None = None
    user: str | None = None
    key_file: str | None = None
    known_hosts_file: str | None = None
    ssh_options: tuple[tuple[str, str], ...] = ()
    """`-o Name=value` pairs out of ansible_ssh_common_args and ansible_ssh_extra_args, names in lower case."""
    become: bool = False
    become_user: str = "root"
    python: str = "python3"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPorts:
    """TCP ports of one gang; every node of it uses the same numbers."""

    dist_init: int = 5000
    http: int = 8000
    nccl: int | None = None
    agent: int = 7700


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What the operator pinned by hand for one node; each shows up in a plan's sources as an override."""

    socket_ifname: str | None = None
    ib_hca: str | None = None
    gid_index: int | None = None
    ib_tc: int | None = None
    ib_sl: int | None = None
    port_failover: bool = False
    """`l40s_port_failover`: NCCL is to move a connection to the other port of its card when a port fails."""
    env: tuple[tuple[str, str], ...] = ()
    env_public: tuple[str, ...] = ()
    """`l40s_env_public`: names whose values anybody may see."""
    args: tuple[str, ...] = ()
    max_queued: str = ""
    """`l40s_max_queued`: requests that may wait in the gang, as digits, or AUTO for what its plan chooses; '' for any
    number."""


AUTO = "auto"
"""The plan is to choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One machine of a gang, as the inventory has it."""

    name: str
    gang: str
    node_rank: int
    """Position in the gang's group, from 0; the leader is 0."""
    reach: Reach
    spare: bool = False
    """`l40s_role: spare`: it has no part in a run until it takes the place of a node that stays away."""
    address: str | None = None
    """`l40s_address`: this node's address for rendezvous and agents; None lets the plan choose from the facts."""
    gpus: int = 8
    gpu_names: tuple[str, ...] = ()
    """`l40s_gpus` as a list: NVML's indices, UUIDs or PCI addresses, in the order of the ranks; () for a count."""
    fs_root: str = "/"
    """Where hardware is read below (`l40s_fs_root`); anything but / is a recorded or emulated machine."""
    model_root: str = "/workspace"
    stack: str | None = None
    venv: str | None = None
    """`l40s_venv`: virtual environment that holds the engine; None means /opt/l40s/venvs/<stack>."""
    state_dir: str | None = None
    """`l40s_state_dir`: None means /var/lib/l40s-deploy for root (or become), ~/.local/state/l40s-deploy else."""
    engine_user: str | None = None
    viewers: tuple[str, ...] = ()
    """`l40s_viewers`: users of the node who may see its gangs and change nothing; `prepare` makes them."""
    viewers_logs: bool = False
    """`l40s_viewers_logs`: they may read the engines' logs too, which hold prompts."""
    transport: Transport = "auto"
    http_host: str = "0.0.0.0"  # noqa: S104 - the service is meant to be reached; the operator may narrow it
    api_key_file: str | None = None
    """`l40s_api_key_file`: on the controller; what the service asks of its clients. The leader's counts."""
    aliases: tuple[str, ...] = ()
    """`l40s_aliases`: names beside its model's by which the router finds the gang. The leader's count."""
    ports: GangPorts = GangPorts()
    lease_s: float = 30.0
    """Silence on the leader link after which a gang ends itself, in seconds."""
    accept: tuple[str, ...] = ()
    """Finding ids (`ID` or `ID@node`) that the operator has accepted."""
    overrides: Overrides = Overrides()

    def http_place(self, address: str) -> str:
        """ADDRESS:PORT where it serves HTTP. address: by which others know it."""
        return host_port(address if self._serves_everywhere else self.http_host, self.ports.http)

    def http_url(self, address: str) -> str:
        """The same as a URL."""
        return f"http://{self.http_place(address)}"

    @property
    def stated_url(self) -> str:
        """That URL as the inventory alone tells it; '' where a plan takes the address from the node's facts."""
        if not self._serves_everywhere:
            return self.http_url("")
        return self.http_url(self.address) if self.address and not self.overrides.socket_ifname else ""

    @property
    def _serves_everywhere(self) -> bool:
        return self.http_host in ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound

    @property
    def gpus_asked(self) -> str:
        """`l40s_gpus` in words."""
        return ", ".join(self.gpu_names) or str(self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSpec:
    """The nodes that together run one engine, in node-rank order.

    spares: nodes of its group that wait to take the place of one of them
    short:  it has fewer nodes than its inventory says: some were left out, and no spare took their places
    """

    name: str
    nodes: tuple[NodeSpec, ...]
    spares: tuple[NodeSpec, ...] = ()
    short: bool = False
    url: str = ""
    """Where it serves, if that is not an address of its leader's: the router's; '' for gangs."""
    replica_of: str = ""
    """The gang of the inventory of which this is one node on its own (`--replicas`); '' for the inventory's gangs."""

    @property
    def leader(self) -> NodeSpec:
        return self.nodes[0]

    @property
    def machines(self) -> tuple[NodeSpec, ...]:
        """Its nodes and its spares."""
        return (*self.nodes, *self.spares)


ROUTER_GANG = "router"
"""The name of the router's own gang of one node, and of its group in the inventory."""
ROUTER_POLICIES = ("cache_aware", "power_of_two", "round_robin", "random")
"""How the router chooses a gang for a request, as both of its releases name it; the first is the usual one."""
_RUNS_AT = re.compile(r"(?P<scheme>https?)://(?P<host>[^/@]+):(?P<port>[0-9]{1,5})")
_GANG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def is_gang_name(text: str) -> bool:
    """Whether it is fit for a folder's name on the nodes: letters, digits, dots, dashes, at most 100."""
    return _GANG_NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """Where the one router before all gangs runs (the inventory's group `router`).

    venv: virtual environment that holds the router, smg
    metrics_port: its figures, on that machine's loopback address only
    tls_cert, tls_key: PEM files on the controller; with them clients come by https, and only so
    policy: how it chooses a gang for a request, one of ROUTER_POLICIES
    gang_key_file: `l40s_api_key_file` of the gangs, where the router asks its clients for a key of its own
    aliases: by gang, the names beside its model's that requests for it may give
    max_requests: most that all its gangs have at once, as digits, or AUTO for twice what they run by their KV tokens;
        further ones are refused; '' lets any number in
    """

    node: NodeSpec
    port: int = 30000
    metrics_port: int = 29000
    venv: str = "/opt/l40s/venvs/smg-1.13.0"
    policy: str = ROUTER_POLICIES[0]
    tls_cert: str | None = None
    tls_key: str | None = None
    gang_key_file: str | None = None
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_requests: str = ""

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert else "http"

    @property
    def url(self) -> str:
        """Where clients find the service."""
        host = self.node.address or self.node.reach.host
        if self.node.reach.connection == "local" and host == self.node.name:
            host = "127.0.0.1"
        return f"{self.scheme}://[{host}]:{self.port}" if ":" in host else f"{self.scheme}://{host}:{self.port}"

    def url_of(self, running: str) -> str:
        """The same of the router that runs, which may have been started with another port, or without TLS. running:
        where it serves on its own host, '' for none"""
        at, mine = _RUNS_AT.fullmatch(running), _RUNS_AT.fullmatch(self.url)
        return f"{at['scheme']}://{mine['host']}:{at['port']}" if at and mine else self.url


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All gangs of one inventory file, in the file's order, and the router before them where there is one."""

    path: str
    gangs: tuple[GangSpec, ...]
    router: RouterSpec | None = None
    notify: tuple[Recipient, ...] = ()
    """`l40s_notify` of the first node: who is notified of events."""

    @property
    def nodes(self) -> Iterator[NodeSpec]:
        """Every node of every gang, gang by gang, in node-rank order; a gang's spares after its nodes."""
        return (node for gang in self.gangs for node in gang.machines)
