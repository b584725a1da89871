"""Controllers of a simulated gang: `up`, `down` and the gang's lock as they run in production. Their requests go over
the simulated network to the nodes, which answer with production's lock verb and a simulated stage, arm, go and stop.

Each controller's code runs in threads of its own; one at a time proceeds, by the simulated clock.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

from tests.simulation.gang import LEASE_S, Gang, Violated
from tests.simulation.network import LATENCY_S
from tests.simulation.node import Node
from tests.simulation.world import World

from orchestrator.gang.steps import down, locks, raising
from orchestrator.gang.steps.down import TO_END, refuse_leftovers
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.staging import Staged
from orchestrator.gang.steps.status import reports
from orchestrator.gang.view import GangView
from orchestrator.model.inventory import GangPorts, GangSpec, NodeSpec, Reach
from orchestrator.model.per_node import PerNode
from orchestrator.node.requests import request_of
from orchestrator.node.verbs import lock
from orchestrator.protocol.errors import DeployError, HostKeyError, NodeError, Unreachable
from orchestrator.protocol.message import Message
from orchestrator.protocol.report import AgentState, Cause, Report
from orchestrator.protocol.run_files import GoalOrder
from orchestrator.protocol.staging import StagingRequest
from orchestrator.protocol.verbs import GangRequest, OtherAgent
from orchestrator.remote import node_app
from orchestrator.remote.fleet import StragglerWait

POLL_S = 0.05
DEAD_LINK_S = 10.0
"""Silence after which a connection is given up (remote/ssh_way.py)."""
BEGINS_S = 0.002
"""The longest delay until a thread has its turn and its channel is open."""
MOST_KEPT = 4
"""Runs that a node keeps beside the last one."""
UP_S = 3600.0
"""--timeout of every `up`, as it is by default: what ends only by it has no end of its own."""


class Killed(BaseException):
    """The controller's process is dead: none of its code runs any more."""


def held() -> threading.Lock:
    """A lock that whoever waits for it gets by a release; a semaphore of Python's costs several times as much."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(eq=False)
class Actor:
    """One thread of a controller."""

    controller: Controller
    work: Callable[[], None]
    go: Any
    waits: int = 0
    """Counts its waits, since a wake-up is for one particular wait."""
    over: bool = False

    def live(self) -> None:
        """In its thread, once it has its first turn."""
        try:
            self.work()
        except Killed:
            pass
        except BaseException as defect:
            self.controller.stage.defects.append(defect)
        self.over = True
        self.controller.actors.remove(self)
        self.controller.stage.actors.pop(threading.get_ident(), None)


class Hand:
    """A thread that plays one actor after the other: a new thread costs more than what most of them do."""

    idle: ClassVar[list[Hand]] = []

    def __init__(self) -> None:
        self.go: Any = held()
        self.actor: Actor | None = None
        self.thread = threading.Thread(target=self._play, daemon=True)
        self.thread.start()

    @classmethod
    def free(cls) -> Hand:
        """One that plays nobody."""
        return cls.idle.pop() if cls.idle else cls()

    def _play(self) -> None:
        while True:
            self.go.acquire()
            actor, self.actor = self.actor, None
            assert actor is not None
            actor.live()
            baton = actor.controller.stage.baton
            del actor
            Hand.idle.append(self)
            baton.release()


@dataclass
class Stage:
    """Gives an actor the only turn and takes it back."""

    world: World
    baton: Any = field(default_factory=held)
    actors: dict[int, Actor] = field(default_factory=dict)
    machines: dict[str, Node] = field(default_factory=dict)
    """Every machine that can be asked, by address."""
    strangers: set[str] = field(default_factory=set)
    """Addresses whose host key is not the known one."""
    defects: list[BaseException] = field(default_factory=list)
    """What ended an actor that should not have ended so; raised in the world's own thread."""
    asked: Callable[[Controller, Node, str, dict[str, Any]], None] = lambda *_: None
    """Called for each request that reaches a machine."""

    def spawn(self, controller: Controller, work: Callable[[], None]) -> Actor:
        hand = Hand.free()
        hand.actor = actor = Actor(controller, work, hand.go)
        self.actors[hand.thread.ident or 0] = actor
        controller.actors.append(actor)
        self.world.after(BEGINS_S * self.world.rng.random(), lambda: self.turn(actor, 0))
        return actor

    def me(self) -> Actor:
        return self.actors[threading.get_ident()]

    def turn(self, actor: Actor, wait: int) -> None:
        """In the world's own thread: let the actor proceed until it waits again."""
        if actor.over or actor.waits != wait:
            return
        if actor.controller.paused:
            actor.controller.missed.append((actor, wait))
            return
        actor.go.release()
        self.baton.acquire()
        if self.defects:
            raise self.defects.pop()

    def wait(self, actor: Actor) -> None:
        """In the actor's thread, once another thread is sure to give it a turn."""
        self.baton.release()
        actor.go.acquire()
        actor.waits += 1
        if actor.controller.killed:
            raise Killed
        if actor is actor.controller.interrupts:
            actor.controller.interrupts = None
            raise KeyboardInterrupt

    def sleep(self, seconds: float) -> None:
        actor = self.me()
        if actor.controller.killed:
            raise Killed
        wait = actor.waits
        self.world.after(seconds, lambda: self.turn(actor, wait))
        self.wait(actor)


