"""A gang's state, derived from its agents' reports. Pure; gang state is stored nowhere."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.gang import pace
from orchestrator.gang.agreement import (
    agreed_members,
    current_run,
    leader_report,
    most_say,
    others_remarks,
    outvoted,
)
from orchestrator.gang.hangs import HangEvidence, classify, with_hang
from orchestrator.gang.paths import (
    Contact,
    contact,
    contact_sentence,
    failover_remark,
    planned_tcp,
    rail_remarks,
    rail_sentence,
    transport,
)
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.per_node import collected
from orchestrator.protocol.errors import DeployError, Unreachable
from orchestrator.protocol.report import AgentState, Cause, Phase, RailChange, RankReport, RankState, Report

STALE_PROBE_S = 60.0
"""Seconds after which a leader's last HTTP probe no longer counts: twice the engine's own 20 s plus our pause."""

_ORDER = (AgentState.STAGED, AgentState.ARMED, AgentState.STARTING, AgentState.WARMING, AgentState.READY)
_ENDING = {
    AgentState.DRAINING: GangState.DRAINING,
    AgentState.STOPPING: GangState.STOPPING,
    AgentState.STOPPED: GangState.STOPPING,
}
"""A gang's state while one of its agents is in the given state; the first match counts."""

UNHEARD = "unheard"
"""Trouble of an unknown gang: whoever watches it has had no answer of any node for as long as its lease."""

ENDED = "ended"
"""Trouble of an absent gang, to whoever watches it: its run has ended in good order, and no verb wanted that."""

NO_PHASE = Phase()
OUTSIDE = -1
"""The node rank of a node that has no part in the gang's run."""

