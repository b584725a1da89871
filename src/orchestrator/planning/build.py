"""The plan: everything that `up` will do, from inventory, profile, stack and facts. A pure function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from orchestrator.engines.registry import engine_of, unlisted
from orchestrator.model.finding import Finding
from orchestrator.model.gpu_facts import L40S, facts_of, short_name
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.model.plan import GangPlan, Memory, Plan
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.model.topology import Area, Gpu, Topology
from orchestrator.planning import (
    admission,
    choices,
    drafts,
    graph_sizes,
    layout,
    memory,
    page_cache,
    reserve,
    start_estimate,
)
from orchestrator.planning import engine_command as commands
from orchestrator.planning.choices import rdma_choice, tcp_choices
from orchestrator.planning.dimensions import context_length
from orchestrator.planning.environment import (
    FAILS_OVER,
    GangChoices,
    failover_asked,
)
from orchestrator.planning.host import HostFacts, contradictions
from orchestrator.planning.node_plan import dist_init, node_plan
from orchestrator.planning.plan_file import facts_digest, plan_id, short_digest
from orchestrator.protocol.errors import FindingsError, InputError
from orchestrator.protocol.planned import FAILOVER_HANGS, Layout, Transport
from orchestrator.protocol.severity import Severity
from orchestrator.protocol.staging import Asked, NodePlan
from orchestrator.topology.gpus import Machine
from orchestrator.topology.network import networks_met

Fact = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """What was read for a plan.

    topologies: by node name; a node that is missing here is planned without facts (TCP, no GPU check)
    hosts:      by node name
    api_keys:   fingerprint of the API key, by name of the gangs that ask for one
    """

    topologies: Mapping[str, Topology] = field(default_factory=dict)
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    api_keys: Mapping[str, str] = field(default_factory=dict)


def build_plan(
    gangs: Sequence[GangSpec],
    profile: ModelProfile,
    stack: Stack,
    asked: Asked,
    known: PlanFacts,
) -> Plan:
    """What would run on every node of these gangs. profile, stack: those that were asked for, or chosen.

    Where some of a gang's nodes were left out, no layout is asked for and the usual one does not fit those that are
    left, one that does is taken. Raises InputError (a layout, flag or setting that can't be) or FindingsError (the
    hardware does not allow it).
    """
    planned = [_plan_gang(gang, _laid_out(profile, gang, stack, asked), stack, asked, known) for gang in gangs]
    facts = tuple(fact for _, its_facts, _ in planned for fact in its_facts)
    findings = [*_stack_notes(stack), *(finding for *_, its_findings in planned for finding in its_findings)]
    once = dict.fromkeys(findings)  # equal gangs have equal ones
    unnamed = Plan(
        plan_id="",
        facts_digest=facts_digest(facts),
        facts=facts,
        gangs=tuple(plan for plan, _, _ in planned),
        findings=tuple(sorted(once, key=lambda finding: _GRAVEST_FIRST.index(finding.severity))),
    )
    return replace(unnamed, plan_id=plan_id(unnamed))


_GRAVEST_FIRST = (Severity.STOP, Severity.SLOW, Severity.UNKNOWN, Severity.NOTE)


def _laid_out(profile: ModelProfile, gang: GangSpec, stack: Stack, asked: Asked) -> ModelProfile:
    """The profile with the layout and the degrees that were asked for; a replica takes the layout that the profile
    names for its GPUs."""
    chosen, pins = asked.layout, layout.pins(asked)
    if gang.replica_of and not chosen and not pins:
        chosen = layout.on_one_node(profile, gang.leader.gpus, stack)
    return replace(layout.laid_out(profile, chosen, stack) if chosen else profile, **pins)


def _stack_notes(stack: Stack) -> Iterator[Finding]:
    if remark := unlisted(stack):
        yield remark
    if stack.tested:
        yield Finding(
            id="STACK-TESTED",
            severity=Severity.NOTE,
            node="",
            title=f"stack {stack.name}: {stack.tested}",
            evidence=(stack.source,),
        )


def _plan_gang(
    gang: GangSpec, profile: ModelProfile, stack: Stack, asked: Asked, known: PlanFacts
) -> tuple[GangPlan, Sequence[Fact], Sequence[Finding]]:
    """The gang's plan, the facts that it rests on, and what an operator should know."""
    _check_gpu_counts(gang)
    topologies, cuda = known.topologies, stack.device == "cuda"
    gpus = {node.name: _gpus(node, topologies.get(node.name) if cuda else None) for node in gang.nodes}
    hosts = {node.name: known.hosts.get(node.name, HostFacts()) for node in gang.nodes}
    seen = [gpu for each in gpus.values() for gpu in each]
    budgets = _Budgets(gang=gang, stack=stack, extra_args=asked.extra_args, seen=seen, host=hosts[gang.leader.name])
    profile, its_layout = _layout(gang, profile, stack, asked, budgets)
    its_memory = budgets.of(profile, its_layout)
    engine, flags = engine_of(stack), budgets.flags(profile)
    running = admission.at_once(engine, its_memory, its_layout, flags)
    asked_queue = gang.leader.overrides.max_queued
    queue = admission.queue_limit(asked_queue, engine, flags, running, f"gang {gang.name}: l40s_max_queued")
    about = replace(
        _choices(gang, profile, stack, topologies, hosts, gpus, its_layout),
        extra_args=asked.extra_args,
        api_key=known.api_keys.get(gang.name, ""),
        graphs=its_memory.graphs,
        queue=queue,
        running=running,
    )
    caches = page_cache.fits(about.to_read, its_layout, gpus, topologies)
    read = page_cache.to_read(about.to_read, its_layout)
    start = start_estimate.estimate(profile, its_layout, its_memory, read=read, fits=caches)
    in_words = filter(None, [*admission.words(running, queue), page_cache.words(caches), start_estimate.words(start)])
    plan = GangPlan(
        name=gang.name,
        dialect=stack.dialect,
        engine_version=stack.engine_version,
        layout=its_layout,
        memory=replace(its_memory, requests=running, explanation=(*its_memory.explanation, *in_words)),
        dist_init=dist_init(about),
        http_port=gang.leader.ports.http,
        nccl_port=gang.leader.ports.nccl,
        model_bytes=about.to_read,
        start=start,
        nodes=tuple(node_plan(about, node) for node in gang.nodes),
    )
    usual = budgets.of(profile, its_layout, own=True) if budgets.fits(profile, its_layout, own=True) else None
    remarks = (
        *drafts.findings(engine, flags, profile, gang.name),
        *page_cache.findings(caches),
        *reserve.findings(gang.name, its_memory, usual),
    )
    facts = [(node.name, *fact) for node in gang.nodes for fact in _facts(about, node)]
    return plan, facts, _findings(about, plan, remarks)