@dataclass(eq=False)
class Controller:
    """A machine where an operator types commands."""

    name: str
    gang: Gang
    stage: Stage
    spec: GangSpec
    paused: bool = False
    killed: bool = False
    wall_s: float = 0.0
    actors: list[Actor] = field(default_factory=list)
    missed: list[tuple[Actor, int]] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    busy: int = 0
    main: Actor | None = None
    """The thread that its last command was begun in."""
    interrupts: Actor | None = None
    """Who is about to hear Ctrl-C."""

    def type(self, command: str) -> None:
        """One command, of those below."""
        self.busy += 1
        self.stage.spawn(self, lambda: self._run(command))

    def _run(self, command: str) -> None:
        try:
            (COMMANDS | TURNS)[command](self)
            self.outcomes.append(f"{command}: done")
        except DeployError as failure:
            self.outcomes.append(f"{command}: {type(failure).__name__}: {failure.what}")
        finally:
            self.busy -= 1

    def pause(self, on: bool) -> None:
        self.paused = on
        if not on:
            missed, self.missed = self.missed, []
            for actor, wait in missed:
                self.stage.turn(actor, wait)

    def interrupt(self) -> None:
        """Ctrl-C."""
        actor = self.main
        if actor is not None and not actor.over:
            self.interrupts, wait = actor, actor.waits
            self.stage.world.after(0.0, lambda: self.stage.turn(actor, wait))

    def kill(self) -> None:
        """Its locks stay behind."""
        self.killed, self.paused, self.missed = True, False, []
        for actor in list(self.actors):
            if not actor.over:
                wait = actor.waits
                self.stage.world.after(0.0, lambda actor=actor, wait=wait: self.stage.turn(actor, wait))  # type: ignore[misc]


@dataclass
class Session:
    """A session to one node."""

    controller: Controller
    spec: NodeSpec


class SimulatedFleet:
    """Stands for SSH to every node of the gang."""

    def __init__(self, specs: Iterable[NodeSpec]) -> None:
        self.nodes = {spec.name: spec for spec in specs}

    def __enter__(self) -> SimulatedFleet:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def let_go(self) -> None: ...

    def mean(self, specs: Iterable[NodeSpec]) -> None:
        """The same machines, as others call them."""
        self.nodes = {spec.name: spec for spec in specs}

    @property
    def apart(self) -> SimulatedFleet:
        return SimulatedFleet(self.nodes.values())

    def on_every(
        self, work: Callable[[Any], Any], *, only: Collection[str] | None = None, patience: object = None
    ) -> PerNode[Any]:
        """On all nodes in parallel, with a thread for each."""
        stage = STAGE[0]
        me = stage.me()
        if me.controller.killed:
            raise Killed
        names = [name for name in self.nodes if only is None or name in only]
        values: dict[str, Any] = {}
        failures: dict[str, DeployError] = {}
        left = set(names)
        wait, began = me.waits, stage.world.now

        def one(name: str) -> None:
            try:
                values[name] = work(Session(me.controller, self.nodes[name]))
            except DeployError as failure:
                failures[name] = failure
            finally:
                left.discard(name)
                now = stage.world.now
                if not left:
                    stage.world.after(0.0, lambda: stage.turn(me, wait))
                elif values and isinstance(patience, StragglerWait):
                    until = began + max(patience.least_s, patience.times * (now - began))
                    stage.world.after(max(0.0, until - now), lambda: stage.turn(me, wait))

        for name in names:
            stage.spawn(me.controller, lambda name=name: one(name))  # type: ignore[misc]
        if names:
            stage.wait(me)
        late = {name: Unreachable("no answer", where=name, fix="") for name in left}
        return PerNode(values={name: values[name] for name in names if name in values}, failures={**failures, **late})