Answer = Report | None | DeployError
"""A node's report; None if nothing was ever staged there; or why it could not be queried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node of a gang, from its own report and those of the others.

    contact:   which path to it is broken, if any
    started_s: seconds since this run was staged, by the node's own clock; phase_s: since its phase began
    rails:     RDMA ports that NCCL has stopped using in this run
    began:     when each phase of the engine's start began, in seconds since this run was staged
    least_free_bytes: the least that was seen free on any of its GPUs in this run; None where that was not read
    """

    name: str
    node_rank: int
    state: NodeState
    alive: bool = False
    phase: Phase = NO_PHASE
    ranks: tuple[RankReport, ...] = ()
    error: DeployError | None = None
    contact: Contact = Contact.FINE
    left_behind: tuple[int, ...] = ()
    started_s: float = 0.0
    phase_s: float = 0.0
    rails: tuple[RailChange, ...] = ()
    spare: bool = False
    began: Mapping[str, float] = field(default_factory=dict)
    least_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangView:
    """All nodes together.

    cause:     the first failure, None if there is none
    secondary: the errors that followed on other nodes
    trouble:   why a gang is degraded, the worst first: hung, silent, unreachable, stopped, no-memory, slow, nodes (it
               runs without some of them); else ''. UNHEARD: none of its nodes has answered for its lease.
               ENDED: without a verb
    gathering: evidence of a hang is being gathered on a node, which takes seconds
    late:      why there is no point in waiting longer for its start; None if there is
    transport: NCCL traffic that does not take the planned path, with what that costs; empty until that is known
    members:   names of the run's nodes in node-rank order; empty if an older release started it, or there is no run
    missing:   names of nodes that the run was started without, which may have been stopped since
    spares:    nodes that wait to replace another node; a spare that has replaced one is among the nodes
    progress:  one sentence on which nodes are behind, '' if none is, or if there is nothing to wait for
    remarks:   what an operator should know although it does not change the state
    findings:  what is wrong about its nodes or its place in the router; each is among the remarks too (gang/remarks.py)
    over_tcp:  one sentence where the plan has traffic between the nodes travel over TCP
    proved:    features that the plan asks for and the engine's log confirms, with the nodes if not all confirm them
    ordered:   names of the nodes that know that a person has ended this run
    served:    names that its engine answers to; () where an older release started it (gang/serving.py: names_of)
    told_url: where its leader says that it serves; service_url is what of that is believed
    certificate: PEM text of what its clients are shown; '' for none, or where an older release started it
    request_limit: most requests that may wait in it; of a router: most that it lets in at once; None: no limit
    runs_at_once: requests of usual length that it runs at once, by its plan; None where that is not known
    accepted: ids of findings that its inventory accepts on all its nodes: of these, nothing makes it degraded
    """

    name: str
    state: GangState
    run_id: str = ""
    plan_id: str = ""
    model: str = ""
    served: tuple[str, ...] = ()
    stack: str = ""
    cause: Cause | None = None
    secondary: tuple[Cause, ...] = ()
    trouble: str = ""
    gathering: bool = False
    late: Cause | None = None
    service_url: str = ""
    told_url: str = ""
    service_healthy: bool | None = None
    canary_text: str | None = None
    certificate: str = ""
    request_limit: int | None = None
    runs_at_once: int | None = None
    nodes: tuple[NodeView, ...] = ()
    transport: tuple[Finding, ...] = ()
    members: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    spares: tuple[NodeView, ...] = ()
    progress: str = ""
    remarks: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    proved: tuple[str, ...] = ()
    over_tcp: str = ""
    ordered: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()

    @property
    def least_free_bytes(self) -> int | None:
        """Of its fullest GPU in this run; None where a node of it did not read that."""
        least = [node.least_free_bytes for node in self.nodes if node.ranks]
        known = [free for free in least if free is not None]
        return min(known) if known and len(known) == len(least) else None

    @property
    def unreachable(self) -> tuple[NodeView, ...]:
        """Nodes that could not be queried, except those that the run was started without."""
        aside = () if self.state is GangState.ABSENT else self.missing
        return tuple(node for node in self.nodes if node.error is not None and node.name not in aside)

    @property
    def share(self) -> str:
        """'3 of 4 nodes'; '' if the run has all its nodes."""
        have, should = self.serving_nodes, len(self.nodes) - len(self.stand_ins)
        return f"{have} of {should} nodes" if have < should else ""

    @property
    def serving_nodes(self) -> int:
        """How many nodes have a part in the run."""
        return len(self.nodes) - len(self.missing)

    @property
    def stand_ins(self) -> tuple[str, ...]:
        """Spares that have a part in the run."""
        return tuple(node.name for node in self.nodes if node.spare)

    @property
    def replaced(self) -> bool:
        """Whether spares have replaced all missing nodes."""
        return bool(self.missing) and not self.share

    def rail_words(self, *, back: bool = False) -> tuple[str, ...]:
        """One sentence for each RDMA port that has failed in this run. back: only for those that work again, which NCCL
        uses only after a restart."""
        return tuple(
            f"{node.name}: {rail_sentence(rail, self.name)}"
            for node in self.nodes
            for rail in node.rails
            if rail.up or not back
        )

    @property
    def running(self) -> bool:
        """Whether some agent is alive, so that processes of ours may hold GPUs."""
        return any(node.alive for node in self.nodes)

    @property
    def serves(self) -> bool:
        """Whether requests are answered and it is not being stopped."""
        return bool(self.service_healthy) and self.state.was_ready

    @property
    def hang_moves(self) -> bool:
        """Whether what a hung gang waits for goes on by itself: kernels that are compiled, data that still moves."""
        hang = self.cause.hang if self.cause is not None else None
        return self.trouble == "hung" and hang is not None and hang.moves

    @property
    def stands_still(self) -> bool:
        """Whether it hangs, has been looked at, and is not seen to go on by itself."""
        return self.trouble == "hung" and not self.gathering and not self.hang_moves


def _without_part_in(
    members: Collection[str], nodes: Sequence[NodeView], current: Mapping[str, Report], reports: Mapping[str, Report]
) -> tuple[str, ...]:
    """Nodes that the run was started without: not those that live in another one which as many are in, since one of two
    could leave the other out by what it says."""
    if not members:
        return ()
    apart = [name for name, report in reports.items() if report.alive] if outvoted(current, reports) else []
    return tuple(node.name for node in nodes if not node.spare and node.name not in (*members, *apart))


