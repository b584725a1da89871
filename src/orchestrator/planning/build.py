"""The plan: everything that `up` will do, from inventory, profile, stack and facts. A pure function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from orchestrator.engines.engine import Engine, Intent, Option
from orchestrator.engines.memory import context_length
from orchestrator.engines.registry import engine_of, unlisted
from orchestrator.model.errors import FindingsError, InputError
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.gpu_facts import L40S, short_name
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.model.plan import GangPlan, Memory, NodePlan, Plan
from orchestrator.model.profile import CudaGraphs, ModelProfile, Stack
from orchestrator.model.topology import Area, Gpu, Topology
from orchestrator.planning import choices, layout, memory, named, page_cache
from orchestrator.planning import engine_command as commands
from orchestrator.planning.choices import RdmaChoice, rdma_choice, tcp_choices
from orchestrator.planning.environment import Surroundings, environment, network
from orchestrator.planning.host import HostFacts, contradictions, gang_dir, model_path, state_dir, venv
from orchestrator.planning.plan_file import facts_digest, plan_id, short_digest
from orchestrator.protocol.planned import Layout, Transport
from orchestrator.topology.gpus import Machine
from orchestrator.topology.network import TcpChoice, networks_met

Fact = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Pinned degrees (None lets the profile or the number of GPUs decide) and extra engine flags.

    layout: name of one of the profile's layouts, '' for none
    adapt: where nothing is pinned and the usual layout does not fit these nodes, one that does (planning.named)
    debug: NCCL says at start which transport it took (NCCL_DEBUG=INFO)
    api_keys: fingerprint of the API key, by name of the gangs that ask for one
    """

    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    expert_parallel: int | None = None
    attention_data_parallel: int | None = None
    layout: str = ""
    adapt: bool = False
    extra_args: tuple[str, ...] = ()
    debug: bool = True
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    api_keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def pinned(self) -> bool:
        """Somebody chose a degree."""
        degrees = (self.tensor_parallel, self.pipeline_parallel, self.expert_parallel, self.attention_data_parallel)
        return any(degree is not None for degree in degrees)


def build_plan(
    gangs: Sequence[GangSpec],
    profile: ModelProfile,
    stack: Stack,
    topologies: Mapping[str, Topology],
    options: PlanOptions,
) -> Plan:
    """What would run on every node of these gangs.

    topologies: by node name; a node that is missing here is planned without facts (TCP, no GPU check)
    Raises InputError (a layout, flag or setting that can't be) or FindingsError (the hardware does not allow it).
    """
    engine = engine_of(stack)
    plans, facts, findings = [], list[Fact](), list(_stack_notes(stack))
    for gang in gangs:
        _check_gpu_counts(gang)
        cuda = stack.device == "cuda"
        given = _GangGiven(
            gang=gang,
            profile=_laid_out(profile, gang, stack, options),
            stack=stack,
            engine=engine,
            topologies=topologies,
            options=options,
            gpus={node.name: _gpus(node, topologies.get(node.name) if cuda else None) for node in gang.nodes},
        )
        plan, its_facts, its_findings = _plan_gang(given)
        plans.append(plan)
        facts += its_facts
        findings += its_findings
    unnamed = Plan(
        plan_id="",
        facts_digest=facts_digest(facts),
        facts=tuple(facts),
        gangs=tuple(plans),
        findings=tuple(sorted(findings, key=_gravity)),
    )
    return replace(unnamed, plan_id=plan_id(unnamed))


def _laid_out(profile: ModelProfile, gang: GangSpec, stack: Stack, options: PlanOptions) -> ModelProfile:
    """The profile with the layout that was asked for; a replica takes the one that the profile names for its GPUs."""
    chosen = options.layout
    if gang.replica_of and not chosen and not options.pinned:
        chosen = named.on_one_node(profile, gang.leader.gpus, stack)
    return named.laid_out(profile, chosen, stack) if chosen else profile


def _gravity(finding: Finding) -> int:
    """The gravest first."""
    return (Severity.STOP, Severity.SLOW, Severity.UNKNOWN, Severity.NOTE).index(finding.severity)


