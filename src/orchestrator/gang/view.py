"""Where a gang is, derived from what its nodes' agents say. Pure; gang state is stored nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.model.errors import DeployError
from orchestrator.model.report import AgentState, Cause, GangState, NodeReport, Phase, RankReport

SILENT_S = 10.0
"""A living agent that has written nothing for this long is stuck."""
STALE_PROBE_S = 60.0
"""A leader's last HTTP probe older than this says nothing any more: twice the engine's own 20 s and our pause."""

PHASES = ("rendezvous", "nccl", "weights", "kv-cache", "graphs", "warm-up", "ready")
"""Order of life of every engine (the dialects' patterns use these names)."""

_OVER = (AgentState.STOPPED, AgentState.FAILED)
_ORDER = (AgentState.STAGED, AgentState.ARMED, AgentState.STARTING, AgentState.WARMING, AgentState.READY)

NO_PHASE = Phase()

Answer = NodeReport | None | DeployError
"""A node's report, None where nothing was ever staged there, or why it could not be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node of a gang. state: an agent's state, or absent, unreachable, silent, dead."""

    name: str
    node_rank: int
    state: str
    alive: bool = False
    phase: Phase = NO_PHASE
    ranks: tuple[RankReport, ...] = ()
    error: DeployError | None = None
    left_behind: tuple[int, ...] = ()
    started_s: float = 0.0
    """Seconds since this run was staged, by the node's own clock."""
    phase_s: float = 0.0
    """Seconds since its phase began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangView:
    """All nodes together.

    cause:     what failed first, None while nothing has
    secondary: what the other nodes said because of it
    progress:  one sentence on who is behind, '' where nobody is or nothing is to be waited for
    remarks:   what an operator should know although the state does not change for it
    """

    name: str
    state: GangState
    run_id: str = ""
    plan_id: str = ""
    model: str = ""
    stack: str = ""
    cause: Cause | None = None
    secondary: tuple[Cause, ...] = ()
    service_url: str = ""
    service_healthy: bool | None = None
    canary_text: str | None = None
    nodes: tuple[NodeView, ...] = ()
    progress: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def unreachable(self) -> tuple[NodeView, ...]:
        """Nodes that could not be asked."""
        return tuple(node for node in self.nodes if node.error is not None)

    @property
    def running(self) -> bool:
        """An agent lives somewhere: something of ours may hold GPUs."""
        return any(node.alive for node in self.nodes)


def view(name: str, answers: Mapping[str, Answer]) -> GangView:
    """The gang from its nodes' answers, in node-rank order.

    Every report carries its own node's clock (`now`), so no clock is needed here and none must agree.
    """
    reports = {node: answer for node, answer in answers.items() if isinstance(answer, NodeReport)}
    run_id = _current_run(list(reports.values()))
    current = {node: report for node, report in reports.items() if report.run_id == run_id}
    nodes = tuple(_node(rank, node, answer, run_id) for rank, (node, answer) in enumerate(answers.items()))
    some = next(iter(current.values()), None)
    cause, secondary = _causes(current, nodes)
    state = _state(nodes, current, cause)
    if state is GangState.ABSENT:
        nodes = tuple(_emptied(node) for node in nodes)
    leader = next((report for report in current.values() if report.service_url), None)
    return GangView(
        name=name,
        state=state,
        run_id=run_id,
        plan_id=some.plan_id if some else "",
        model=some.model if some and state is not GangState.ABSENT else "",
        stack=some.stack if some and state is not GangState.ABSENT else "",
        cause=cause if state is not GangState.ABSENT else None,
        secondary=secondary if state is not GangState.ABSENT else (),
        service_url=leader.service_url if leader else "",
        service_healthy=_healthy(leader) if leader else None,
        canary_text=leader.canary_text if leader else None,
        nodes=nodes,
        progress=_progress(nodes) if state in (GangState.STARTING, GangState.WARMING) else "",
        remarks=tuple(_remarks(current, nodes, run_id, reports)),
    )


def _current_run(reports: Sequence[NodeReport]) -> str:
    """The run that lives, else the one staged last (on one node's clock or another: a guess among dead runs)."""
    if not reports:
        return ""
    return max(reports, key=lambda report: (report.alive, report.started_at)).run_id


def _node(rank: int, name: str, answer: Answer, run_id: str) -> NodeView:
    if isinstance(answer, DeployError):
        return NodeView(name=name, node_rank=rank, state="unreachable", error=answer)
    if answer is None or (answer.run_id != run_id and not answer.alive):
        return NodeView(name=name, node_rank=rank, state="absent")
    return NodeView(
        name=name,
        node_rank=rank,
        state=_word(answer),
        alive=answer.alive,
        phase=answer.phase,
        ranks=answer.ranks,
        left_behind=answer.left_behind,
        started_s=max(0.0, answer.now - answer.started_at),
        phase_s=max(0.0, answer.now - answer.phase.since),
    )


def _emptied(node: NodeView) -> NodeView:
    """The ranks of a run that was stopped are nobody's business any more; what would not end is."""
    return replace(node, phase=NO_PHASE, ranks=()) if node.error is None else node


def _word(report: NodeReport) -> str:
    if report.alive:
        return "silent" if report.now - report.updated_at > SILENT_S else report.state.value
    if report.state in (*_OVER, AgentState.STAGED):
        return report.state.value
    return "dead"


def _state(nodes: Sequence[NodeView], current: Mapping[str, NodeReport], cause: Cause | None) -> GangState:
    states = {report.state for report in current.values()}
    living = [report for report in current.values() if report.alive]
    if not current:
        return GangState.DEGRADED if any(node.error for node in nodes) else GangState.ABSENT
    if states == {AgentState.STOPPED} and not living:
        return GangState.ABSENT
    if AgentState.FAILED in states or any(node.state == "dead" for node in nodes):
        return GangState.FAILED
    for ending, meaning in (
        (AgentState.DRAINING, GangState.DRAINING),
        (AgentState.STOPPING, GangState.STOPPING),
        (AgentState.STOPPED, GangState.STOPPING),
    ):
        if ending in states:
            return meaning if living else GangState.ABSENT
    if cause is not None:
        return GangState.FAILED
    return _rising(nodes, current)


def _rising(nodes: Sequence[NodeView], current: Mapping[str, NodeReport]) -> GangState:
    last = min((report.state for report in current.values()), key=_ORDER.index)
    if last is not AgentState.READY:
        complete = len(current) == len(nodes)
        return GangState(last.value) if complete or last is not AgentState.STAGED else GangState.STAGED
    leader = next((report for report in current.values() if report.service_url), None)
    troubled = (
        any(node.state != "ready" for node in nodes)
        or any(report.silent for report in current.values())
        or leader is None
        or not _healthy(leader)
    )
    return GangState.DEGRADED if troubled else GangState.READY


def _healthy(leader: NodeReport) -> bool:
    fresh = leader.now - leader.service_checked_at <= STALE_PROBE_S
    return bool(leader.alive and leader.service_healthy and fresh)


def _causes(current: Mapping[str, NodeReport], nodes: Sequence[NodeView]) -> tuple[Cause | None, tuple[Cause, ...]]:
    """What failed first, and what the nodes say that followed from it.

    The order in which the leader's agent heard of things comes before any clock; a secondary cause never
    comes before a primary one; a node's own account of its end is better than what others saw of it.
    """
    by_leadership = sorted(current.values(), key=lambda report: report.node_rank)
    verdicts = [report.verdict for report in by_leadership if report.verdict]
    own = sorted((report.cause for report in current.values() if report.cause), key=lambda cause: cause.at)
    lost = _lost(current, nodes)
    told = sorted([*verdicts, *own], key=lambda cause: cause.secondary)
    if not told or (told[0].secondary and lost):
        return lost, tuple(own)
    first = told[0]
    account = current[first.node].cause if first.node in current else None
    if account is not None and account.node == first.node and not account.secondary:
        first = account
    return first, tuple(cause for cause in own if cause != first)


def _lost(current: Mapping[str, NodeReport], nodes: Sequence[NodeView]) -> Cause | None:
    """A node whose agent is gone without having said why."""
    dead = next((node for node in nodes if node.state == "dead"), None)
    if dead is None:
        return None
    return Cause(
        node=dead.name,
        text=f"the agent on {dead.name} is gone without a word, and its engine with it",
        fix=f"look at {dead.name}: was it rebooted, or the agent killed?",
        at=current[dead.name].updated_at if dead.name in current else 0.0,
    )


def _progress(nodes: Sequence[NodeView]) -> str:
    """'node2 is at weights 41 of 163, the others are further': whoever is behind all others."""
    placed = [node for node in nodes if node.phase.name in PHASES]
    if len(placed) < 2:
        return ""
    last, second = sorted(placed, key=_place)[:2]
    if _place(last) >= _place(second):
        return ""
    steps = f" {last.phase.step} of {last.phase.of}" if last.phase.of else ""
    others = {node.phase.name for node in placed if node is not last}
    if others == {last.phase.name}:
        return f"{last.name} is behind, at {last.phase.name}{steps}; the next one is at {second.phase.step}"
    return f"{last.name} is at {last.phase.name}{steps}, the others are further"


def _place(node: NodeView) -> tuple[int, float]:
    done = node.phase.step / node.phase.of if node.phase.of else 0.0
    return PHASES.index(node.phase.name), done


def _remarks(
    current: Mapping[str, NodeReport], nodes: Sequence[NodeView], run_id: str, reports: Mapping[str, NodeReport]
) -> list[str]:
    remarks = [f"{node.name} can't be reached: {node.error.what}" for node in nodes if node.error is not None]
    remarks += [
        f"{name} has not heard from {', '.join(report.silent)}" for name, report in current.items() if report.silent
    ]
    remarks += [
        f"{node.name}: process {', '.join(map(str, node.left_behind))} would not end"
        for node in nodes
        if node.left_behind
    ]
    remarks += [
        f"{name} still runs another run ({report.run_id})"
        for name, report in reports.items()
        if report.alive and report.run_id != run_id
    ]
    return remarks + _same_remarks(current)


def _same_remarks(current: Mapping[str, NodeReport]) -> list[str]:
    """What the agents remark on, once for all nodes that say the same."""
    sayers: dict[str, list[str]] = {}
    for name, report in current.items():
        for remark in report.remarks if report.alive else ():
            sayers.setdefault(remark, []).append(name)
    return [f"{', '.join(names)}: {remark}" for remark, names in sayers.items()]