def call(session: Session, verb: str, request: Message, *, deadline_s: float) -> Any:
    """Replaces node_app.call: over the simulated network, with a deadline."""
    stage, controller = STAGE[0], session.controller
    actor, gang = stage.me(), controller.gang
    if controller.killed:
        raise Killed
    name = session.spec.reach.host
    if name in stage.strangers:
        raise HostKeyError("its host key has changed", where=session.spec.name, fix="ssh-keygen -R")
    if name not in stage.machines:
        stage.sleep(DEAD_LINK_S)
        raise Unreachable("no route to host", where=session.spec.name, fix="")
    node = stage.machines[name]
    told: list[Any] = []
    wait = actor.waits

    def arrive() -> None:
        if gang.net.passes(controller.name, node.name):
            asked = {key: value for key, value in request.as_json().items() if value is not None}
            stage.asked(controller, node, verb, asked)
            (node.verbs.get(verb) or VERBS[verb])(node, asked, reply)

    def reply(value: Any) -> None:
        if gang.net.passes(node.name, controller.name):
            stage.world.after(LATENCY_S, lambda: deliver(value))

    def deliver(value: Any) -> None:
        if not told:
            told.append(value)
            stage.turn(actor, wait)

    stage.world.after(LATENCY_S * (1 + gang.world.rng.random()), arrive)

    def beat() -> None:
        """The connection ends when nothing answers, whatever the verb's own deadline."""
        if not told and (node.off or node.paused or not gang.net.both_ways(node.name, controller.name)):
            deliver(Unreachable("the connection was lost", where=node.name, fix=""))
        elif not told:
            stage.world.after(DEAD_LINK_S, beat)

    stage.world.after(min(DEAD_LINK_S, deadline_s), beat)
    stage.world.after(deadline_s, lambda: deliver(Unreachable("no answer", where=node.name, fix="")))
    stage.wait(actor)
    if isinstance(told[0], Unreachable):
        raise told[0]
    if isinstance(told[0], DeployError):
        raise NodeError(told[0].what, where=node.name, fix=told[0].fix)
    return told[0]


STAGE: list[Stage] = []
"""The stage of the current world."""

Reply = Callable[[Any], None]


def answers(verb: Callable[[Node, dict[str, Any], Reply], None]) -> Callable[[Node, dict[str, Any], Reply], None]:
    """A verb begins once its node runs and its disk responds; its failures are answers."""

    def begin(node: Node, request: dict[str, Any], reply: Reply) -> None:
        if node.off:
            return
        if node.paused or (node.disk_stalls and verb is not _report):
            node.world.after(POLL_S, lambda: begin(node, request, reply))
            return
        try:
            verb(node, request, reply)
        except DeployError as failure:
            reply(failure)

    return begin


def once(node: Node, done: Callable[[], bool], deadline_s: float, then: Callable[[], None]) -> None:
    """Like goal.wait: look again and again."""
    until = node.world.now + deadline_s

    def look() -> None:
        if node.off:
            return
        if not node.paused and (done() or node.world.now >= until):
            then()
        else:
            node.world.after(POLL_S, look)

    look()


def _lock(node: Node, request: dict[str, Any], reply: Reply) -> None:
    with clock_of(node):
        answer = lock.answer(request)
        if answer["mine"] and request.get("op") in ("acquire", "renew"):
            path = Path(str(request["state_dir"])) / "gangs" / str(request["gang"]) / "lock"
            os.utime(path, (node.world.now + node.wall_s,) * 2)
            node.holders[str(request["gang"])] = str((request.get("holder") or request)["token"])
    reply(answer)


def fenced(node: Node, request: dict[str, Any], *, to_end: bool = False) -> None:
    """Production's own check, and the conditions that must hold after it."""
    with clock_of(node):
        asked = request_of(GangRequest, request)
        lock.refuse_a_former_holder(asked, to_end=to_end)
    if asked.token not in ("", node.holders.get(asked.gang, asked.token)):
        raise Violated(f"{node.name} obeys a former holder of its lock: {node.gang.told()}")