def _layout(
    gang: GangSpec, profile: ModelProfile, stack: Stack, asked: Asked, budgets: _Budgets
) -> tuple[ModelProfile, Layout]:
    """How the model is divided here, and the profile that says so."""
    where = f"gang {gang.name}"
    budgets.flags(profile)  # a wrong flag is not what does not fit
    able, shape = layout.abilities(engine_of(stack)), {"nodes": len(gang.nodes), "gpus_per_node": gang.leader.gpus}
    if gang.short and not (asked.layout or layout.pins(asked)):
        profile = layout.adapted(profile, stack, able, **shape, fits=budgets.fits)
    layout.refuse_model(profile, stack, budgets.seen, where)
    its_layout = layout.usual(profile, **shape)
    layout.refuse(profile, its_layout, able, fits=partial(budgets.fits, profile), where=where)
    drafts.refuse(engine_of(stack), profile, its_layout, budgets.flags(profile), where)
    if stack.device == "cuda":
        graph_sizes.refuse(engine_of(stack), profile, its_layout, budgets.flags(profile), where)
    return profile, its_layout


def _findings(about: GangChoices, plan: GangPlan, of_memory: Iterable[Finding]) -> tuple[Finding, ...]:
    return (
        *about.decision.findings,
        *_not_measured(about),
        *of_memory,
        *(finding for node in about.gang.nodes for finding in _node_findings(about, node)),
        *choices.by_hand(about.decision, plan),
        *_port_failover(about, plan.nodes),
        *choices.pcie_ipc(plan, about.profile),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Budgets:
    """What each GPU of a gang has to hold, by profile and layout. host: of the leader, whose checkpoint tells the
    longest context; own: with the reserve that the engine would take by itself."""

    gang: GangSpec
    stack: Stack
    extra_args: tuple[str, ...]
    seen: Sequence[Gpu]
    host: HostFacts

    def flags(self, profile: ModelProfile) -> dict[str, tuple[str, ...]]:
        """Raises InputError for a flag that the engine does not have."""
        return commands.asked(engine_of(self.stack), profile, self.stack, self.gang.leader, self.extra_args)

    def of(self, profile: ModelProfile, its_layout: Layout, *, own: bool = False) -> Memory:
        """Raises InputError where it does not fit."""
        flags, config = self.flags(profile), self.host.config
        return memory.budget(
            profile,
            self.stack,
            its_layout,
            flags=reserve.engines_own(flags) if own else flags,
            gpu_total=min((gpu.memory_total for gpu in self.seen if gpu.memory_total), default=None),
            where=f"gang {self.gang.name}",
            context=context_length(config) if config is not None else None,
            nvlink=any(known.nvlink for gpu in self.seen if (known := facts_of(gpu.name))),
        )

    def fits(self, profile: ModelProfile, its_layout: Layout, *, own: bool = False) -> bool:
        """Whether it fits."""
        with suppress(InputError):
            self.of(profile, its_layout, own=own)
            return True
        return False


def _choices(
    gang: GangSpec,
    profile: ModelProfile,
    stack: Stack,
    topologies: Mapping[str, Topology],
    hosts: Mapping[str, HostFacts],
    gpus: Mapping[str, tuple[Gpu, ...]],
    its_layout: Layout,
) -> GangChoices:
    cuda, tcp = stack.device == "cuda", tcp_choices(gang, topologies)
    machines = [Machine(node, topologies[node.name]) for node in gang.nodes if node.name in topologies]
    met = networks_met(machine.topology for machine in machines)
    rdma = {machine.name: rdma_choice(machine, tcp[machine.name], met) for machine in machines if cuda}
    decision = choices.TransportDecision(Transport.NONE, "an engine on CPU uses Gloo, not NCCL")
    return GangChoices(
        gang=gang,
        profile=profile,
        stack=stack,
        engine=engine_of(stack),
        topologies=topologies,
        hosts=hosts,
        gpus=gpus,
        layout=its_layout,
        decision=choices.decide(gang, rdma, its_layout) if cuda else decision,
        tcp=tcp,
        rdma=rdma,
        to_read=memory.checkpoint_bytes(profile),
    )


def _gpu_words(gpus: Sequence[Gpu], *, with_addresses: bool) -> str:
    places = {gpu.index: f"{gpu.index} at {gpu.address}" if with_addresses else f"{gpu.index}" for gpu in gpus}
    return ", ".join(f"{places[gpu.index]}: {gpu.name} {gpu.memory_total}" for gpu in gpus)


def _facts(about: GangChoices, node: NodeSpec) -> Iterator[tuple[str, str]]:
    """What a node's plan rests on, as (name, value)."""
    tcp, rdma, gpus = about.tcp[node.name], about.rdma.get(node.name), about.gpus[node.name]
    yield "tcp interface", tcp.interface
    yield "tcp address", tcp.address
    if gpus:
        some = len(gpus) < len(about.topologies[node.name].gpus)
        yield "gpus", _gpu_words(gpus, with_addresses=some)  # then which ones they are is a choice
    if rdma is not None and about.decision.transport is Transport.RDMA:
        yield "rdma ports", ", ".join(f"{port.name} {port.link_layer}" for port in rdma.ports)
        yield "gid index", "" if rdma.gid.index is None else str(rdma.gid.index)
    host = about.hosts[node.name]
    known = {
        "home": host.home,
        "driver": _driver(about, node) if about.cuda else "",
        "engine python": host.engine_python,
        "config.json": None if host.config is None else short_digest(host.config),
        "cpus": "" if about.cuda or not host.cpu_count else str(host.cpu_count),
    }
    yield from ((name, value) for name, value in known.items() if value)


def _driver(about: GangChoices, node: NodeSpec) -> str:
    """'' where it was not read."""
    return about.topologies[node.name].driver if node.name in about.topologies else ""


def _not_measured(about: GangChoices) -> Iterator[Finding]:
    """An L40S is assumed where no GPU was seen."""
    names = {short_name(gpu.name) for gpus in about.gpus.values() for gpu in gpus if gpu.name} or {L40S.name}
    measured = names == {L40S.name} and (about.stack.name, str(about.layout)) in about.profile.measured
    if about.cuda and not measured:
        yield Finding(
            id="LAYOUT-NOT-MEASURED",
            severity=Severity.NOTE,
            node="",
            title=f"{about.layout} of {about.profile.name} by {about.stack.name} is not measured on "
            f"{' and '.join(sorted(names))}",
        )


def _node_findings(about: GangChoices, node: NodeSpec) -> Iterator[Finding]:
    yield from contradictions(node, about.stack, about.profile, about.hosts[node.name], _driver(about, node))
    if node.name not in about.topologies:
        yield Finding(
            id="FACTS-UNREAD",
            severity=Severity.UNKNOWN,
            node=node.name,
            title="this node's hardware was not read: interface, RDMA ports and GPUs are not checked",
        )
    elif about.decision.transport is Transport.RDMA:
        rdma = about.rdma[node.name]
        if rdma.gid.index is None and any(port.link_layer != "InfiniBand" for port in rdma.ports):
            yield Finding(
                id="GID-INDEX-MIXED",
                severity=Severity.NOTE,
                node=node.name,
                devices=tuple(port.name for port in rdma.ports),
                title="NCCL_IB_GID_INDEX stays unset",
                evidence=(rdma.gid.reason,),
                effect="NCCL 2.21 and newer choose an index for each port",
                fix="to choose one yourself, set l40s_gid_index",
            )


def _port_failover(about: GangChoices, nodes: Sequence[NodePlan]) -> Iterator[Finding]:
    """What is known of it where it is on, whoever asked for it; and that it is off where it was asked for in vain."""
    on = [node.name for node in nodes if node.network.notice_s]
    if on:
        yield Finding(
            id="PORT-FAILOVER",
            severity=Severity.NOTE,
            node="",
            title=f"gang {about.gang.name}: NCCL's port failover is on",
            evidence=(f"NCCL_IB_RESILIENCY_PORT_FAILOVER=1 on {', '.join(on)}",),
            effect=f"if a port fails, NCCL continues over the other one of its card; {FAILOVER_HANGS}",
            fix="to turn it off, remove l40s_port_failover (or that variable of l40s_env) from the inventory",
        )
    elif failover_asked(about):
        yield Finding(
            id="PORT-FAILOVER",
            severity=Severity.NOTE,
            node="",
            title=f"gang {about.gang.name}: l40s_port_failover is set, and NCCL can't fail over here",
            evidence=(f"NCCL {about.stack.nccl_version}", f"the transport is {about.decision.transport.value}"),
            effect="if a port fails, the gang fails",
            fix=f"it takes RDMA, NCCL {FAILS_OVER} or newer, and two ports of one card on every node",
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
        lost = [gpu for gpu in topology.gpus if gpu.index < 0 or gpu.lost]
        silent = ", ".join(f"{gpu.address}: {gpu.lost or 'not shown by NVML'}" for gpu in lost)
        raise FindingsError(
            f"{len(answering)} GPUs respond, but l40s_gpus is {node.gpus_asked}"
            + (f" ({silent})" if silent else "")
            + (f" ({topology.nvml_error})" if topology.nvml_error else ""),
            where=f"node {node.name}",
            fix="find out why with `nvidia-smi` and `dmesg -T | grep Xid` on the node and reset it, or name"
            " others in l40s_gpus, as `l40s_gpus: [0, 1, 2, 4]`",
        )
    return answering
