"""The environment of one node's engine, each value with its source.

What is rendered and why follows NCCL's documentation and sources; forms that differ between NCCL and Gloo
(`=name` is NCCL's exact match, Gloo knows only a plain name) are minded here and nowhere else.

Nothing is switched on beyond what NCCL and the engines do by themselves without a proof, which stands where it is
decided and in docs/plan.md: a manual that advises it for this very case, the articles' measurement, or our own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from orchestrator.engines.cuts import kept_whole
from orchestrator.engines.engine import Engine, QueueLimit
from orchestrator.engines.registry import first_with
from orchestrator.model.engine_versions import holds_for
from orchestrator.model.inventory import GangPorts, GangSpec, NodeSpec, Overrides
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.model.secret_text import is_hidden
from orchestrator.model.topology import Gpu, Topology
from orchestrator.planning.choices import RdmaChoice, TransportDecision, two_ports_of_a_card
from orchestrator.planning.host import HostFacts, older, state_dir, venv, vocabularies
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import FAILOVER_HANGS, Layout, NodeNetwork, Transport, names_ports
from orchestrator.topology.network import TcpChoice

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CUDA_HOME = "/usr/local/cuda"
FAILS_OVER = "2.29.7"
"""The NCCL that began to move a connection to the other port of its card (p2p_resiliency.cc; NVIDIA/nccl#2044)."""
_CHOOSES_GIDS = "2.21"
"""The NCCL that began to choose a GID index for each port (src/transport/net_ib, ncclIbGetGidIndex)."""

_FAILOVER = "NCCL_IB_RESILIENCY_PORT_FAILOVER"
_FAST_MBPS = 100_000
_HAS_RAS = "2.28.7"
_RAS_PORT, _RAS_PORTS = 28028, 4000
"""NCCL's own port (src/ras/ras_internal.h), and how many from there on stay below the ephemeral ones."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable: name, value and where the value comes from."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GangChoices:
    """What the plans of a gang's nodes share.

    topologies, gpus, tcp, rdma, hosts: by node; topologies and rdma: of those whose hardware was read; gpus: that the
        gang uses, none where they were not read
    extra_args: engine flags of the command line; api_key: its fingerprint, '' for none
    to_read: bytes of the checkpoint; graphs: batch sizes that are captured, None where only the flags may tell
    queue: most requests that may wait, None for any number
    running: requests that the gang runs at once, None where it is not known
    """

    gang: GangSpec
    profile: ModelProfile
    stack: Stack
    engine: Engine
    topologies: Mapping[str, Topology]
    hosts: Mapping[str, HostFacts]
    gpus: Mapping[str, tuple[Gpu, ...]]
    layout: Layout
    decision: TransportDecision
    tcp: Mapping[str, TcpChoice]
    rdma: Mapping[str, RdmaChoice]
    extra_args: tuple[str, ...] = ()
    api_key: str = ""
    to_read: int
    graphs: tuple[int, ...] | None = None
    queue: QueueLimit | None = None
    running: int | None = None

    @property
    def cuda(self) -> bool:
        """Whether the engine runs on GPUs."""
        return self.stack.device == "cuda"

    @property
    def kept_whole(self) -> tuple[bool, bool]:
        """Whether dense layers and shared experts are complete on every rank."""
        return (
            kept_whole(self.profile, self.layout.tensor_parallel) if self.layout.expert_parallel > 1 else (False, False)
        )

    def state_dir(self, node: NodeSpec) -> str:
        """Where a node keeps runs and caches."""
        return state_dir(node, self.hosts[node.name])

    def venv(self, node: NodeSpec) -> str:
        """The virtual environment that holds the engine."""
        return venv(node, self.stack.name)


def environment(about: GangChoices, node: NodeSpec) -> tuple[Setting, ...]:
    """The node's complete environment, in a fixed order; the operator's own variables come last and win.

    Raises InputError for a name in the profile, the stack or the inventory that no environment can hold.
    """
    profile, stack, by_hand = about.profile, about.stack, node.overrides
    asked = [(name, value) for versions, name, value in profile.env if holds_for(versions, about.engine.version)]
    for where, variables in (
        (f"profile {profile.name}: env", asked),
        (f"stack {stack.name}: env", stack.env),
        (f"inventory: {node.name}: l40s_env", by_hand.env),
    ):
        if wrong := [name for name, _ in variables if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)]:
            fix = "use only letters, digits and _"
            raise InputError(f"{wrong[0]!r} is not a valid environment variable name", where=where, fix=fix)
    settings = {setting.name: setting for setting in _derived(about, node)}

    def instead(name: str) -> str:
        return f", instead of {settings[name].value}" if name in settings else ""

    for name, value in asked:
        settings[name] = Setting(name, value, f"profile {profile.name}{instead(name)}")
    for name, value in stack.env:
        settings[name] = Setting(name, _filled(value, about, node), f"stack {stack.name}")
    for name, value in by_hand.env:
        replaced = "" if is_hidden(name, value, by_hand.env_public) else instead(name)
        settings[name] = Setting(name, value, f"override: l40s_env in the inventory{replaced}")
    return tuple(settings.values())


def network(env: Mapping[str, str], planned: Transport, address: str) -> NodeNetwork:
    """What the engine's environment comes to, whoever has set it: NCCL goes by nothing else.

    planned: for the gang; address: of this node
    """
    transport = _transport(env, planned)
    rdma = transport is Transport.RDMA
    return NodeNetwork(
        transport=transport,
        interface=env.get("GLOO_SOCKET_IFNAME", ""),
        sockets=names_ports(env.get("NCCL_SOCKET_IFNAME", "")),
        address=address,
        hca=env.get("NCCL_IB_HCA", "") if rdma else "",
        gid_index=_number(env, "NCCL_IB_GID_INDEX") if rdma else None,
        gid_range=env.get("NCCL_IB_ADDR_RANGE", "") if rdma else "",
        traffic_class=_number(env, "NCCL_IB_TC") if rdma else None,
        service_level=_number(env, "NCCL_IB_SL") if rdma else None,
        notice_s=_notice_s(env) if rdma else 0.0,
        ras="" if env.get("NCCL_RAS_ENABLE") == "0" else env.get("NCCL_RAS_ADDR", ""),
        logged=bool(env.get("NCCL_DEBUG")),
    )


def _transport(env: Mapping[str, str], planned: Transport) -> Transport:
    """NCCL takes the network that NCCL_NET names, whatever its case; its own, and NVIDIA's plugin in its place (IBext),
    go by NCCL_IB_DISABLE (src/plugin/net.cc, src/transport/net_ib)."""
    if planned is Transport.NONE:
        return planned
    name = env.get("NCCL_NET", "").lower()
    off = (_number(env, "NCCL_IB_DISABLE") or 0) != 0
    over_tcp = re.search("socket|tcp", name) or (off and name[:2] in ("", "ib"))
    return Transport.TCP if over_tcp else Transport.RDMA


def _notice_s(env: Mapping[str, str]) -> float:
    """4.096 us x 2^NCCL_IB_TIMEOUT x NCCL_IB_RETRY_CNT, 30 s by NCCL's own values: until then a send has not failed."""
    if env.get(_FAILOVER) != "1":
        return 0.0
    timeout, retries = _number(env, "NCCL_IB_TIMEOUT"), _number(env, "NCCL_IB_RETRY_CNT")
    return 4.096e-6 * float(1 << min(20 if timeout is None else timeout, 31)) * (7 if retries is None else retries)


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else None


_OF_NETWORK = {
    "GLOO_SOCKET_IFNAME": "interface",
    "NCCL_SOCKET_IFNAME": "sockets",
    "NCCL_NET": "transport",
    "NCCL_IB_DISABLE": "transport",
    "NCCL_IB_HCA": "hca",
    "NCCL_IB_GID_INDEX": "gid_index",
    "NCCL_IB_ADDR_RANGE": "gid_range",
}


def set_by_hand(node: NodeSpec) -> frozenset[str]:
    """What of its `NodeNetwork` a node's l40s_env decides."""
    return frozenset(_OF_NETWORK[name] for name, _ in node.overrides.env if name in _OF_NETWORK)


def moved_variables(was: NodeNetwork, now: NodeNetwork) -> dict[str, str | None]:
    """Variables that are set otherwise for another network; None: not set."""
    before, after = _movable(was), _movable(now)
    return {name: after[name] or None for name in after if after[name] != before[name]}


def _movable(it: NodeNetwork) -> dict[str, str]:
    return {
        "GLOO_SOCKET_IFNAME": it.interface,
        "NCCL_SOCKET_IFNAME": exactly(it.sockets),
        "NCCL_IB_HCA": it.hca,
        "NCCL_IB_GID_INDEX": "" if it.gid_index is None else str(it.gid_index),
        "NCCL_IB_ADDR_RANGE": it.gid_range,
    }


def exactly(names: Iterable[str]) -> str:
    """As NCCL has exact names: without `=`, mlx5_1 would also match mlx5_10."""
    listed = ",".join(names)
    return listed and f"={listed}"


def _derived(about: GangChoices, node: NodeSpec) -> Iterator[Setting]:
    yield from _network(about, node)
    yield from _device(about, node)
    yield from _process(about, node)
    yield from _caches(about, node)
    if about.kept_whole[1]:
        yield Setting(
            _variable(about, "whole_shared"),
            "1",
            "shared experts are kept complete on every rank: split by TP, they would not end on a quantisation block",
        )


def _variable(about: GangChoices, meaning: str) -> str:
    """The name that this engine version has for it. Raises InputError where it has none."""
    name = about.engine.variables.get(meaning)
    if name is None:
        raise InputError(
            f"{about.engine.product} {about.engine.version} can't keep shared experts complete on every rank",
            where=f"stack {about.stack.name}",
            fix=f"use --ep 1, or a stack with SGLang {first_with(meaning)} or newer",
        )
    return name


def _network(about: GangChoices, node: NodeSpec) -> Iterator[Setting]:
    tcp, transport, why = about.tcp[node.name], about.decision.transport, about.decision.reason
    if about.cuda:
        yield Setting("NCCL_DEBUG", "INFO", "NCCL logs the transport it uses, so a fallback to TCP is noticed")
        yield Setting("NCCL_DEBUG_SUBSYS", "INIT,NET,GRAPH,ENV", "only the lines that show RDMA and GPUDirect")
    if tcp.interface:
        if about.cuda:
            yield Setting("NCCL_SOCKET_IFNAME", exactly([tcp.interface]), f"{tcp.reason}; `=` is NCCL's exact match")
        yield Setting("GLOO_SOCKET_IFNAME", tcp.interface, tcp.reason)
        yield Setting(
            _variable(about, "address"),
            tcp.address,
            f"rank 0 gives the others this address; without it, {about.engine.product} uses the address of the default"
            " route, and hangs if there is none",
        )
    if not about.cuda:
        return
    if about.stack.nccl_version and not older(about.stack.nccl_version, _HAS_RAS):
        port = _RAS_PORT + (node.ports.dist_init - GangPorts().dist_init) % _RAS_PORTS
        reason = (
            "the agent asks NCCL's RAS here when the engine makes no progress; each gang of a node has its own port"
        )
        yield Setting("NCCL_RAS_ADDR", f"127.0.0.1:{port}", reason)
    if transport is Transport.RDMA:
        yield Setting("NCCL_NET", "IB", f"{why}; a silent fallback to TCP becomes an error")
        yield from _rdma(about, node)
    elif transport is Transport.TCP:
        yield Setting("NCCL_NET", "Socket", why)
        yield Setting("NCCL_IB_DISABLE", "1", why)
        if _fast(about):
            reason = "16 connections to each peer in place of one: NCCL's manual advises 4 x 4 on networks of 100 Gb/s"
            yield Setting("NCCL_SOCKET_NTHREADS", "4", reason)
            yield Setting("NCCL_NSOCKS_PERTHREAD", "4", reason)


def _fast(about: GangChoices) -> bool:
    """Whether the TCP side of every node is a network of 100 Gb/s or more: NCCL's manual (env.rst,
    NCCL_NSOCKS_PERTHREAD) advises more connections for these; on others NCCL's own number stays."""
    return all(_tcp_mbps(about, node.name) >= _FAST_MBPS for node in about.gang.nodes)


def _tcp_mbps(about: GangChoices, name: str) -> int:
    """0 where it was not read."""
    interfaces = about.topologies[name].interfaces if name in about.topologies else ()
    chosen = about.tcp[name].interface
    return next((interface.speed_mbps for interface in interfaces if interface.name == chosen), 0)


def _rdma(about: GangChoices, node: NodeSpec) -> Iterator[Setting]:
    choice = about.rdma.get(node.name, RdmaChoice((), "no facts were read"))
    if node.overrides.ib_hca:
        yield Setting("NCCL_IB_HCA", node.overrides.ib_hca, choice.reason)
    else:
        ports = exactly(port.name for port in choice.ports)
        yield Setting("NCCL_IB_HCA", ports, f"{choice.reason}; without `=`, mlx5_1 would also match mlx5_10")
    if fails_over(about):
        yield from _failover()
    yield from _traffic_class(node.overrides)
    if choice.gid.index is not None:
        yield Setting("NCCL_IB_GID_INDEX", str(choice.gid.index), choice.gid.reason)
    elif choice.range and not older(about.stack.nccl_version, _CHOOSES_GIDS):
        reason = "this network contains one address of each chosen port; NCCL finds each port's GID by it"
        yield Setting("NCCL_IB_ADDR_RANGE", choice.range, f"{reason}, since {choice.gid.reason}")


def failover_asked(about: GangChoices) -> bool:
    """Whether the inventory asks for port failover, for every node of the gang: both ends of a connection need it."""
    return all(node.overrides.port_failover for node in about.gang.nodes)


def fails_over(about: GangChoices) -> bool:
    """Whether port failover is asked for and possible: NCCL has it, and every node uses two ports of one card."""
    nccl, cards = about.stack.nccl_version, about.rdma.values()
    able = bool(nccl) and not older(nccl, FAILS_OVER) and bool(cards) and all(map(two_ports_of_a_card, cards))
    return able and failover_asked(about) and about.decision.transport is Transport.RDMA


def _failover() -> Iterator[Setting]:
    """Off unless it is asked for, as NCCL has it (p2p_resiliency.cc: default 0). NVIDIA/nccl#2334 is open: with two
    ports a card, tensor parallel inference over RoCE stops for ever after hours of load in that code (net_ib/p2p.cc),
    seen with 2.28.9, 2.30.4 and 2.30.7.

    NCCL_IB_RESILIENCY_PORT_RECOVERY stays off: on RoCE it fails once the GID index has moved (NVIDIA/nccl#2157, fix
    open in #2183). The other two are what NVIDIA's own failover tests set (NCCL test/ci, resiliency utilities)."""
    reason = "l40s_port_failover: if a port fails, NCCL continues over the other one of its card; not measured on this"
    yield Setting(_FAILOVER, "1", f"{reason} hardware, and {FAILOVER_HANGS}")
    yield Setting("NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", "1", "port failover needs it")
    yield Setting("NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME", "1", "port failover: messages are matched by number")


def _traffic_class(overrides: Overrides) -> Iterator[Setting]:
    """What a lossless fabric needs: packets in the class that its switches pause for (NCCL's manual, NCCL_IB_TC)."""
    if overrides.ib_tc is not None:
        yield Setting("NCCL_IB_TC", str(overrides.ib_tc), f"l40s_ib_tc in the inventory: DSCP {overrides.ib_tc >> 2}")
    if overrides.ib_sl is not None:
        yield Setting("NCCL_IB_SL", str(overrides.ib_sl), "l40s_ib_sl in the inventory")


def _device(about: GangChoices, node: NodeSpec) -> Iterator[Setting]:
    if not about.cuda:
        return
    yield Setting("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "GPU numbers mean the same to CUDA, NVML and the plan")
    used = [gpu.index for gpu in about.gpus[node.name]]
    there = sum(gpu.index >= 0 for gpu in about.topologies[node.name].gpus) if used else 0
    if used != list(range(there)):
        yield Setting(
            "CUDA_VISIBLE_DEVICES",
            ",".join(map(str, used)),
            f"l40s_gpus is {node.gpus_asked}, and the node has {there}",
        )
    yield Setting("CUDA_HOME", _CUDA_HOME, "where the kernels' just-in-time compilers look for nvcc")


def _process(about: GangChoices, node: NodeSpec) -> Iterator[Setting]:
    cuda, its_venv = f":{_CUDA_HOME}/bin" if about.cuda else "", about.venv(node)
    yield Setting("PATH", f"{its_venv}/bin{cuda}:{_SYSTEM_PATH}", "the stack's environment first, then the system")
    yield Setting("HOME", *_home(about, node))
    yield Setting("LANG", "C.UTF-8", "the log is UTF-8 on every node")
    yield Setting("PYTHONUNBUFFERED", "1", "log lines reach the agent immediately")
    yield Setting("HF_HUB_OFFLINE", "1", "the checkpoint is local: nothing is looked up on the internet")
    if about.hosts[node.name].vocabularies:
        yield Setting(
            "TIKTOKEN_ENCODINGS_BASE",
            vocabularies(its_venv),
            "the vocabularies from the stack's bundle: openai_harmony (gpt-oss) would download them",
        )


def _home(about: GangChoices, node: NodeSpec) -> tuple[str, str]:
    """The user's own home where the engine runs as the user whom we asked; else a place that is made for it."""
    host, other = about.hosts[node.name], bool(node.engine_user or node.reach.become)
    if host.home and not other:
        return host.home, f"home directory of {host.user or 'the SSH user'} on this node"
    asked = "root" if node.reach.become else "the SSH user"
    why = f"the engine runs as {node.engine_user or 'the SSH user'}, not as {asked}"
    if not other:
        why = "the home directory was not read"
    return _cache_base(about, node), f"this stack's caches: {why}"


def _cache_base(about: GangChoices, node: NodeSpec) -> str:
    return f"{about.state_dir(node)}/cache/{about.stack.name}"


def _caches(about: GangChoices, node: NodeSpec) -> Iterator[Setting]:
    base = _cache_base(about, node)
    alone = "on this node, for this stack only: nodes with a shared home, or two stacks, would race"
    yield Setting("XDG_CACHE_HOME", base, f"caches {alone}")
    yield Setting("HF_HOME", f"{base}/huggingface", f"the checkpoint's own code is copied here, {alone}")
    yield Setting("TORCHINDUCTOR_CACHE_DIR", f"{base}/inductor", f"torch.compile's output, {alone}")
    if about.cuda:
        yield Setting("TRITON_CACHE_DIR", f"{base}/triton", f"Triton's kernels, {alone}")
        yield Setting("FLASHINFER_WORKSPACE_BASE", f"{base}/flashinfer", f"FlashInfer's kernels, {alone}")


def _filled(value: str, about: GangChoices, node: NodeSpec) -> str:
    """A stack's value with this node's facts: {cpus} is the range of CPUs that a process there may use, once a rank
    (init_threads_binding, sglang 0.5.23 srt/utils/numa_utils.py)."""
    count = about.hosts[node.name].cpu_count or 1
    of_a_rank = "0" if count == 1 else f"0-{count - 1}"
    cpus = "|".join(of_a_rank for _ in range(node.gpus))
    return value.replace("{cpus}", cpus).replace("{venv}", about.venv(node))