def _stage(node: Node, request: dict[str, Any], reply: Reply) -> None:
    fenced(node, request)
    if node.agent_lives:
        raise DeployError("an agent of this gang runs already", where=node.name, fix="l40s-deploy down", kind="running")
    if node.request and node.report is not None and node.report.run_id == node.request.get("run_id"):
        node.kept = [(node.request, node.report), *node.kept][:MOST_KEPT]
    _regroup(request["members"])
    node.staged, node.lost_files = request["run_id"], False
    node.agent = None
    rank = request["node_rank"]
    run = node.gang.run_of(rank, node.staged)
    node.report = Report(
        run_id=node.staged, gang=node.gang.name, node=node.name, node_rank=rank, nnodes=run.nnodes,
        state=AgentState.STAGED, plan_id=request["plan_id"], started_at=node.world.now, updated_at=node.world.now,
    )  # fmt: skip
    node.plan_id = request["plan_id"]
    node.request = {key: value for key, value in request.items() if key in StagingRequest.__dataclass_fields__}
    reply({"folder": "/nowhere"})


def _regroup(members: Sequence[str]) -> None:
    """A run on other nodes than its leader's gang had: whom it leaves out takes the place of whom it takes in."""
    leads = STAGE[0].machines[members[0]].gang
    for place, name in enumerate(members):
        if name not in leads.names:
            other = STAGE[0].machines[name].gang
            there = other.names.index(name)
            leads.nodes[place], other.nodes[there] = other.nodes[there], leads.nodes[place]
            for gang in (leads, other):
                gang.know_each_other()


def _arm(node: Node, request: dict[str, Any], reply: Reply) -> None:
    if not node.staged or request.get("run_id", node.staged) != node.staged:
        raise DeployError("no such run is staged", where=node.name, fix="", kind="no-run")
    if not node.agent_lives:
        started_at = node.report.started_at if node.report else 0.0
        node.arm(replace(node.gang.run_of(node.rank, node.staged), plan_id=node.plan_id))
        node.started_at = started_at
    agent = node.agent
    assert agent is not None

    def told() -> None:
        if agent.state.unwanted:
            reply(DeployError("it ended", where=node.name, fix="", kind="not-armed"))
        else:
            reply({"state": agent.state.value})

    once(node, lambda: agent.state is not AgentState.STAGED, 2.0, told)


def _go(node: Node, request: dict[str, Any], reply: Reply) -> None:
    fenced(node, request)
    agent = node.agent
    if agent is None or agent.gone or agent.run.run_id != request.get("run_id"):
        raise DeployError("no agent is armed for this run", where=node.name, fix="", kind="no-agent")
    node.order = GoalOrder(goal="run")
    node.wake()
    once(
        node,
        lambda: agent.state is not AgentState.ARMED or agent.gone,
        5.0,
        lambda: reply({"state": agent.state.value}),
    )


def _stop(node: Node, request: dict[str, Any], reply: Reply) -> None:
    fenced(node, request, to_end=True)
    wanted = request.get("run_id") or (node.report and node.report.run_id)
    if node.lost_files:
        _stop_without_files(node, request, reply)
        return
    if node.report is None or node.report.gang != request["gang"] or elsewhere(node, request):
        reply({"state": "absent"})
        return
    if node.report.run_id != wanted:
        reply({"state": "absent"})
        return
    node.ordered = node.report.run_id if request.get("ordered") else node.ordered
    agent = node.agent
    if agent is None or agent.gone:
        node.settle(clear=bool(request.get("clear")))
        reply({"state": node.report.state.value})
        return
    because = Cause.read(request.get("because"))
    node.order = GoalOrder(
        goal="stop-now" if request.get("now") else "stop", because=because if isinstance(because, Cause) else None
    )
    node.gang.stopped = True
    node.wake()
    if node.frozen:
        node.kill_agent()

    def told() -> None:
        if agent.gone:
            node.settle(clear=bool(request.get("clear")))
        reply({"state": node.report.state.value if node.report else "absent", "alive": not agent.gone})

    once(node, lambda: agent.gone and not node.engine_lives, float(request.get("deadline_s") or 60.0), told)


def _stop_without_files(node: Node, request: dict[str, Any], reply: Reply) -> None:
    """Its agent is found by its socket."""
    agent = node.agent
    if agent is None or agent.gone or agent.run.gang != request["gang"]:
        reply({"state": "absent"})
        return
    node.order = GoalOrder(goal="stop-now" if request.get("now") else "stop")
    node.gang.stopped = True
    node.wake()
    once(node, lambda: agent.gone and not node.engine_lives, 60.0, lambda: reply({"state": "absent"}))