def _stack_notes(stack: Stack) -> tuple[Finding, ...]:
    found = unlisted(stack)
    notes = (found,) if found else ()
    if not stack.tested:
        return notes
    tested = Finding(
        id="STACK-TESTED",
        severity=Severity.NOTE,
        node="",
        title=f"stack {stack.name}: {stack.tested}",
        evidence=(stack.source,),
    )
    return (*notes, tested)


@dataclass(frozen=True, kw_only=True)
class _GangGiven:
    """One gang that is being planned. gpus: those that it uses, by node."""

    gang: GangSpec
    profile: ModelProfile
    stack: Stack
    engine: Engine
    topologies: Mapping[str, Topology]
    options: PlanOptions
    gpus: Mapping[str, tuple[Gpu, ...]]

    @property
    def cuda(self) -> bool:
        return self.stack.device == "cuda"

    def flags(self) -> memory.Flags:
        return commands.asked(self.engine, self.profile, self.stack, self.gang.leader, self.options.extra_args)

    def budget(self, of: Layout, flags: memory.Flags) -> Memory:
        where, total = f"gang {self.gang.name}", self._gpu_total()
        config = self.options.hosts.get(self.gang.leader.name, HostFacts()).config
        context = context_length(config) if config is not None else None
        return memory.budget(self.profile, self.stack, of, flags=flags, gpu_total=total, where=where, context=context)

    def fits(self, of: Layout, flags: memory.Flags) -> bool:
        with suppress(InputError):
            self.budget(of, flags)
            return True
        return False

    def adapted(self) -> _GangGiven:
        """With a layout that fits the nodes that it has."""

        def fits(profile: ModelProfile, its_layout: Layout) -> bool:
            other = replace(self, profile=profile)
            return other.fits(its_layout, other.flags())

        able, nodes, each = layout.abilities(self.engine), len(self.gang.nodes), self.gang.leader.gpus
        profile = named.adapted(self.profile, self.stack, able, nodes=nodes, gpus_per_node=each, fits=fits)
        return replace(self, profile=profile)

    def chosen_layout(self, flags: memory.Flags) -> Layout:
        options = self.options
        its_layout = layout.usual(
            self.profile,
            len(self.gang.nodes),
            self.gang.leader.gpus,
            tensor=options.tensor_parallel,
            pipeline=options.pipeline_parallel,
            expert=options.expert_parallel,
            attention=options.attention_data_parallel,
        )
        layout.refuse(
            self.profile,
            its_layout,
            layout.abilities(self.engine),
            fits=lambda candidate: self.fits(candidate, flags),
            where=f"gang {self.gang.name}",
        )
        return its_layout

    def _gpu_total(self) -> int | None:
        totals = [gpu.memory_total for gpus in self.gpus.values() for gpu in gpus if gpu.memory_total]
        return min(totals) if totals else None

    def _gpu_name(self) -> str:
        """The gang's GPUs in short, 'H100' or 'L20 and L40S'; L40S where none was seen."""
        names = {short_name(gpu.name) for gpus in self.gpus.values() for gpu in gpus if gpu.name}
        return " and ".join(sorted(names)) or L40S.name


