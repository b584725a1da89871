"""What to do next to bring a gang to its goal. Pure: shared by `up`, `down` and every restart."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState, NodeState


class Want(str, Enum):
    """RUN: ready to serve. STOP: gracefully. STOP_NOW: at once."""

    RUN = "run"
    STOP = "stop"
    STOP_NOW = "stop-now"


class Do(str, Enum):
    """STAGE, ARM, GO, STOP, STOP_NOW: a node verb on the named nodes. WAIT: look again soon.
    DONE: the goal is reached. FAIL: it can't be reached, and nothing of ours is left. REFUSE: something else runs.
    GIVE_UP: it takes longer than any healthy start; end it, and fail."""

    STAGE = "stage"
    ARM = "arm"
    GO = "go"
    STOP = "stop"
    STOP_NOW = "stop-now"
    WAIT = "wait"
    DONE = "done"
    FAIL = "fail"
    REFUSE = "refuse"
    GIVE_UP = "give-up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Where the gang should be.

    plan_id: the plan that should run (RUN)
    run_id:  the run that we staged ourselves, '' before that: the end of an older run is not our failure
    """

    want: Want
    plan_id: str = ""
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """One step, on these nodes at once (none for WAIT, DONE, FAIL, REFUSE). why: text for the events."""

    do: Do
    nodes: tuple[str, ...] = ()
    why: str = ""


_SERVING = (GangState.STARTING, GangState.WARMING, GangState.READY, GangState.DEGRADED)


_RISING = (GangState.STAGED, GangState.ARMED, GangState.STARTING, GangState.WARMING)


def on_its_way(goal: Goal, view: GangView) -> bool:
    """Another command's run of the very plan that we want, which has not served yet: we may end it if it does not
    become ready. A run that has served is not ours to end, however badly it does."""
    return view.plan_id == goal.plan_id and view.state in _RISING


def actions(goal: Goal, view: GangView) -> tuple[Action, ...]:
    """The next steps, which may be done together; then look at the gang again."""
    if goal.want is not Want.RUN:
        return _stop(goal, view)
    if view.unreachable and not view.running:
        return (Action(Do.WAIT, why="some nodes can't be reached"),)
    if goal.run_id and view.run_id == goal.run_id:
        return _raise(view)
    return _begin(goal, view)


def _stop(goal: Goal, view: GangView) -> tuple[Action, ...]:
    do = Do.STOP if goal.want is Want.STOP else Do.STOP_NOW
    there = tuple(node.name for node in view.nodes if node.alive or node.state is NodeState.DEAD)
    if there:
        return (Action(do, there, "it runs"),)
    return (Action(Do.DONE, why="nothing runs"),)


def _begin(goal: Goal, view: GangView) -> tuple[Action, ...]:
    """Before we have a run of our own: join a run of this very plan, make room, or stage."""
    dead = tuple(node.name for node in view.nodes if node.state is NodeState.DEAD)
    if view.running:
        return _beside_another(goal, view)
    if dead:
        return (Action(Do.STOP_NOW, dead, "its agent is dead, so its other nodes must stop"),)
    return (Action(Do.STAGE, tuple(node.name for node in view.nodes), "nothing runs"),)


def _beside_another(goal: Goal, view: GangView) -> tuple[Action, ...]:
    if view.plan_id != goal.plan_id and view.state in _SERVING:
        return (Action(Do.REFUSE, why=f"plan {view.plan_id} ({view.model}) is {view.state.value}"),)
    if view.state in (GangState.STAGED, GangState.ARMED, GangState.FAILED):
        living = tuple(node.name for node in view.nodes if node.alive)
        return (Action(Do.STOP_NOW, living, "left over from an interrupted or failed run"),)
    if view.state in (GangState.DRAINING, GangState.STOPPING):
        return (Action(Do.WAIT, why="the gang is stopping"),)
    if view.state is GangState.DEGRADED and view.service_healthy and view.trouble != "hung":
        return (Action(Do.DONE, why=f"it serves, but is degraded: {view.trouble}"),)
    return _raise(view)


def _raise(view: GangView) -> tuple[Action, ...]:
    """Take our run, or one of the same plan, onwards from the state of its nodes."""
    if view.state is GangState.FAILED:
        living = tuple(node.name for node in view.nodes if node.alive or node.state is NodeState.DEAD)
        return (Action(Do.STOP_NOW, living, "the gang failed"),) if living else (Action(Do.FAIL),)
    if view.state in (GangState.ABSENT, GangState.STOPPING, GangState.DRAINING):
        ended = not view.running
        return (Action(Do.FAIL, why="it was stopped"),) if ended else (Action(Do.WAIT, why="it is stopping"),)
    return _onwards(view)


def _onwards(view: GangView) -> tuple[Action, ...]:
    staged = tuple(node.name for node in view.nodes if node.state is NodeState.STAGED and not node.alive)
    armed = tuple(node.name for node in view.nodes if node.state is NodeState.ARMED)
    if view.state is GangState.READY:
        return (Action(Do.DONE, why="ready"),)
    if staged:
        return (Action(Do.ARM, staged, "staged"),)
    if view.state is GangState.STAGED:
        return (Action(Do.WAIT, why="the agents are connecting to each other"),)
    if armed and not view.unreachable:
        return (Action(Do.GO, armed, "all agents are armed"),)
    if view.late is not None:
        return (Action(Do.GIVE_UP, why=f"{view.late.node}: {view.late.text}"),)
    return (Action(Do.WAIT, why=view.progress),)