def view(name: str, answers: Mapping[str, Answer], spares: Collection[str] = ()) -> GangView:
    """The gang from its nodes' answers, in node-rank order. spares: nodes that are only spares.

    Every report carries its node's own time (`now`), so that no clock is read here and clocks need not agree.
    """
    reports = {node: answer for node, answer in answers.items() if isinstance(answer, Report)}
    current = current_run(reports)
    run_id = next((report.run_id for report in current.values()), "")
    members = agreed_members(current)
    leader = leader_report(current, members)
    everybody, waiting = _roster(answers, spares, current, members)
    missing = _without_part_in(members, everybody, current, reports)
    nodes = [node for node in everybody if node.name not in missing]
    cause, secondary = _causes(current, nodes)
    seen = GangView(
        name=name,
        state=_state(nodes, current, cause),
        run_id=run_id,
        plan_id=most_say((report.plan_id for report in current.values()), ""),
        nodes=everybody,
        members=members,
        missing=missing,
        spares=waiting,
        remarks=(*others_remarks(current, members), *_remarks(current, nodes, run_id, reports)),
        proved=_proved(current),
        ordered=tuple(name for name, report in current.items() if report.ordered),
        **_service(leader),
    )
    if seen.state is GangState.ABSENT:
        return replace(seen, nodes=tuple(map(_emptied, everybody)))
    return _of_run(replace(seen, cause=cause, secondary=secondary), nodes, current, leader)


def _service(leader: Report | None) -> dict[str, Any]:
    if leader is None:
        return {}
    healthy, text = _healthy(leader), leader.canary_text
    return {
        "service_url": leader.service_url,
        "told_url": leader.service_url,
        "service_healthy": healthy,
        "canary_text": text,
        "certificate": leader.certificate,
        "request_limit": leader.request_limit,
        "runs_at_once": leader.runs_at_once,
    }


def _roster(
    answers: Mapping[str, Answer], spares: Collection[str], current: Mapping[str, Report], members: Collection[str]
) -> tuple[tuple[NodeView, ...], tuple[NodeView, ...]]:
    """The gang's nodes, including spares that have a part in the run; and the spares that wait."""
    waiting = [node for node in spares if node in answers and node not in (*members, *current)]
    everybody = tuple(
        replace(_node(rank, node, answers[node], current), spare=node in spares)
        for rank, node in enumerate(node for node in answers if node not in waiting)
    )
    return everybody, tuple(_waiting(node, answers[node]) for node in waiting)


def _of_run(
    seen: GangView, nodes: Sequence[NodeView], current: Mapping[str, Report], leader: Report | None
) -> GangView:
    """With what is known of a run that has not ended: what it runs, what it runs without, how far it is or how well."""
    told = ((report.model, report.served, report.stack) for report in current.values())
    model, served, stack = most_say(told, ("", (), ""))
    seen = replace(seen, model=model, served=served, stack=stack)
    if seen.missing:  # the run was started without them
        shown = tuple(
            replace(node, state=NodeState.LEFT_OUT, contact=Contact.FINE, node_rank=OUTSIDE)
            if node.name in seen.missing
            else node
            for node in seen.nodes
        )
        seen = replace(seen, nodes=shown, remarks=(_runs_without(seen), *seen.remarks))
    if seen.state.loads:
        rising = _fresh(current)
        return replace(seen, late=pace.late(rising), progress=pace.progress(rising))
    if not seen.state.was_ready:
        return seen
    trouble = _trouble(nodes, current, leader, short=bool(seen.share))
    return replace(
        seen,
        state=GangState.DEGRADED if trouble else GangState.READY,
        trouble=trouble,
        gathering=any(report.alive and report.looks_until > report.now for report in current.values()),
        cause=_standing(current, leader, trouble) if trouble in ("hung", "stopped", "slow") else seen.cause,
        transport=transport(current),
        over_tcp=planned_tcp(current),
    )


def _waiting(name: str, answer: Answer) -> NodeView:
    """A spare that has no part in the run."""
    error = answer if isinstance(answer, DeployError) else None
    state = NodeState.SPARE if error is None else NodeState.UNREACHABLE
    return NodeView(name=name, node_rank=OUTSIDE, state=state, error=error, spare=True)


def _runs_without(seen: GangView) -> str:
    errors = {node.name: node.error for node in seen.nodes if node.name in seen.missing and node.error is not None}
    away = [name for name, error in errors.items() if isinstance(error, Unreachable)]
    back = [name for name in seen.missing if name not in errors]
    words = [f"{', '.join(away)} can't be reached"] if away else []
    words += [f"{name}: {error.what}" for name, error in errors.items() if name not in away]
    words += [f"{', '.join(back)} can be reached"] if back else []
    return f"it runs on {_share_words(seen)}, without {', '.join(seen.missing)} ({'; '.join(words)})"