def elsewhere(node: Node, request: dict[str, Any]) -> bool:
    """Whether it means another state directory than the one that the node's gang has."""
    return str(request.get("state_dir", node.folder)) != str(node.folder)


def _staged(node: Node, request: dict[str, Any], reply: Reply) -> None:
    if not node.request or request.get("gang") != node.request["gang"] or elsewhere(node, request):
        raise DeployError("no run of this gang is kept here", where=node.name, fix="", kind="no-run")
    staged = (node.request, *(request for request, _ in node.kept))
    wanted = str(request.get("run_id") or node.request["run_id"])
    (asked,) = (one for one in staged if one["run_id"] == wanted)
    reply({"request": asked, "launch_script": "true"})


def _history(node: Node, request: dict[str, Any], reply: Reply) -> None:
    """The reports that a node has kept."""
    reports = [report.as_json() for _, report in node.kept if report.gang == request.get("gang")]
    if node.report is not None and node.report.gang == request.get("gang"):
        reports.append(node.report.as_json())
    reply({"now": node.world.now, "reports": [] if elsewhere(node, request) else reports})


def _ask(node: Node, request: dict[str, Any], reply: Reply) -> None:
    """HTTP requests that a machine makes."""
    reply({"answers": [node.answers(one) for one in request["asks"]]})


def _prerequisites(_: Node, __: dict[str, Any], reply: Reply) -> None:
    """Of the router's host, where nothing is found but what `prepare` puts there."""
    reply({"packages": {}})


def _report(node: Node, request: dict[str, Any], reply: Reply) -> None:
    def now() -> list[dict[str, Any]]:
        if node.report is None or elsewhere(node, request):
            return []
        alive, ordered = node.agent_lives, node.ordered == node.report.run_id
        return [replace(node.report, alive=alive, ordered=ordered and not alive, now=node.world.now).as_json()]

    def others() -> dict[str, Any]:
        told = {"state_dir": str(request.get("state_dir") or node.folder)}
        if node.agent is None or not node.agent_lives or not (node.lost_files or elsewhere(node, request)):
            return told
        agent = OtherAgent(gang=node.agent.run.gang, node=node.name, port=7700, state_dir=str(node.folder), user="l40s")
        return {**told, "others": [agent.as_json()]}

    def mark() -> str:
        return f"{node.report and node.report.run_id} {node.report and node.report.state.value} {node.agent_lives}"

    once(
        node,
        lambda: mark() != request.get("seen"),
        float(request.get("wait_s") or 0.0),
        lambda: reply({"now": node.world.now, "reports": now(), "seen": mark(), "user": "l40s", **others()}),
    )


VERBS = {
    name: answers(verb)
    for name, verb in {
        "lock": _lock, "stage": _stage, "staged": _staged, "arm": _arm, "go": _go, "stop": _stop, "report": _report,
        "ask": _ask, "history": _history, "prerequisites": _prerequisites,
    }.items()
}  # fmt: skip


class Watcher:
    """Sees nothing."""

    def planned(self, plan: object) -> None: ...

    def step(self, gang: str, words: str) -> None: ...

    def seen(self, views: object) -> None: ...


def _typed(
    command: str, carry_out: Callable[[Controller, Any], object], *, partial: bool = False
) -> Callable[[Controller], None]:
    """A command with the gang's lock held."""

    def run(controller: Controller) -> None:
        fleet, given_back = SimulatedFleet(controller.spec.nodes), Event()
        with GangLock(fleet, controller.spec, command, partial=partial, _given_back=given_back):  # type: ignore[arg-type]
            carry_out(controller, fleet)

    return run


def _raise(controller: Controller, fleet: Any, plan_id: str = "p", watcher: Any = None) -> tuple[GangView, ...]:
    requests = {
        node.name: replace(controller.gang.run_of(rank), plan_id=plan_id, folder="")
        for rank, node in enumerate(controller.gang.nodes)
    }
    start = Staged(gang=controller.spec, requests=requests, document={"plan_id": plan_id})
    return raising.raise_all(fleet, [start], watcher or Watcher(), timeout_s=UP_S)