@dataclass(frozen=True, kw_only=True)
class _GangChoices(_GangGiven):
    """What the plans of its nodes share."""

    layout: Layout
    tcp: Mapping[str, TcpChoice]
    rdma: Mapping[str, RdmaChoice]
    decision: choices.TransportDecision
    caches: page_cache.Fits
    dist_init: str

    @property
    def _whole(self) -> tuple[bool, bool]:
        """Whether dense layers and shared experts are kept complete on every rank."""
        if self.layout.expert_parallel == 1:
            return False, False
        return layout.kept_whole(self.profile, self.layout.tensor_parallel)

    def node_plan(self, node: NodeSpec) -> NodePlan:
        its_venv, host = venv(node, self.stack.name), self.options.hosts.get(node.name, HostFacts())
        state, checkpoint = state_dir(node, host), model_path(node, self.profile)
        settings = commands.inside(self.stack, environment(self._surroundings(node, its_venv, state, host)))
        env = {setting.name: setting.value for setting in settings}
        its_network = network(env, self.decision.transport, self.tcp[node.name].address)
        chosen = commands.options(
            self.engine,
            self._intent(node, checkpoint),
            self.profile,
            self.stack,
            node,
            self.options.extra_args,
        )
        launch, chosen = self._with_secrets(node, state, chosen)
        gpus = tuple(gpu.index for gpu in self.gpus[node.name])
        if not gpus and self.cuda:
            named = node.gpu_names if all(map(str.isdigit, node.gpu_names)) else ()
            gpus = tuple(map(int, named)) or tuple(range(node.gpus))
        sources = [(setting.name, setting.source) for setting in settings]
        sources += [(option.flag, option.source) for option in chosen]
        return NodePlan(
            gang=self.gang.name,
            name=node.name,
            node_rank=node.node_rank,
            address=self.tcp[node.name].address,
            command=tuple(word.replace("{venv}", its_venv) for word in launch),
            flags=tuple((option.flag, *option.values) for option in chosen),
            env=tuple(env.items()),
            env_public=node.overrides.env_public,
            sources=tuple(sources),
            gpus=gpus,
            gpu_uuids=tuple(gpu.uuid for gpu in self.gpus[node.name]),
            tp_ranks=layout.tensor_ranks(self.layout, node.node_rank),
            working_dir=state,
            model_path=checkpoint,
            http_url=self._http_url(node),
            network=its_network,
            graph_batch=commands.graph_batch(self.engine, chosen),
            container=commands.container(
                self.stack,
                node,
                gpus=gpus,
                rdma=its_network.rdma,
                shown=self._shown(node, state, checkpoint, env),
            ),
        )

    def _shown(self, node: NodeSpec, state: str, checkpoint: str, env: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
        """What a container sees of its node, each with whether the engine may write there."""
        yield checkpoint, False
        yield env["XDG_CACHE_HOME"], True
        if self._has_secrets(node):
            yield gang_dir(state, self.gang.name), False

    def _has_secrets(self, node: NodeSpec) -> bool:
        """The leader alone serves HTTP, so that it alone is given the API key."""
        return bool(self.options.api_keys.get(self.gang.name)) and node is self.gang.leader

    def _with_secrets(
        self, node: NodeSpec, state: str, chosen: tuple[Option, ...]
    ) -> tuple[tuple[str, ...], tuple[Option, ...]]:
        launch = commands.launch_words(self.stack)
        if not self._has_secrets(node):
            return launch, chosen
        launch, more = self.engine.with_secrets(launch, gang_dir(state, self.gang.name))
        return launch, (*chosen, *more)

    def _surroundings(self, node: NodeSpec, venv: str, state: str, host: HostFacts) -> Surroundings:
        topology = self.topologies.get(node.name)
        used = self.gpus[node.name]
        return Surroundings(
            node=node,
            stack=self.stack,
            engine=self.engine,
            profile=self.profile,
            transport=self.decision.transport,
            transport_reason=self.decision.reason,
            tcp=self.tcp[node.name],
            rdma=self.rdma.get(node.name, RdmaChoice((), "no facts were read")),
            gpus=tuple(gpu.index for gpu in used),
            all_gpus=sum(gpu.index >= 0 for gpu in topology.gpus) if topology and used else 0,
            venv=venv,
            state_dir=state,
            host=host,
            debug=self.options.debug,
            whole_shared=self._whole[1],
            failover=bool(self.rdma) and all(map(choices.two_ports_of_a_card, self.rdma.values())),
        )

    def _intent(self, node: NodeSpec, checkpoint: str) -> Intent:
        return Intent(
            model_path=checkpoint,
            served_name=self.profile.name,
            tensor_parallel=self.layout.tensor_parallel,
            pipeline_parallel=self.layout.pipeline_parallel,
            expert_parallel=self.layout.expert_parallel,
            attention_data_parallel=self.layout.attention_data_parallel,
            micro_batch=self.profile.micro_batch,
            whole_dense=self._whole[0],
            nnodes=self.layout.nnodes,
            node_rank=node.node_rank,
            dist_init=self.dist_init,
            host=node.http_host,
            port=node.ports.http,
            nccl_port=node.ports.nccl,
            trust_remote_code=self.profile.trust_remote_code,
            graphs=self.engine.graphs(self.profile) if self.cuda else CudaGraphs(),
        )

    def _http_url(self, node: NodeSpec) -> str:
        everywhere = node.http_host in ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound
        host = self.tcp[node.name].address if everywhere else node.http_host
        return f"http://{_bracketed(host)}:{node.ports.http}"

    def facts(self, node: NodeSpec) -> list[Fact]:
        host = self.options.hosts.get(node.name, HostFacts())
        tcp, rdma = self.tcp[node.name], self.rdma.get(node.name)
        gpus = self.gpus[node.name]
        facts = [("tcp interface", tcp.interface), ("tcp address", tcp.address)]
        if gpus:
            some = len(gpus) < len(self.topologies[node.name].gpus)  # then which ones they are is a choice
            names = (f"{gpu.index}{f' at {gpu.address}' * some}: {gpu.name} {gpu.memory_total}" for gpu in gpus)
            facts.append(("gpus", ", ".join(names)))
        if rdma is not None and self.decision.transport is Transport.RDMA:
            facts.append(("rdma ports", ", ".join(f"{port.name} {port.link_layer}" for port in rdma.ports)))
            facts.append(("gid index", "" if rdma.gid.index is None else str(rdma.gid.index)))
        facts += self._host_facts(node, host)
        return [(node.name, name, value) for name, value in facts]

    def _host_facts(self, node: NodeSpec, host: HostFacts) -> Iterator[tuple[str, str]]:
        if host.home:
            yield "home", host.home
        if self.cuda and node.name in self.topologies and self.topologies[node.name].driver:
            yield "driver", self.topologies[node.name].driver
        if host.engine_python:
            yield "engine python", host.engine_python
        if host.config is not None:
            yield "config.json", short_digest(host.config)
        if host.cpu_count and not self.cuda:
            yield "cpus", str(host.cpu_count)

    def findings(self) -> list[Finding]:
        findings = list(self.decision.findings)
        degrees = str(self.layout)
        gpu = self._gpu_name()
        known = gpu == L40S.name and (self.stack.name, degrees) in self.profile.measured
        if self.cuda and not known:
            findings.append(
                Finding(
                    id="LAYOUT-NOT-MEASURED",
                    severity=Severity.NOTE,
                    node="",
                    title=f"gang {self.gang.name}: {degrees} of {self.profile.name} by {self.stack.name} is not "
                    f"measured on {gpu}",
                )
            )
        findings += page_cache.findings(self.caches)
        for node in self.gang.nodes:
            seen = self.topologies.get(node.name)
            host = self.options.hosts.get(node.name, HostFacts())
            findings += contradictions(node, self.stack, self.profile, host, seen.driver if seen else "")
            if seen is None:
                findings.append(_unread(node))
            elif self.decision.transport is Transport.RDMA:
                findings += _gid_findings(node, self.rdma[node.name])
        return findings


def _plan_gang(given: _GangGiven) -> tuple[GangPlan, list[Fact], list[Finding]]:
    """The gang's plan, the facts that it rests on, and what an operator should know."""
    gang, stack, options = given.gang, given.stack, given.options
    if options.adapt and not (options.layout or options.pinned):
        given = given.adapted()
    seen = [gpu for gpus in given.gpus.values() for gpu in gpus]
    named.refuse(given.profile, stack, seen, f"gang {gang.name}")
    flags = given.flags()
    its_layout = given.chosen_layout(flags)
    chosen, budget = _choices(given, its_layout), given.budget(its_layout, flags)
    words = page_cache.words(chosen.caches)
    nodes = tuple(chosen.node_plan(node) for node in gang.nodes)
    ports = gang.leader.ports
    plan = GangPlan(
        name=gang.name,
        model=given.profile.name,
        stack=stack.name,
        dialect=stack.dialect,
        engine_version=stack.engine_version,
        layout=its_layout,
        memory=replace(budget, explanation=(*budget.explanation, *([words] if words else []))),
        dist_init=chosen.dist_init,
        service_url=nodes[0].http_url,
        agent_address=chosen.tcp[gang.leader.name].address,
        agent_port=ports.agent,
        http_port=ports.http,
        lease_s=gang.leader.lease_s,
        model_bytes=memory.checkpoint_bytes(given.profile),
        canary=given.profile.canary,
        nodes=nodes,
        device=stack.device,
        nccl_port=ports.nccl,
        api_key=options.api_keys.get(gang.name, ""),
    )
    facts = [fact for node in gang.nodes for fact in chosen.facts(node)]
    by_transport = (*choices.by_hand(chosen.decision, plan), *choices.pcie_ipc(plan, given.profile))
    return plan, facts, [*chosen.findings(), *by_transport]


def _choices(given: _GangGiven, its_layout: Layout) -> _GangChoices:
    gang, known = given.gang, given.topologies
    tcp = tcp_choices(gang, known)
    met = networks_met(known[node.name] for node in gang.nodes if node.name in known)
    rdma = {
        node.name: rdma_choice(Machine(node, known[node.name]), tcp[node.name], met)
        for node in gang.nodes
        if node.name in known and given.cuda
    }
    decision = choices.TransportDecision(Transport.NONE, "an engine on CPU uses Gloo, not NCCL")
    if given.cuda:
        decision = choices.decide(gang, rdma, its_layout)
    each = page_cache.to_read(memory.checkpoint_bytes(given.profile), its_layout)
    return _GangChoices(
        **vars(given),
        layout=its_layout,
        tcp=tcp,
        rdma=rdma,
        decision=decision,
        caches=page_cache.fits({node.name: each for node in gang.nodes}, page_cache.rooms(gang, its_layout, known)),
        dist_init=f"{_bracketed(tcp[gang.leader.name].address)}:{gang.leader.ports.dist_init}",
    )


def _check_gpu_counts(gang: GangSpec) -> None:
    counts = {node.name: node.gpus for node in gang.nodes}
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise InputError(
            f"the nodes of gang {gang.name} have different numbers of GPUs: {each}",
            where="inventory: l40s_gpus",
            fix="give every node of a gang the same l40s_gpus",
        )


def _gpus(node: NodeSpec, topology: Topology | None) -> tuple[Gpu, ...]:
    """The GPUs that this gang uses here, in NVML's order; none for an engine on CPU or without facts."""
    if topology is None:
        return ()
    answering = Machine(node, topology).answering
    if len(answering) < node.gpus:
        if unread := topology.lacks(Area.GPUS):
            raise choices.not_read(node.name, unread, "how many GPUs respond", "run `nvidia-smi` there")
        silent = ", ".join(f"{gpu.address}: {gpu.lost or 'not shown by NVML'}" for gpu in topology.gpus
                           if gpu.index < 0 or gpu.lost)  # fmt: skip
        raise FindingsError(
            f"{len(answering)} GPUs respond, but l40s_gpus is {node.gpus_asked}"
            + (f" ({silent})" if silent else "")
            + (f" ({topology.nvml_error})" if topology.nvml_error else ""),
            where=f"node {node.name}",
            fix="find out why with `nvidia-smi` and `dmesg -T | grep Xid` on the node and reset it, or name"
            " others in l40s_gpus, as `l40s_gpus: [0, 1, 2, 4]`",
        )
    return answering


def _gid_findings(node: NodeSpec, rdma: RdmaChoice) -> list[Finding]:
    if rdma.gid.index is not None or all(port.link_layer == "InfiniBand" for port in rdma.ports):
        return []
    return [
        Finding(
            id="GID-INDEX-MIXED",
            severity=Severity.NOTE,
            node=node.name,
            devices=tuple(port.name for port in rdma.ports),
            title="NCCL_IB_GID_INDEX stays unset",
            evidence=(rdma.gid.reason,),
            effect="NCCL 2.21 and newer choose an index for each port",
            fix="to choose one yourself, set l40s_gid_index",
        )
    ]


def _unread(node: NodeSpec) -> Finding:
    return Finding(
        id="FACTS-UNREAD",
        severity=Severity.UNKNOWN,
        node=node.name,
        title="this node's hardware was not read: interface, RDMA ports and GPUs are not checked",
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