def _share_words(seen: GangView) -> str:
    share = seen.share or f"{seen.serving_nodes} nodes"
    return f"{share}, with the spare {', '.join(seen.stand_ins)}" if seen.stand_ins else share


def _node(rank: int, name: str, answer: Answer, current: Mapping[str, Report]) -> NodeView:
    if isinstance(answer, DeployError):
        contact_with = contact(name, answer, current, stuck=False)
        state = NodeState.UNREACHABLE if isinstance(answer, Unreachable) else NodeState.UNKNOWN
        return NodeView(name=name, node_rank=rank, state=state, error=answer, contact=contact_with)
    if answer is None or (name not in current and not answer.alive):
        return NodeView(name=name, node_rank=rank, state=NodeState.ABSENT)
    state = NodeState(answer.word)
    return NodeView(
        name=name,
        node_rank=answer.node_rank,
        state=state,
        alive=answer.alive,
        contact=contact(name, None, current, stuck=state is NodeState.SILENT),
        phase=answer.phase,
        ranks=answer.ranks,
        left_behind=answer.left_behind,
        started_s=max(0.0, answer.now - answer.started_at),
        phase_s=max(0.0, answer.now - answer.phase.since),
        began=answer.began,
        rails=answer.rails if answer.alive else (),
        least_free_bytes=answer.least_free_bytes,
    )


def _emptied(node: NodeView) -> NodeView:
    """Without ranks: those of a stopped run no longer matter, only processes that did not exit."""
    return replace(node, phase=NO_PHASE, ranks=()) if node.error is None else node


def _ending(states: Collection[AgentState]) -> GangState | None:
    return next((meaning for state, meaning in _ENDING.items() if state in states), None)


def _some_are_dead(nodes: Sequence[NodeView]) -> bool:
    return any(node.state is NodeState.DEAD for node in nodes)


def _state(nodes: Sequence[NodeView], current: Mapping[str, Report], cause: Cause | None) -> GangState:
    """From the agents' own states; `_with_trouble` decides whether a READY gang is degraded."""
    if not current:
        return GangState.UNKNOWN if any(node.error for node in nodes) else GangState.ABSENT
    states = {report.state for report in current.values()}
    if AgentState.FAILED in states or _some_are_dead(nodes):
        return GangState.FAILED
    if ending := _ending(states):
        return ending if any(report.alive for report in current.values()) else GangState.ABSENT
    return GangState.FAILED if cause is not None else _reached(_fresh(current) or list(current.values()))


def _reached(reports: Sequence[Report]) -> GangState:
    """The state of the node that is furthest behind."""
    return GangState(min((report.state for report in reports), key=_ORDER.index).value)


def _fresh(current: Mapping[str, Report]) -> list[Report]:
    """Without those of silent agents, which are old. The others are ready only once the leader and every other one
    was."""
    return [report for report in current.values() if report.word != NodeState.SILENT.value]


def _some_are_silent(nodes: Sequence[NodeView], current: Mapping[str, Report]) -> bool:
    """By what the controller sees of them, or by what they see of each other."""
    unheard = any(node.state is NodeState.SILENT or node.contact is Contact.LINK for node in nodes)
    return unheard or any(report.silent for report in current.values())


def _trouble(nodes: Sequence[NodeView], current: Mapping[str, Report], leader: Report | None, *, short: bool) -> str:
    """The worst problem that keeps a gang from being ready, '' if none. short: its run has fewer nodes than the gang"""
    ranks = [rank for node in nodes for rank in node.ranks]
    counts = {
        "hung": leader is not None and leader.service_state == "hung",
        "silent": _some_are_silent(nodes, current),
        "unreachable": any(node.state is not NodeState.READY for node in nodes) or leader is None,
        "stopped": any(rank.state is RankState.STOPPED for rank in ranks),
        "no-memory": _some_hold_none(ranks),
        "slow": leader is not None and not _healthy(leader),
        "nodes": short,
    }
    return next((word for word, is_so in counts.items() if is_so), "")