def restart(
    controller: Controller, fleet: Any, watcher: Any = None, *, now: bool = True, plan_id: str = "p"
) -> tuple[GangView, ...]:
    """Restart a gang whose lock is held."""
    refuse_leftovers(down.stop_gangs(fleet, [controller.spec], now=now, ordered=False, patience=TO_END))
    return _raise(controller, fleet, plan_id, watcher)


def _change(controller: Controller, fleet: Any) -> None:
    """A turn with another plan, and back to the one before where it does not come up."""
    try:
        restart(controller, fleet, now=False, plan_id="q")
    except DeployError:
        views = reports.see(fleet, [controller.spec], patience=StragglerWait())
        raising.everybody_answers(views)
        _raise(controller, fleet)
        raise


COMMANDS = {
    "up": _typed("up", _raise),
    "restart": _typed("restart", restart),
    "down": _typed("down", lambda on, fleet: down.stop_gangs(fleet, [on.spec], now=False, ordered=True), partial=True),
}
TURNS = {
    "roll": _typed("restart --rolling", lambda on, fleet: restart(on, fleet, now=False)),
    "change": _typed("up --replace", _change),
}
"""They drain first."""


class Event:
    """threading.Event for code that waits by the simulated clock."""

    def __init__(self) -> None:
        self._on = False

    def set(self) -> None:
        self._on = True

    def is_set(self) -> bool:
        return self._on

    def wait(self, seconds: float) -> bool:
        """The caller checks again after the time limit, as its only user does."""
        STAGE[0].sleep(seconds)
        return self._on


def _thread(*, target: Callable[[], None], daemon: bool) -> Any:
    return SimpleNamespace(start=lambda: STAGE[0].spawn(STAGE[0].me().controller, target))


@dataclass(frozen=True)
class NodeClock:
    """Stands for the module `time` on a node. A mock of it costs more than the verb that asks it."""

    node: Node
    CLOCK_BOOTTIME: int = 7

    def time(self) -> float:
        return self.node.world.now + self.node.wall_s

    def clock_gettime(self, _: int) -> float:
        return self.node.world.now


@contextlib.contextmanager
def clock_of(node: Node) -> Iterator[None]:
    """Its wall clock, and its monotonic clock. By hand: a patch of `mock` costs more than the verb that asks."""
    module: Any = lock
    before, module.time = module.time, NodeClock(node)
    try:
        yield
    finally:
        module.time = before


def patches(world: World, stage: Stage) -> list[tuple[Any, str, Any]]:
    """What stands for the world in the steps."""

    def wall() -> float:
        return world.now + stage.me().controller.wall_s

    moment = SimpleNamespace(
        monotonic=lambda: world.now, time=wall, sleep=stage.sleep, strftime=lambda _: f"{world.now:.3f}"
    )
    return [
        (node_app, "call", call), (raising, "time", moment), (locks, "time", moment),
        (reports, "time", moment), (locks, "documents", mock.Mock()),
        (locks, "has_ended", lambda _: False), (raising, "RunRecord", mock.Mock()),
        (locks, "threading", SimpleNamespace(Thread=_thread)), (locks, "_held", []),
        (lock, "_note", lambda *_: None),
    ]  # fmt: skip


@contextlib.contextmanager
def controlled(gang: Gang, count: int = 2) -> Iterator[list[Controller]]:
    """Controllers of a gang whose nodes have state directories. Within `simulated`."""
    world, stage = gang.world, Stage(gang.world)
    STAGE[:] = [stage]
    folder = Path(tempfile.mkdtemp(prefix="l40s-simulated-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    for rank, node in enumerate(gang.nodes):
        node.gang, node.rank, node.folder = gang, rank, folder / node.name
        stage.machines[node.name] = node
    specs = tuple(
        NodeSpec(
            name=node.name, gang="g", node_rank=rank, reach=Reach(host=node.name), state_dir=str(node.folder),
            ports=GangPorts(agent=7700), lease_s=LEASE_S,
        )
        for rank, node in enumerate(gang.nodes)
    )  # fmt: skip
    spec = GangSpec(name="g", nodes=specs)
    made = [Controller(f"c{number}", gang, stage, spec) for number in range(count)]
    try:
        with contextlib.ExitStack() as opened:
            for target, name, value in patches(world, stage):
                opened.enter_context(mock.patch.object(target, name, value))
            yield made
            for controller in made:
                controller.kill()
            world.run(world.now + 0.001, lambda: None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
