"""What to do next for a goal, given what is seen; and what a plan does to gangs that run. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from orchestrator.gang.serving import Names, Serving, names_of, not_among
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState, NodeState

CONNECT_S = 10.0
"""How long a node may take to accept a connection; one that has not answered for so long was not just restarted."""
PAST_LEASE_S = 5.0
"""By which a gang's failure may be seen later than the lease of the node that was lost."""
MOST_STOPS = 2
"""The living are told to end, then those that died meanwhile, each with a node's whole deadline: what is left after
that does not end."""


class StepKind(str, Enum):
    """STAGE, ARM, GO, STOP_NOW: a node verb on the named nodes. WAIT: look again soon.
    DONE: the goal is reached. FAIL: it can't be reached, and nothing of ours is left. REFUSE: something else runs.
    GIVE_UP: it takes longer than any healthy start; end it, and fail. LOST: a node that it needs can't be reached."""

    STAGE = "stage"
    ARM = "arm"
    GO = "go"
    STOP_NOW = "stop-now"
    WAIT = "wait"
    DONE = "done"
    FAIL = "fail"
    REFUSE = "refuse"
    GIVE_UP = "give-up"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A gang that serves.

    plan_id: the plan that should run
    run_id:  the run that we staged ourselves, '' before that: the end of an older run is not our failure
    lease_s: silence after which the gang ends itself, in seconds
    stops:   how often its nodes were told to end what runs there, on the way to this goal
    """

    plan_id: str
    run_id: str = ""
    lease_s: float = 30.0
    stops: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """One step, on these nodes at once (none for WAIT, DONE, FAIL, REFUSE, LOST). why: text for the events."""

    do: StepKind
    nodes: tuple[str, ...] = ()
    why: str = ""


def on_its_way(goal: Goal, view: GangView) -> bool:
    """Another command's run of the very plan that we want, which has not served yet: we may end it if it does not
    become ready. A run that has served is not ours to end, however badly it does."""
    return view.plan_id == goal.plan_id and (view.state.before_go or view.state.loads)


def next_step(goal: Goal, view: GangView, troubled_s: float = 0.0) -> Action:
    """What to do now; then look at the gang again.

    troubled_s: for how long some node has not answered, or the gang has been degraded, in seconds. Nothing is waited
    for without an end: a node that nothing was staged on has the time of a connection, one of our run its lease, after
    which its gang has failed unless only the path from here is broken.
    """
    if goal.run_id and view.run_id in (goal.run_id, ""):
        return _raise(goal, view, troubled_s)
    return _begin(goal, view, troubled_s)


def _there(view: GangView) -> tuple[str, ...]:
    """Nodes with a living agent, or with the report of one that is dead."""
    return tuple(node.name for node in view.nodes if node.alive or node.state is NodeState.DEAD)


def _begin(goal: Goal, view: GangView, troubled_s: float) -> Action:
    """Before we have a run of our own: join a run of this very plan, make room, or stage. A node that can't be reached
    may run anything: nothing is staged or ended beside it."""
    left_over = view.state.before_go or view.state is GangState.FAILED
    if view.running and not (view.unreachable and left_over):
        return _beside_another(goal, view, troubled_s)
    if view.unreachable:
        return _until_reached(troubled_s, CONNECT_S)
    if dead := _there(view):
        return _end(goal, dead, "its agent is dead, so its other nodes must stop")
    return Action(StepKind.STAGE, tuple(node.name for node in view.nodes), "nothing runs")


def _beside_another(goal: Goal, view: GangView, troubled_s: float) -> Action:
    if view.plan_id != goal.plan_id and (view.state.loads or view.state.was_ready):
        return Action(StepKind.REFUSE, why=f"plan {view.plan_id} ({view.model}) is {view.state.value}")
    if view.state.before_go or view.state is GangState.FAILED:
        living = tuple(node.name for node in view.nodes if node.alive)
        return _end(goal, living, "left over from an interrupted or failed run")
    if view.state in (GangState.DRAINING, GangState.STOPPING):
        return Action(StepKind.WAIT, why="the gang is stopping")
    if view.state is GangState.DEGRADED and view.service_healthy and view.trouble != "hung":
        return Action(StepKind.DONE, why=f"it serves, but is degraded: {view.trouble}")
    return _raise(goal, view, troubled_s)


def _end(goal: Goal, nodes: tuple[str, ...], why: str) -> Action:
    if goal.stops >= MOST_STOPS:
        return Action(StepKind.FAIL, why=f"the agent on {', '.join(nodes)} does not end")
    return Action(StepKind.STOP_NOW, nodes, why)


def _until_reached(troubled_s: float, limit_s: float) -> Action:
    return Action(StepKind.LOST if troubled_s >= limit_s else StepKind.WAIT, why="some nodes can't be reached")


def _raise(goal: Goal, view: GangView, troubled_s: float) -> Action:
    """Take our run, or one of the same plan, onwards from the state of its nodes."""
    if view.state is GangState.FAILED:
        left = _there(view) if not goal.stops else ()
        return Action(StepKind.STOP_NOW, left, "the gang failed") if left else Action(StepKind.FAIL)
    if view.state in (GangState.ABSENT, GangState.STOPPING, GangState.DRAINING):
        do, why = (StepKind.WAIT, "it is stopping") if view.running else (StepKind.FAIL, "it was stopped")
        return Action(do, why=why)
    return _onwards(goal, view, troubled_s)


def _onwards(goal: Goal, view: GangView, troubled_s: float) -> Action:
    patience_s = goal.lease_s + PAST_LEASE_S
    if view.state is GangState.READY:
        return Action(StepKind.DONE, why="ready")
    if view.unreachable and (view.state.before_go or view.state is GangState.UNKNOWN or not view.run_id):
        return _until_reached(troubled_s, patience_s)
    if told_of := _to_tell(view):
        return told_of
    if view.state is GangState.DEGRADED and troubled_s >= patience_s:
        return _in_trouble(view)
    return Action(StepKind.WAIT, why=view.progress)


def _in_trouble(view: GangView) -> Action:
    """It has been degraded for longer than a lease: what hangs does not come back by itself, unless it is seen to."""
    if _answers(view):
        return Action(StepKind.DONE, why=f"it serves, but is degraded: {view.trouble}")
    if view.stands_still:
        return Action(StepKind.FAIL, why="the engine hangs")
    return Action(StepKind.WAIT, why=view.progress)


def _to_tell(view: GangView) -> Action | None:
    """What nodes that have not started, or take too long, are told; None where there is nothing to tell them."""
    staged = tuple(node.name for node in view.nodes if node.state is NodeState.STAGED and not node.alive)
    armed = tuple(node.name for node in view.nodes if node.state is NodeState.ARMED)
    if staged:
        return Action(StepKind.ARM, staged, "staged")
    if view.state is GangState.STAGED:
        return Action(StepKind.WAIT, why="the agents are connecting to each other")
    if armed and not view.unreachable:
        return Action(StepKind.GO, armed, "all agents are armed")
    return Action(StepKind.GIVE_UP, why=f"{view.late.node}: {view.late.text}") if view.late is not None else None


def _answers(view: GangView) -> bool:
    """Whether a degraded gang serves. Its other agents are only ready if the leader's was; where that one can't be
    asked or writes nothing, and no lease has ended them, it still is."""
    unread = (NodeState.UNREACHABLE, NodeState.SILENT)
    by_others = any(node.node_rank == 0 and node.state in unread for node in view.nodes)
    return (bool(view.service_healthy) or by_others) and view.trouble != "hung"


@dataclass(frozen=True, slots=True)
class ChangeSchedule:
    """Names of gangs.

    rise:  nothing runs there, or already what the plan wants: starting them interrupts no service
    turns: stopped and started with the new plan, one after the other; those that do not serve come first
    busy:  those of `turns` that are starting with another plan
    alone: of those of `turns` that stop while nothing else serves their model by its own name: what is lost
    partly: of the others of them the names that nothing else serves meanwhile
    last:  of those of `turns` that serve what nobody does afterwards: these names
    """

    rise: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    alone: Serving = field(default_factory=dict)
    partly: Serving = field(default_factory=dict)
    last: Serving = field(default_factory=dict)


def change_schedule(
    gangs: Sequence[GangView], same: Collection[str], *, serving: Serving, planned: Serving
) -> ChangeSchedule:
    """same: names of gangs that run what the plan wants; serving: what is asked for behind the same router now, of
    these gangs and of others; planned: what these are asked for by the plan."""
    other = [gang for gang in gangs if gang.name not in same]
    busy = [gang for gang in other if gang.state.loads]
    served = [gang for gang in other if gang.state.was_ready]
    turns = sorted([*busy, *served], key=lambda gang: bool(gang.service_healthy))
    rise = [gang for gang in gangs if gang not in turns]
    now = {gang.name: serving.get(gang.name) or names_of(gang) for gang in turns}
    elsewhere = _others(gangs, serving)
    lost = _meanwhile(now, {**elsewhere, **{gang.name: planned[gang.name] for gang in rise}}, serving, planned)
    alone, partly = _by_own_name(now, lost)
    return ChangeSchedule(
        rise=_names(rise),
        turns=_names(turns),
        busy=_names(busy),
        alone=alone,
        partly=partly,
        last=_nobodys(now, [*elsewhere.values(), *planned.values()]),
    )


def _others(gangs: Sequence[GangView], serving: Serving) -> Serving:
    """What gangs that are not among these are asked for."""
    chosen = set(_names(gangs))
    return {name: its for name, its in serving.items() if name not in chosen}


def _nobodys(now: Serving, others: Collection[Names]) -> Serving:
    """Of each the names that none of the others has, where it has some."""
    lost = {name: not_among(its, others) for name, its in now.items()}
    return {name: its for name, its in lost.items() if its}


def _by_own_name(now: Serving, lost: Serving) -> tuple[Serving, Serving]:
    """Those that lose their model's own name, and the others that lose something."""
    alone = {name: its for name, its in lost.items() if now[name][0] in its}
    return alone, {name: its for name, its in lost.items() if its and name not in alone}


def _names(gangs: Iterable[GangView]) -> tuple[str, ...]:
    return tuple(gang.name for gang in gangs)


def _meanwhile(turns: Serving, meanwhile: Serving, serving: Serving, planned: Serving) -> Serving:
    """Of each in its turn, the names that nobody else has then: those before it are as planned, those after it as now.
    One that does not serve takes over from nobody."""
    lost, meanwhile = {}, dict(meanwhile)
    waiting = {name: serving[name] for name in turns if name in serving}
    for name, its in turns.items():
        waiting.pop(name, None)
        lost[name] = not_among(its, [*meanwhile.values(), *waiting.values()])
        meanwhile[name] = planned[name]
    return lost