def _some_hold_none(ranks: Sequence[RankReport]) -> bool:
    """A serving rank holds memory on its GPU; if NVML reports none for any rank, this can't be judged."""
    held = [rank.gpu_memory_bytes > 0 for rank in ranks if rank.gpu >= 0]
    return any(held) and not all(held)


def _standing(current: Mapping[str, Report], leader: Report | None, trouble: str) -> Cause | None:
    """Why it stands still: the rank that is waited for, and which hang it is where that was gathered."""
    cause = _waited_for(current, leader)
    looks = {name: report.hang for name, report in current.items() if report.hang is not None}
    if cause is None or leader is None or not looks or trouble == "slow" or leader.service_state != "hung":
        return cause
    silent = tuple(name for name in current if name not in looks)
    age_s = min(report.now - report.hang.at for report in current.values() if report.hang is not None)
    return with_hang(cause, classify(HangEvidence(looks=looks, silent=silent, age_s=age_s)), leader.gang)


def _waited_for(current: Mapping[str, Report], leader: Report | None) -> Cause | None:
    """The rank that a gang waits for: one that a signal has stopped, else the process that NCCL's RAS names, whose TP
    rank its node's report knows."""
    trouble = leader.trouble if leader is not None else None
    stopped = [
        (report.node, rank) for report in current.values() for rank in report.ranks if rank.state is RankState.STOPPED
    ]
    if not stopped:
        return replace(trouble, tp_rank=_rank_meant(trouble, current)) if trouble is not None else None
    node, rank = stopped[0]
    text = f"TP{rank.tp_rank} (pid {rank.pid}) was stopped by a signal, and all other ranks wait for it"
    text += f": {trouble.text}" if trouble is not None else ""
    fix = f"run `kill -CONT {rank.pid}` on {node}"
    return replace(trouble or Cause(node=node, text=""), node=node, tp_rank=rank.tp_rank, text=text, fix=fix)


def _rank_meant(trouble: Cause, current: Mapping[str, Report]) -> int | None:
    """The rank with that process id on that GPU, else the reported one: a container may have its own process ids."""
    report, meant = current.get(trouble.node), (trouble.pid, trouble.gpu)
    if report is None or trouble.pid <= 0:
        return trouble.tp_rank
    return next((rank.tp_rank for rank in report.ranks if (rank.pid, rank.gpu) == meant), trouble.tp_rank)


def _healthy(leader: Report) -> bool:
    return bool(leader.alive and leader.service_healthy and leader.now - leader.service_checked_at <= STALE_PROBE_S)


def _causes(current: Mapping[str, Report], nodes: Sequence[NodeView]) -> tuple[Cause | None, tuple[Cause, ...]]:
    """The first failure, and what followed from it by the nodes' own accounts.

    The order in which the leader's agent received the accounts comes before any clock, then each node's own time since
    the failure. A secondary cause never comes before a primary one. A node's own account of its end is preferred to
    what others saw of it.
    """
    by_leadership = sorted(current.values(), key=lambda report: report.node_rank)
    verdicts = [report.verdict for report in by_leadership if report.verdict]
    ages = [(report.now - report.cause.at, report.cause) for report in current.values() if report.cause]
    own = [cause for _, cause in sorted(ages, key=lambda aged: aged[0], reverse=True)]
    lost = _lost(current, nodes)
    causes = sorted([*verdicts, *own], key=lambda cause: cause.secondary)
    if not causes or (causes[0].secondary and lost):
        return lost, tuple(own)
    first = _by_its_own_account(causes[0], current)
    return first, tuple(cause for cause in own if cause != first)


def _by_its_own_account(first: Cause, current: Mapping[str, Report]) -> Cause:
    account = current[first.node].cause if first.node in current else None
    if account is not None and account.node == first.node and not account.secondary:
        return account
    return first


def _lost(current: Mapping[str, Report], nodes: Sequence[NodeView]) -> Cause | None:
    """A node whose agent is gone without saying why."""
    dead = next((node for node in nodes if node.state is NodeState.DEAD), None)
    if dead is None:
        return None
    report = current.get(dead.name)
    at = report.updated_at if report else 0.0
    if report is not None and report.rebooted:
        text, fix = (
            f"{dead.name} rebooted while its ranks were running",
            f"find out why with `last -x reboot` and `journalctl -b -1` on {dead.name}",
        )
    elif report is not None and report.disk_full:
        text = f"the disk of {dead.name} is full: its agent and its engine have ended, and could not record how"
        fix = f"free space on {dead.name} (`df -h`), then run `l40s-deploy down {report.gang}`"
    else:
        text = f"the agent on {dead.name} ended without a report, and its engine with it"
        fix = f"the machine did not reboot: check `journalctl -k` on {dead.name} for what killed it"
    return Cause(node=dead.name, text=text, fix=fix, at=at)


