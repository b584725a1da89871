"""One node's part of a gang's plan: what the engine is started with there, and what its agent needs for that. Pure."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.engines.engine import Intent
from orchestrator.engines.known_flags import Option
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.profile import CudaGraphs
from orchestrator.planning import engine_command as commands
from orchestrator.planning import layout
from orchestrator.planning.environment import GangChoices, environment, network
from orchestrator.planning.host import gang_dir, model_path
from orchestrator.planning.phase_limits import allowed_s
from orchestrator.protocol.addresses import host_port
from orchestrator.protocol.planned import NodeNetwork
from orchestrator.protocol.staging import Endpoint, NodePlan, Ports, ServiceOrder, words


def node_plan(about: GangChoices, node: NodeSpec) -> NodePlan:
    """Raises InputError for a flag, a setting or a directory that can't be."""
    settings = commands.inside(about.stack, environment(about, node))
    env = {setting.name: setting.value for setting in settings}
    its_network = network(env, about.decision.transport, about.tcp[node.name].address)
    command, options = _command_line(about, node)
    flags = tuple((option.flag, *option.values) for option in options)
    flag_sources = {option.flag: option.source for option in options}
    http_url, leads = node.http_url(its_network.address), node is about.gang.leader
    in_venv = about.stack.install == "venv"
    part = replace(
        _place(about, node),
        network=its_network,
        served=commands.served(options),
        graph_batch=_graph_batch(about, options),
        argv=words(command, flags),
        command=command,
        flags=flags,
        env=env,
        env_public=node.overrides.env_public,
        sources={setting.name: setting.source for setting in settings} | flag_sources,
        container=commands.container(about.stack),
        venv_python=command[0] if in_venv else "",
        packages=_packages(about) if in_venv else {},  # an image is known by its digest
        limits=_limits(node, its_network) if in_venv else {},  # its daemon sets them
        ports=_ports(about, node),
        http_url=http_url,
        service=ServiceOrder(url=http_url) if leads else None,
        canary=about.profile.canary if leads else None,
        watch=replace(about.engine.watch(env), allowed_s=allowed_s(about.to_read)),
    )
    commands.refuse_mounts(part)
    return part


def _place(about: GangChoices, node: NodeSpec) -> NodePlan:
    """Who and where it is, in which gang, with which GPUs and ranks."""
    gang = about.gang
    reached = {member.reach.host: member.name for member in gang.nodes}  # engines name a peer by its address
    return NodePlan(
        gang=gang.name,
        node=node.name,
        node_rank=node.node_rank,
        nnodes=len(gang.nodes),
        members=tuple(member.name for member in gang.nodes),
        addresses=reached | {about.tcp[member.name].address: member.name for member in gang.nodes},
        state_dir=node.state_dir,
        engine_user=node.engine_user,
        model=about.profile.name,
        stack=about.stack.name,
        device=about.stack.device,
        layout=about.layout,
        gpus=_gpus(about, node),
        gpu_uuids=tuple(gpu.uuid for gpu in about.gpus[node.name]),
        tp_ranks=layout.tensor_ranks(about.layout, node.node_rank),
        working_dir=about.state_dir(node),
        model_path=model_path(node, about.profile),
        leader=Endpoint(address=about.tcp[gang.leader.name].address, port=gang.leader.ports.agent),
        lease_s=gang.leader.lease_s,
        request_limit=about.queue.waiting if about.queue else None,
        runs_at_once=about.running,
        api_key=about.api_key or None,
    )


def _gpus(about: GangChoices, node: NodeSpec) -> tuple[int, ...]:
    """As the node's facts have them; where they were not read, as the inventory names or counts them."""
    seen = tuple(gpu.index for gpu in about.gpus[node.name])
    if seen or not about.cuda:
        return seen
    named = tuple(int(name) for name in node.gpu_names if name.isdigit())
    return named if named and len(named) == len(node.gpu_names) else tuple(range(node.gpus))


def _graph_batch(about: GangChoices, options: tuple[Option, ...]) -> int | None:
    """The largest that is captured: of the memory's arithmetic, else as the flags tell it."""
    return commands.graph_batch(about.engine, options) if about.graphs is None else max(about.graphs, default=0)


def _packages(about: GangChoices) -> dict[str, str]:
    """Versions that the node must find installed."""
    versions = {about.engine.package: about.stack.engine_version, "torch": about.stack.torch_version}
    return {package: version for package, version in versions.items() if version}


def _limits(node: NodeSpec, its_network: NodeNetwork) -> dict[str, int]:
    """RDMA registers memory without end; -1 is unlimited. A machine shown below another root has limits of its own."""
    return {"memlock": -1} if its_network.rdma and node.fs_root == "/" else {}


def _ports(about: GangChoices, node: NodeSpec) -> Ports:
    """Where this node will listen: HTTP everywhere, rendezvous on the leader. The agent binds its own port itself."""
    address = "" if node.http_host == "0.0.0.0" else node.http_host  # noqa: S104 - compared, not bound
    http = Endpoint(address=address, port=node.ports.http)
    if node is not about.gang.leader or len(about.gang.nodes) == 1:
        return Ports(check_free=(http,))
    return Ports(check_free=(http, Endpoint(address=about.tcp[node.name].address, port=node.ports.dist_init)))


def _command_line(about: GangChoices, node: NodeSpec) -> tuple[tuple[str, ...], tuple[Option, ...]]:
    """The words before the flags, and the flags; those that name secrets on the leader alone, since it serves HTTP."""
    launch = commands.launch_words(about.stack)
    options = commands.options(about.engine, _intent(about, node), about.profile, about.stack, node, about.extra_args)
    if about.api_key and node is about.gang.leader:
        launch, more = about.engine.with_secrets(launch, gang_dir(about.state_dir(node), about.gang.name))
        options = (*options, *more)
    return tuple(word.replace("{venv}", about.venv(node)) for word in launch), options


def dist_init(about: GangChoices) -> str:
    """host:port of the rendezvous."""
    leader = about.gang.leader
    return host_port(about.tcp[leader.name].address, leader.ports.dist_init)


def _intent(about: GangChoices, node: NodeSpec) -> Intent:
    return Intent(
        model_path=model_path(node, about.profile),
        served_name=about.profile.name,
        layout=about.layout,
        micro_batch=about.profile.micro_batch,
        whole_dense=about.kept_whole[0],
        node_rank=node.node_rank,
        dist_init=dist_init(about),
        host=node.http_host,
        port=node.ports.http,
        nccl_port=node.ports.nccl,
        trust_remote_code=about.profile.trust_remote_code,
        graphs=about.engine.graphs(about.profile) if about.cuda else CudaGraphs(),
        queue=about.queue,
    )