def _remarks(
    current: Mapping[str, Report], nodes: Sequence[NodeView], run_id: str, reports: Mapping[str, Report]
) -> tuple[str, ...]:
    living = {name: report for name, report in current.items() if report.alive}
    return (
        *_of_an_order(current),
        *_of_contact(nodes, current, living),
        *_of_nodes(nodes, current, living),
        *_of_disks(living),
        *(
            f"{name} is still in another run ({report.run_id})"
            for name, report in reports.items()
            if report.alive and report.run_id != run_id
        ),
        *(
            f"{', '.join(names)}: {remark}"
            for remark, names in _sayers({name: report.remarks for name, report in living.items()}).items()
        ),
    )


def _stopped_ranks(node: NodeView) -> Iterator[str]:
    stopped = (rank for rank in node.ranks if rank.state is RankState.STOPPED)
    yield from (f"{node.name}: TP{rank.tp_rank} (pid {rank.pid}) was stopped by a signal" for rank in stopped)


def _of_nodes(nodes: Sequence[NodeView], current: Mapping[str, Report], living: Mapping[str, Report]) -> Iterator[str]:
    """Ranks, ports, the service, and what a stop has left behind: processes, and GPU memory that is still in use."""
    left = ((node.name, ", ".join(map(str, node.left_behind))) for node in nodes if node.left_behind)
    for node in nodes:
        yield from _stopped_ranks(node)
    yield from (words for name, report in living.items() for words in rail_remarks(name, report))
    yield from failover_remark(next((report.gang for report in living.values()), ""), living.values())
    yield from (
        f"the service is slow: {report.service_detail}" for report in living.values() if report.service_state == "slow"
    )
    yield from (f"{name}: process {pids} did not end" for name, pids in left)
    yield from (f"{name}: {words}" for name, report in current.items() for words in report.held)


def _of_disks(living: Mapping[str, Report]) -> Iterator[str]:
    """Disks without room: nothing of a gang that serves needs them, and no start would succeed there."""
    full = [name for name, report in living.items() if report.disk_full]
    yield from (f"the disk of {name} is full: it serves on; free space on {name} (`df -h`)" for name in full)


def _of_an_order(current: Mapping[str, Report]) -> Iterator[str]:
    """Where a person has ended the run, and a node could not be told or could not record it."""
    ordered = [name for name, report in current.items() if report.ordered]
    left = [name for name, report in current.items() if report.state is not AgentState.STOPPED]
    if ordered and left:
        gang = current[left[0]].gang
        yield (
            f"an operator has stopped it, as {', '.join(ordered)} knows; {', '.join(left)} does not: no guard starts it"
            f" again; run `l40s-deploy down {gang}` once more"
        )


def _of_contact(
    nodes: Sequence[NodeView], current: Mapping[str, Report], living: Mapping[str, Report]
) -> Iterator[str]:
    """Nodes that could not be queried, and nodes that do not hear each other."""
    lost = [node for node in nodes if node.contact]
    yield from (contact_sentence(node.name, node.contact, node.error, current) for node in lost)
    for node in nodes:
        if node.error is not None and not node.contact:
            yield f"{node.name}: {node.error.what} (fix: {node.error.fix})"
    explained = {node.name for node in lost}
    for name, report in living.items():
        if unexplained := [silent for silent in report.silent if silent not in explained]:
            yield f"{name} has not heard from {', '.join(unexplained)}"


def _proved(current: Mapping[str, Report]) -> tuple[str, ...]:
    living = {name: report.proved for name, report in current.items() if report.alive}
    return tuple(
        text if len(names) == len(living) else f"{text} ({', '.join(names)})" for text, names in _sayers(living).items()
    )


def _sayers(words: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Node names by the text that they report."""
    return collected((text, name) for name, texts in words.items() for text in texts)
