"""A service: two gangs behind a router, clients that never retry, and two operators with inventories of their own.

The verbs are production's steps: `restart` (with what its command chooses, `can_roll`), `down` with what it does to the
router, and `up` as far as it goes after a plan. The router is simulated by its REST interface, and asked on its host.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast
from unittest import mock

from tests.simulation import planned
from tests.simulation.controllers import (
    STAGE,
    UP_S,
    Controller,
    Event,
    Killed,
    Reply,
    SimulatedFleet,
    Stage,
    Watcher,
    answers,
    patches,
)
from tests.simulation.controllers import VERBS as NODE_VERBS
from tests.simulation.gang import AT_ONCE, EPSILON_S, LEASE_S, Fault, Gang, Violated
from tests.simulation.network import Net
from tests.simulation.node import ANSWERS_S, Engine, Node
from tests.simulation.world import World

from orchestrator.engines import router as words
from orchestrator.engines.router import SMG
from orchestrator.gang import claims
from orchestrator.gang.serving import Serving
from orchestrator.gang.steps import down, maintenance, raising, restart, restart_sequence, up, up_operation
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.maintenance import MAINTENANCE
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.restart_sequence import RESTART, ROLLING, RestartRequest, RestartVerb
from orchestrator.gang.steps.rollback import ROLLBACK
from orchestrator.gang.steps.router import claim, client, draining, entry, routing
from orchestrator.gang.steps.router.claim import RouterClaim, RouterTurn
from orchestrator.gang.steps.router.client import Router
from orchestrator.gang.steps.router.host import router_gang
from orchestrator.gang.steps.status import history, reports
from orchestrator.model.chosen import called, chosen_gangs
from orchestrator.model.inventory import ROUTER_GANG, GangPorts, GangSpec, Inventory, NodeSpec, Reach, RouterSpec
from orchestrator.model.secret_text import fingerprint
from orchestrator.protocol.errors import DeployError, InputError
from orchestrator.protocol.report import AgentState, Cause, Report
from orchestrator.protocol.staging import Endpoint, StagingRequest
from orchestrator.records import documents
from orchestrator.records.plans import RecordedPlan, keep_plan
from orchestrator.sweep.steps import turn
from orchestrator.sweep.steps.turn import sweep_turn

SIZE = 2
"""Nodes of each gang."""
EVERY_S = 0.25
"""Between two requests."""
TAKES_S = 0.6
"""Of a request: shorter than an engine drains, and so long that each of two gangs always has one."""
CHECKS_S = 2.0
"""Between the router's checks of a worker's health."""
ROUTER_STARTS_S = 0.8
PORT = 30000
"""Of the router."""
MODEL = "m"
"""What all gangs serve."""
NEW_KEY = "sk-after"
OLD_KEY = "sk-before"
SWEPT_ALONE = "it served alone behind the router: requests fail until the sweep ends"
KEYS = {fingerprint(key): key for key in (OLD_KEY, NEW_KEY)}
"""By fingerprint."""
NOTICE = ("will not serve for about", "requests fail")
"""How a restart announces that requests will fail."""
DOWNS = ("down", "down --as")
MEASURES = ("certify", "sweep")
"""They leave a gang that did not serve as it was."""
LAST = {"down": "last", "down --as": "last", "router remove": "nobody else serves"}
"""How a verb that takes a gang out for good says that it is the last one that serves."""
AGAIN = "+"
"""After an operator's name, once a command of his was killed and he has come back."""
INTERRUPTED, KILLED = "interrupted", "killed"
"""How a verb ended before its time."""
STOPPED = "is stopped; start it again"
"""How maintenance that was interrupted says that its gang is its operator's."""
WORKS_S = 2.0
"""On each node, during maintenance."""
MEASURED_S = 3.0
"""Each candidate of a sweep."""
STARTS_S = {"stage": 0.0, "arm": 0.01, "go": 0.5}
"""When each verb of a start reaches a node."""
LAST_WORDS = "the last one that served behind the router"
"""Of `down`, in place of its command's."""
NOTICED_S = LEASE_S + EPSILON_S
"""From a fault until every agent of its gang has ended, or knows that nothing is wrong."""
DRAINS_S = 30.0
"""The longest that an engine which was told to stop may still answer."""
AFTER_S = CHECKS_S + 0.5
"""From the end of a verb until the router knows that its gang serves again."""


def serving(gang: Gang) -> Engine | None:
    """The leader's engine, where it answers."""
    leader = gang.nodes[0]
    engine = leader.engine
    if engine is None or leader.off or leader.paused or not engine.parent or not leader.everybody_loaded():
        return None
    return engine if leader.world.now - engine.began >= ANSWERS_S else None


def key_of(gang: Gang) -> str:
    """That its engine was started with."""
    return KEYS.get(str(gang.nodes[0].request.get("api_key")), "")


@dataclass
class RouterHost(Node):
    """The machine of the router, with its agent. runs: the router itself, which begins with what it was staged with and
    without workers."""

    runs: bool = True
    lives: bool = True
    ends: Callable[[], None] = lambda: None
    """Called where the router ends."""

    def __post_init__(self) -> None:
        own: dict[str, Any] = {
            "stage": RouterHost.stage, "arm": RouterHost.arm_it, "go": RouterHost.go, "stop": RouterHost.stop,
        }  # fmt: skip
        self.verbs = {name: answers(verb) for name, verb in own.items()}

    @property
    def agent_lives(self) -> bool:
        return self.lives and not self.off

    def beats(self) -> None:
        """What its agent reports of the router, again and again."""
        if self.report is None:
            self.note(AgentState.READY, "router")
        elif self.lives:
            self.note(self.report.state, self.report.run_id)
        self.world.after(CHECKS_S, self.beats)

    def note(self, state: AgentState, run_id: str, **more: Any) -> None:
        """Its report from now on."""
        now, ready = self.world.now, state is AgentState.READY
        self.report = Report(
            run_id=run_id, gang=ROUTER_GANG, node=self.name, node_rank=0, nnodes=1, members=(self.name,),
            plan_id=str(self.request.get("plan_id")), state=state, service_url="http://head:30000",
            service_healthy=ready, service_checked_at=now if ready else 0.0, started_at=1.0, updated_at=now, **more,
        )  # fmt: skip

    def stage(self, request: dict[str, Any], reply: Reply) -> None:
        """A new run of it."""
        if self.lives:
            raise DeployError("an agent of this gang runs already", where=self.name, fix="", kind="running")
        self.request = {key: value for key, value in request.items() if key in StagingRequest.__dataclass_fields__}
        self.note(AgentState.STAGED, str(request["run_id"]))
        reply({"folder": "/nowhere"})

    def arm_it(self, _: dict[str, Any], reply: Reply) -> None:
        """Its agent lives from now on."""
        self.lives = True
        self._becomes(AgentState.ARMED, reply)

    def go(self, _: dict[str, Any], reply: Reply) -> None:
        """It starts, and is ready after a while."""
        self._becomes(AgentState.STARTING, reply)
        run_id = str(self.request["run_id"])

        def ready() -> None:
            if self.lives and self.report is not None and self.report.run_id == run_id:
                self.runs = True
                self.note(AgentState.READY, run_id)

        self.world.after(ROUTER_STARTS_S, ready)

    def _becomes(self, state: AgentState, reply: Reply) -> None:
        self.note(state, str(self.request["run_id"]))
        reply({"state": state.value})

    def stop(self, request: dict[str, Any], reply: Reply) -> None:
        """By an order."""
        assert self.report is not None
        if self.lives:
            self.ordered = self.report.run_id if request.get("ordered") else self.ordered
            self.end(AgentState.STOPPED)
        else:
            self.settle(clear=bool(request.get("clear")))
        reply({"state": self.report.state.value, "alive": False})

    def end(self, state: AgentState = AgentState.FAILED) -> None:
        """The router and its agent have ended; by default it has died."""
        assert self.report is not None
        died = Cause(node=self.name, signal=9, text="the router was killed by SIGKILL")
        self.lives = self.runs = False
        self.note(state, self.report.run_id, cause=died if state is AgentState.FAILED else None)
        self.ends()


@dataclass
class SimulatedWorker:
    """healthy: as it was last checked; labels, aliases: what it was added with."""

    url: str
    labels: dict[str, str]
    aliases: tuple[str, ...] = ()
    healthy: bool = True
    key: str = ""
    """That it sends there."""


@dataclass
class SimulatedRouter:
    """What the router's host runs: workers by id, with their health as it was last checked."""

    world: World
    gangs: Mapping[str, Gang]
    """By the URL where each serves."""
    workers: dict[str, SimulatedWorker] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    """Requests by URL."""
    host: RouterHost | None = None
    """Where it runs."""
    _made: int = 0

    @property
    def runs(self) -> bool:
        """Whether it takes requests."""
        return self.host is None or (self.host.runs and not self.host.off)

    @property
    def clients_key(self) -> str:
        """That it was started with, asks its clients for and passes on; '' for none."""
        staged = StagingRequest.read(self.host.request) if self.host is not None else None
        secret = staged.secrets if isinstance(staged, StagingRequest) else None
        files = secret.files if secret is not None else ()
        words = [word for file in files for word in file.text.splitlines()]
        return words[words.index("--api-key") + 1] if "--api-key" in words else ""

    def check(self) -> None:
        """Again and again, every worker's health."""
        for worker in self.workers.values():
            worker.healthy = worker.url in self.gangs and serving(self.gangs[worker.url]) is not None
        self.world.after(CHECKS_S, self.check)

    def answers(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A request that is made on the router's host: to the router itself, or to a gang."""
        url, method = str(asked["url"]), asked.get("method", "GET")
        gang = next((gang for at, gang in self.gangs.items() if url.startswith(at)), None)
        if gang is not None:
            return self.of_gang(gang, url, str(asked.get("authorization", "")))
        if not url.startswith("/") or not self.runs:
            return {"error": "connection refused"}
        if url.startswith("/v1/"):
            key = self.clients_key
            return {"status": 401 if key and asked.get("authorization") != f"Bearer {key}" else 400}
        if method == "POST":
            self._made += 1
        number = f"w{self._made}" if method == "POST" else url.rpartition("/")[2]
        if method in ("POST", "PUT"):
            body = json.loads(asked["body"])
            aliases = tuple(alias for model in body.get("models") or () for alias in model["aliases"])
            labels, key = body.get("labels") or {}, str(body.get("api_key") or "")
            self.workers[number] = SimulatedWorker(str(body["url"]), labels, aliases, key=key)
        elif method == "DELETE":
            self.workers.pop(number, None)
        told = [
            {"id": number, "url": one.url, "is_healthy": one.healthy, "load": self.running.get(one.url, 0),
             "labels": one.labels, "models": [self.model(one)]}
            for number, one in self.workers.items()
        ]  # fmt: skip
        return {"status": 200, "body": json.dumps({"workers": told})}

    def model(self, worker: SimulatedWorker) -> dict[str, Any]:
        """As the router lists it."""
        gang = self.gangs.get(worker.url)
        return {"id": MODEL if gang is None else gang.model, "aliases": list(worker.aliases)}

    def of_gang(self, gang: Gang, url: str, authorization: str = "") -> dict[str, Any]:
        """What a gang's leader answers on its health and load paths, and to whoever shows a key."""
        if serving(gang) is None:
            return {"error": "connection refused"}
        key = key_of(gang)
        if key and url.endswith("/v1/models") and authorization != f"Bearer {key}":
            return {"status": 401, "body": ""}
        running = self.running.get(gang.url, 0)
        loads = {"loads": [{"num_running_reqs": running, "num_waiting_reqs": 0}]}
        return {"status": 200, "body": json.dumps(loads) if "loads" in url else ""}

    def refused(self, url: str) -> bool:
        """Whether the gang there asks for another key than the router sends."""
        key, passed = key_of(self.gangs[url]), self.clients_key
        return bool(key) and all((passed or one.key) != key for one in self.workers.values() if one.url == url)

    def behind(self) -> set[str]:
        """The URLs of the workers that count as healthy."""
        return {one.url for one in self.workers.values() if one.healthy}

    def choose(self, model: str) -> tuple[str, Engine] | None:
        """Where a request goes: to the healthy worker of its model with the least load that takes the connection; None:
        503."""
        if not self.runs:
            return None
        healthy = sorted(self.behind(), key=lambda url: (self.running.get(url, 0), url))
        for url in healthy:
            engine = serving(self.gangs[url]) if url in self.gangs and self.gangs[url].model == model else None
            if engine is not None:
                return url, engine
        return None


@dataclass(frozen=True)
class Loss:
    """A request that nothing excused when it was lost."""

    at: float
    model: str
    how: str


@dataclass(frozen=True)
class Strike:
    """What befell a gang. noticed_s: from then until everybody can know; settles_s: until it shows in what it serves;
    for_good: nothing that a verb or a guard does mends it."""

    at: float
    noticed_s: float = NOTICED_S
    settles_s: float = 0.0
    for_good: bool = False


@dataclass
class Said(Watcher):
    """One verb, and what it has told its operator.

    names:   of the gangs that it names: as each was started, by what its inventory calls it
    alone:   when it announces something, nothing else serves that no other verb is changing
    excused: gangs, as they were started, of which it has announced that they will not serve
    ended:   when; infinite while it runs
    """

    verb: str
    names: Mapping[str, str]
    alone: Callable[[Said], bool] = lambda _: True
    excused: set[str] = field(default_factory=set)
    last: bool = False
    """It has said that nothing is left behind the router."""
    refused: bool = False
    by_hand: bool = False
    """Its operator has interrupted his work on the nodes of a gang, and may still be at it."""
    idle: frozenset[str] = frozenset()
    """Those of its gangs that did not serve when it began, or that a `down` was ending: it takes nothing of them from
    clients, and tells nothing."""
    began: float = 0.0
    ended: float = float("inf")
    words: list[str] = field(default_factory=list)

    @property
    def gangs(self) -> frozenset[str]:
        """Those that it names, as they were started."""
        return frozenset(self.names.values())

    def step(self, gang: str, words: str) -> None:
        self.words.append(f"{gang}: {words}")
        if self.verb in LAST:
            self.last = self.last or LAST[self.verb] in words
        elif any(one in words for one in NOTICE) and self.alone(self):
            meant = {self.names[name] for name in gang.split(", ") if name in self.names}
            self.excused |= meant or self.gangs


@dataclass
class Service:
    """names: of the gangs as they were started."""

    world: World
    names: tuple[str, ...] = ("gang0", "gang1")
    gangs: dict[str, Gang] = field(default_factory=dict)
    router: SimulatedRouter = field(init=False)
    head: RouterHost = field(init=False)
    """The router's host."""
    controllers: list[Controller] = field(default_factory=list)
    inventories: dict[str, Inventory] = field(default_factory=dict)
    """By controller's name."""
    asked_for: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By controller's name: the gangs that its verb now names, as its inventory has them."""
    verbs: list[Said] = field(default_factory=list)
    lost: list[Loss] = field(default_factory=list)
    excused: int = 0
    """Requests that were lost to what was announced, or to a fault."""
    none_left: set[str] = field(default_factory=set)
    """Models of which a `down` has said that nothing is left behind the router, and nothing has served since."""
    guard_words: list[str] = field(default_factory=list)
    """Of the guard beside it, where there is one."""
    strikes: dict[str, Strike] = field(default_factory=dict)
    """By gang, as it was started: what it has not recovered from yet. Its requests may be lost meanwhile."""
    router_out: bool = False
    """The router has ended, by an order or not, and since then no request of each model has been answered."""
    served: int = 0
    open: bool = False
    """Clients send requests."""

    def __post_init__(self) -> None:
        net = Net(self.world)
        self.gangs = {
            name: Gang(self.world, SIZE, name=name, first=SIZE * number, beside=net)
            for number, name in enumerate(self.names)
        }
        self.head = RouterHost("head", self.world, net)
        self.router = SimulatedRouter(self.world, {gang.url: gang for gang in self.gangs.values()})
        self.router.host, self.head.ends = self.head, self._router_ends
        self.head.answers = self.router.answers
        for gang in self.gangs.values():
            for node in gang.nodes:
                node.answers = lambda asked, gang=gang: self.router.of_gang(gang, str(asked["url"]))  # type: ignore[misc]

    @property
    def machines(self) -> dict[str, Node]:
        return {node.name: node for node in (*(node for gang in self.gangs.values() for node in gang.nodes), self.head)}

    def begin(self) -> None:
        """The router, its host and the clients."""
        self.head.beats()
        self.router.check()
        self.request()

    def check(self) -> None:
        """After every step."""
        for gang in self.gangs.values():
            gang.check()

    # clients

    def request(self) -> None:
        """One request of each model, and the next after a while."""
        self._recovered()
        self.router_out = self.router_out and not self._router_is_back()
        for model in sorted({gang.model for gang in self.gangs.values()}) if self.open else ():
            chosen = self.router.choose(model)
            if chosen is not None:
                self.none_left.discard(model)
            if any(self._leaves_none(one, model) for one in self.verbs):
                self.none_left.add(model)
            if chosen is None:
                self._lose("the router has no healthy worker", model)
            elif self.router.refused(chosen[0]):
                self._lose(f"{chosen[0]} refuses the router's key", model)
            else:
                self._begin(*chosen)
        self.world.after(EVERY_S, self.request)

    def _router_ends(self) -> None:
        self.router.workers.clear()
        self.router_out = True

    def _router_is_back(self) -> bool:
        """Whether a request of each model would be answered."""
        chosen = [self.router.choose(model) for model in {gang.model for gang in self.gangs.values()}]
        return all(one is not None and not self.router.refused(one[0]) for one in chosen)

    def model_of(self, gang: str) -> str:
        return self.gangs[gang].model if gang in self.gangs else MODEL

    def _leaves_none(self, said: Said, model: str) -> bool:
        return said.last and said.ended > self.world.now and any(self.model_of(gang) == model for gang in said.gangs)

    def _recovered(self) -> None:
        """Gangs that serve again by themselves, or by what a verb or a guard has done."""
        behind = self.router.behind()
        for name, struck in list(self.strikes.items()):
            told = self.world.now > struck.at + max(struck.noticed_s, struck.settles_s)
            if told and not struck.for_good and serving(self.gangs[name]) and self.gangs[name].url in behind:
                del self.strikes[name]

    def _begin(self, url: str, engine: Engine) -> None:
        self.router.running[url] = self.router.running.get(url, 0) + 1

        def end() -> None:
            self.router.running[url] -= 1
            if engine.parent and not engine.dead:
                self.served += 1
            elif self._killed_as_asked(self.router.gangs[url]) or self.router.gangs[url].name in self.strikes:
                self.excused += 1
            else:
                self._lose(f"{url} ended with a request", self.router.gangs[url].model)

        self.world.after(TAKES_S, end)

    def _killed_as_asked(self, gang: Gang) -> bool:
        """Its operator has agreed that `certify` kills a rank, with the requests that it has."""
        certified = (one for one in self.verbs if one.verb == "certify" and one.ended > self.world.now)
        return any(gang.name in one.excused for one in certified)

    def _lose(self, how: str, model: str) -> None:
        """Excused where every gang of the model is out by what was announced, or by a fault."""
        of_model = [name for name, gang in self.gangs.items() if gang.model == model]
        if self.router_out or model in self.none_left or all(map(self._is_excused, of_model)):
            self.excused += 1
        else:
            self.lost.append(Loss(self.world.now, model, how))

    def _is_excused(self, gang: str) -> bool:
        at_once = any(one.verb in AT_ONCE_VERBS for one in self.verbs)
        return at_once or gang in self.strikes or self._announced(gang) or self._taken_in_good_faith(gang)

    def _taken_in_good_faith(self, gang: str) -> bool:
        """A verb has begun to change it before anybody could know that another one was struck."""
        known = [strike.at + strike.noticed_s for name, strike in self.strikes.items() if name != gang]
        verbs = [one for one in self.verbs if gang in one.gangs and one.verb != "status"]
        lasting = [
            one for one in verbs if self.world.now < one.ended + AFTER_S or (one is verbs[-1] and one.verb in LAST)
        ]
        return any(one.began < at for one in lasting for at in known)

    def _announced(self, gang: str) -> bool:
        """A verb that has announced a downtime is at work on it, or has just been; or its last verb is a `down` that
        another gang stood in for, or that said that none does. One that only starts it leaves, until it serves, what
        was announced before; so does one that finds it ended and leaves it so."""
        verbs = [one for one in self.verbs if gang in one.gangs and not one.refused]
        lasting = [one for one in verbs if self.world.now < one.ended + AFTER_S]
        if any(gang in one.excused and one.verb not in LAST for one in lasting):
            return True
        done = [
            one
            for one in verbs
            if one.verb != "status"
            and not (gang in one.idle and (one in lasting or one.verb in {*LAST, *LOOKS, *MEASURES}))
        ]
        return bool(done) and done[-1].verb in LAST and (gang in done[-1].excused or done[-1].last)

    def stands_alone(self, gang: str) -> bool:
        """Whether no other gang serves its model in the router, without a verb that changes it."""
        busy = {gang for one in self.verbs if one.ended > self.world.now for gang in one.gangs}
        behind = self.router.behind()
        return not any(
            name not in (gang, *busy)
            and one.model == self.model_of(gang)
            and one.url in behind
            and serving(one) is not None
            for name, one in self.gangs.items()
        )

    def changing(self, said: Said) -> bool:
        """Whether another verb is at work on another gang, and has something there that could be seen: one that is
        about to start what is down may have been typed after this one has looked. A sweep that found the claim taken
        holds nobody up: whoever takes the other gang out meanwhile is told that it is alone."""
        others = [
            (one, gang)
            for one in self.verbs
            for gang in one.gangs - said.gangs
            if one is not said and one.ended > self.world.now and one.verb not in (*DOWNS, "sweep")
        ]
        return any(
            gang not in one.idle or any(node.agent_lives for node in self.gangs[gang].nodes) for one, gang in others
        )

    def befall(self, gang: str, *, for_good: bool = False) -> None:
        """From now on until it serves again, its requests may be lost."""
        before = self.strikes.get(gang)
        self.strikes[gang] = Strike(self.world.now, for_good=for_good or (before is not None and before.for_good))

    def strike(self, gang: Gang, kind: str, node: Node) -> None:
        """A fault that nobody heals, but for those that come and go."""
        self.befall(gang.name)
        gang.strike(Fault(kind, (gang.nodes.index(node),), self.world.now, 0.0 if kind in AT_ONCE else 4.0))

    # operators

    def reaches(self, controller: Controller, node: Node, verb: str, asked: dict[str, Any]) -> None:
        """No verb ends, or replaces, a gang that it does not name; a guard ends none that serves, and starts none that
        a person has ended."""
        if controller.name == "guard":
            self._guard_reaches(str(asked.get("gang")), verb)
        if verb not in ("stop", "stage") or node.report is None or not node.agent_lives:
            return
        named = self.asked_for.get(controller.name, ())
        runs = node.report.gang
        if asked.get("gang") == runs and runs not in named:
            raise Violated(f"{controller.name}, whose verb names {named}, sends {verb} to {node.name} of {runs}")

    def _guard_reaches(self, gang: str, verb: str) -> None:
        if gang not in self.gangs:
            return
        url = self.gangs[gang].url
        if verb == "stop" and gang not in self.strikes and serving(self.gangs[gang]) and url in self.router.behind():
            raise Violated(f"the guard ends {gang}, which serves: {self.told()}")
        if verb == "stage" and self.ended_by_a_person(gang):
            raise Violated(f"the guard starts {gang}, which a person has ended: {self.told()}")

    def ended_by_a_person(self, gang: str) -> bool:
        """Whether the last verb that has changed it, or tried to, was an order to end it, or has left it stopped for
        its operator to work on it."""
        changes = [one for one in self.verbs if gang in one.gangs and one.verb not in LOOKS]
        ends = bool(changes) and (changes[-1].verb in DOWNS or changes[-1].by_hand)
        return ends and not changes[-1].refused and changes[-1].ended <= self.world.now

    def type(self, controller: Controller, verb: str, gang: str) -> None:
        """An operator types a verb for a gang of his inventory, or for all of them."""
        controller.busy += 1
        controller.main = STAGE[0].spawn(controller, lambda: self._run(controller, verb, gang))

    def _run(self, controller: Controller, verb: str, gang: str) -> None:
        inventory = self.inventories[controller.name]
        meant = [one.name for one in inventory.gangs] if verb in OF_ALL else [gang]
        said = Said(verb, {name: self.started_as(controller, name) for name in meant}, self.is_alone)
        known = [name for name in said.gangs if name in self.gangs]
        said.excused |= {name for name in known if verb in (*LAST, "sweep") and not self.stands_alone(name)}
        said.idle = frozenset(name for name in known if serving(self.gangs[name]) is None or self.is_ending(name))
        said.began = self.world.now
        self.verbs.append(said)
        named = (ROUTER_GANG,) if verb.startswith(ROUTER_GANG) else ()
        self.asked_for[controller.name] = (*meant, *said.gangs, *named)
        try:
            (EVERY_VERB | AT_ONCE_VERBS)[verb](self, inventory, gang, said)
            controller.outcomes.append(f"{verb} {gang}: done")
        except DeployError as failure:
            words = f"{failure.where}: {failure.what} (fix: {failure.fix})"
            controller.outcomes.append(f"{verb} {gang}: {type(failure).__name__}: {words}")
            said.refused = True
        except KeyboardInterrupt:
            controller.outcomes.append(f"{verb} {gang}: {INTERRUPTED}")
            said.by_hand = verb == "maintenance" and STOPPED in " ".join(said.words[-1:])
            self._left_half_way(said)
        except Killed:
            controller.outcomes.append(f"{verb} {gang}: {KILLED}")
            self._left_half_way(said)
            raise
        finally:
            said.ended = self.world.now
            controller.busy -= 1

    def _left_half_way(self, said: Said) -> None:
        """Its gangs are as it has left them until somebody finishes it."""
        for gang in said.gangs if said.verb not in LAST else ():
            self.strikes.setdefault(gang, Strike(self.world.now, noticed_s=0.0, settles_s=DRAINS_S))

    def kill(self, number: int) -> None:
        """The command that an operator has typed is killed, as by its terminal's end; he comes back."""
        dead = self.controllers[number]
        dead.kill()
        name = dead.name + AGAIN
        self.inventories[name] = self.inventories[dead.name]
        anew = Controller(name, dead.gang, dead.stage, dead.spec)
        anew.outcomes = dead.outcomes
        self.controllers[number] = anew

    def is_ending(self, gang: str) -> bool:
        """Whether a `down` is at work on it."""
        return any(gang in one.gangs and one.verb in DOWNS and one.ended > self.world.now for one in self.verbs)

    def is_alone(self, said: Said) -> bool:
        """Whether no other verb changes another gang."""
        return not self.changing(said)

    def started_as(self, controller: Controller, gang: str) -> str:
        """What a gang of his inventory was started as: by its nodes."""
        spec = next((one for one in self.inventories[controller.name].gangs if one.name == gang), None)
        return _on(self, spec).name if spec is not None else gang

    def records(self, folder: Path) -> Callable[..., Path]:
        """What an operator's machine keeps is its own: in place of the folder in a home."""

        def state_folder(name: str = "") -> Path:
            actor = STAGE[0].actors.get(threading.get_ident())
            name_of = (actor.controller if actor else self.controllers[0]).name.rstrip(AGAIN)
            return folder / "homes" / name_of / name

        return state_folder

    def told(self) -> str:
        """For the reader of a violation."""
        outcomes = {one.name: one.outcomes for one in self.controllers}
        states = {name: gang.states() for name, gang in self.gangs.items()}
        said = [f"{one.verb} {words}" for one in self.verbs for words in one.words[-5:]]
        words = f"lost {self.lost[:3]}; said {said[-16:]}; guard {self.guard_words[-8:]}"
        return f"{outcomes}; {states}; workers {self.router.workers}; {words}"


Verb = Callable[[Service, Inventory, str, Said], None]
"""What an operator types, for a gang by the name that his inventory has for it."""


def _lock(*given: Any, **named: Any) -> GangLock:
    """A gang's lock whose heartbeat goes by the simulated clock."""
    return GangLock(*given, **{**named, "_given_back": Event()})


def _claim(*given: Any, **named: Any) -> RouterClaim:
    """The same of the claim on the router's host."""
    return RouterClaim(*given, **{**named, "_given_back": Event()})


def _boots(fleet: Any, names: Sequence[str]) -> Mapping[str, str | None]:
    """Of nodes that are not booted."""
    return {name: "boot" for name in fleet.nodes if name in names}


def _works(*_: object, **__: object) -> tuple[int, str]:
    """In place of the command that maintenance runs for each node."""
    STAGE[0].sleep(WORKS_S)
    return 0, ""


def _up(plan_id: str = planned.USUAL, **options: object) -> Verb:
    """`up` with a plan."""

    def run(_: Service, inventory: Inventory, name: str, said: Said) -> None:
        operation = operation_of(inventory).to_start((name,), replicas=False)
        planned.carry_out(operation, (name,), plan_id, said, UP_S, **options)

    return run


def _gated(service: Service, inventory: Inventory, name: str, said: Said) -> None:
    _up(planned.OTHERS[0], gate=planned.SimulatedGate(service.world.rng.random() < 0.5))(service, inventory, name, said)


def _sweep(service: Service, inventory: Inventory, name: str, said: Said) -> None:
    """As it takes a gang that runs out, has it serve one candidate after the other without a router, and at the end
    what it served before."""
    (spec,) = chosen_gangs(inventory, (name,))
    alone, operation = replace(inventory, gangs=(spec,), router=None), operation_of(inventory)
    runs = any(node.agent_lives for node in _on(service, spec).nodes)
    with sweep_turn(inventory, name, f"sweep {name}", UP_S) as held:
        if runs:
            held.wait(said)
            leave = partial(routing.withdraw, operation, (name,), partial(_say_swept, said, name))
            down.refuse_leftovers(down.down(operation_of(alone), down.DownRequest(gangs=(name,)), before_stop=leave))
        for plan_id in planned.OTHERS:
            held.announce(said)
            _up(plan_id)(service, alone, name, said)
            STAGE[0].sleep(MEASURED_S)
            entry.stop_measured(operation, name, f"sweep {name}", lambda words: said.step(name, words))
        if runs:
            _up(turn=held.token)(service, inventory, name, said)


def _say_swept(said: Said, name: str, last: Serving) -> None:
    said.step(name, SWEPT_ALONE if last else "it is out")


def _certify(service: Service, inventory: Inventory, name: str, said: Said) -> None:
    """As it starts a gang of which nothing runs, without a router, kills one of its ranks, restarts it and stops it."""
    (spec,) = chosen_gangs(inventory, (name,))
    alone, gang = replace(inventory, gangs=(spec,), router=None), _on(service, spec)
    if any(node.agent_lives for node in gang.nodes):
        raise InputError("it runs", where=f"gang {name}", fix=f"l40s-deploy down {name}")
    _up()(service, alone, name, said)
    if routing.is_entered(operation_of(inventory), name):
        raise InputError("it is behind the router", where=f"gang {name}", fix=f"l40s-deploy router remove {name}")
    said.excused |= said.gangs
    gang.strike(Fault("kill-rank", (1,), service.world.now))
    STAGE[0].sleep(LEASE_S)
    request = RestartRequest(gangs=(name,), command=f"certify {name}", now=True, timeout_s=UP_S)
    restart.restart(operation_of(alone), request, said)
    entry.stop_measured(operation_of(inventory), name, f"certify {name}", lambda words: said.step(name, words))


def _resume(_: Service, inventory: Inventory, name: str, said: Said) -> None:
    """`up` without a model."""
    restart.resume(operation_of(inventory), (name,), said, command=f"up {name}", timeout_s=UP_S)


def _on(service: Service, spec: GangSpec) -> Gang:
    """The simulated gang on these nodes, or most of them, however it is called; of two with as many the leader's."""
    names, leader = {node.name for node in spec.nodes}, spec.nodes[0].name
    return max(service.gangs.values(), key=lambda gang: (len(names & set(gang.names)), leader in gang.names))


def operation_of(inventory: Inventory) -> Operation:
    fleet: Any = SimulatedFleet(tuple(inventory.nodes))
    if inventory.router is None:
        return Operation(inventory=inventory, fleet=fleet, router=None)
    host: Any = SimulatedFleet(router_gang(inventory.router).nodes)
    return Operation(inventory=inventory, fleet=fleet, router=Router(inventory.router, host))


def _restart(_: Service, inventory: Inventory, name: str, said: Said) -> None:
    verb = ROLLING if restart.can_roll(operation_of(inventory), (name,)) else RESTART
    _restarted(inventory, name, said, verb)


def _restart_all(_: Service, inventory: Inventory, __: str, said: Said) -> None:
    verb = ROLLING if restart.can_roll(operation_of(inventory), ()) else RESTART
    _restarted(inventory, "", said, verb)


def _roll_all(_: Service, inventory: Inventory, __: str, said: Said) -> None:
    _restarted(inventory, "", said, ROLLING)


def _restarted(inventory: Inventory, name: str, said: Said, verb: RestartVerb, **options: Any) -> None:
    gangs, command = ((name,), f"restart {name}") if name else ((), "restart --all")
    request = RestartRequest(verb=verb, gangs=gangs, command=command, timeout_s=UP_S, **options)
    restart.restart(operation_of(inventory), request, said)


def _down(_: Service, inventory: Inventory, name: str, said: Said) -> None:
    def announce(last: Serving) -> None:
        for gang in last:
            said.step(gang, LAST_WORDS)

    def before() -> None:
        try:
            for gang in routing.withdraw(operation_of(inventory), (name,), announce).changing:
                said.step(gang, LAST_WORDS)
        except DeployError as failure:
            said.step(name, f"{failure.where}: {failure.what}")

    stopped = down.down(operation_of(inventory), down.DownRequest(gangs=(name,)), before_stop=before)
    for node in stopped:
        if node.error is not None:
            said.step(node.gang, f"{node.node}: {node.error.what}")


def _down_as(service: Service, inventory: Inventory, name: str, said: Said) -> None:
    """With the name that it was started by, where the inventory has another one by now."""
    former = said.names[name]
    _down(service, called(inventory, name, former), former, said)


def _status(_: Service, inventory: Inventory, name: str, said: Said) -> None:
    gangs = chosen_gangs(inventory, (name,))
    (view,) = reports.see(cast("Any", SimulatedFleet(inventory.nodes)), gangs)
    for remark in (view.state.value, *view.remarks):
        said.step(name, remark)


def _router_up(_: Service, inventory: Inventory, __: str, said: Said) -> None:
    routing.start_router(operation_of(inventory), said, command="router up")


def _router_down(_: Service, inventory: Inventory, __: str, ___: Said) -> None:
    routing.stop_router(operation_of(inventory), command="router down")


def _router_anew(_: Service, inventory: Inventory, __: str, said: Said) -> None:
    """As messages advise it."""
    _router_down(_, inventory, __, said)
    _router_up(_, inventory, __, said)


def _router_add(_: Service, inventory: Inventory, name: str, __: Said) -> None:
    entry.add_gang(operation_of(inventory), name)


def _router_remove(
    _: Service, inventory: Inventory, name: str, said: Said, *, way: claims.Way = claims.Way.WAITS
) -> None:
    operation = operation_of(inventory)
    ours = RouterTurn(operation, (name,), f"router remove {name}", said, patience_s=UP_S, way=way)
    entry.remove_gang(operation, name, ours, said)


LOOKS = {
    "status": _status,
    "router up": _router_up,
    "router anew": _router_anew,
    "router add": _router_add,
    "router remove": _router_remove,
}
"""Verbs that touch no gang."""
OTHER_RESTARTS: dict[str, Verb] = {
    "maintenance": lambda _, inventory, name, said: _restarted(inventory, name, said, MAINTENANCE, run="true"),
    "rollback": lambda _, inventory, name, said: _restarted(inventory, name, said, ROLLBACK),
}
"""Restarts with something to do between stop and start, or with another plan."""
CHANGING: dict[str, Verb] = {
    "up other": _up(planned.OTHERS[0]),
    "up --replace": _up(planned.OTHERS[1], replace=True),
    "up --gate": _gated,
    "resume": _resume,
    "sweep": _sweep,
    "certify": _certify,
}
"""What changes a gang's plan, or finishes what was begun."""
VERBS: dict[str, Verb] = {
    "up": _up(),
    "restart": _restart,
    "rolling": lambda _, inventory, name, said: _restarted(inventory, name, said, ROLLING),
    "down": _down,
}
OF_ALL: dict[str, Verb] = {"restart all": _restart_all, "rolling all": _roll_all}
"""Verbs without a gang's name."""
EVERY_VERB: dict[str, Verb] = {**VERBS, **OTHER_RESTARTS, **CHANGING, **OF_ALL, **LOOKS, "down --as": _down_as}

AT_ONCE_VERBS: dict[str, Verb] = {
    "restart at once": lambda _, inventory, name, said: _restarted(inventory, name, said, RESTART, all_at_once=True),
    "up at once": _up(planned.OTHERS[1], replace=True, all_at_once=True),
    "router remove at once": partial(_router_remove, way=claims.Way.AT_ONCE),
}
"""With --all-at-once: whoever types it bears that requests fail meanwhile. Not drawn."""


def started(gang: Gang) -> None:
    """Have a gang run that nobody's command starts, and that the first operator has a record of."""
    keep_plan(gang.name, "p", RecordedPlan(service_url=gang.url))
    run_id = f"19700101-000000-{gang.name}"
    for rank, node in enumerate(gang.nodes):
        staged = replace(gang.run_of(rank, run_id), plan_id="p", folder="").as_json()
        for verb, asked in (("stage", staged), ("arm", {"run_id": run_id}), ("go", {"run_id": run_id})):
            gang.world.after(STARTS_S[verb], partial(NODE_VERBS[verb], node, asked, lambda _: None))


def inventory_of(service: Service, folder: Path, names: Mapping[str, str] = MappingProxyType({})) -> Inventory:
    """An inventory of these gangs. names: what it calls them, where it calls them otherwise."""
    gangs = tuple(
        GangSpec(
            name=names.get(name, name),
            nodes=tuple(
                NodeSpec(
                    name=node.name, gang=names.get(name, name), node_rank=rank, reach=Reach(host=node.name),
                    state_dir=str(folder / node.name), ports=GangPorts(agent=7700), lease_s=LEASE_S,
                )
                for rank, node in enumerate(gang.nodes)
            ),
        )
        for name, gang in service.gangs.items()
    )  # fmt: skip
    head = NodeSpec(name="head", gang="", node_rank=0, reach=Reach(host="head"), state_dir=str(folder / "head"))
    return Inventory(path="hosts.yml", gangs=gangs, router=RouterSpec(node=head))


def staged_router() -> Mapping[str, object]:
    """What the router was started with."""
    return StagingRequest(
        gang=ROUTER_GANG, run_id="router", node="head", node_rank=0, nnodes=1, members=("head",), plan_id="p",
        model="all gangs", stack=SMG.name, device="cpu", argv=("smg",), leader=Endpoint(address="head", port=7701),
        watch=words.watch("/health"),
    ).as_json()  # fmt: skip


@contextlib.contextmanager
def operated(service: Service, count: int = 2) -> Iterator[Path]:
    """Operators of a service, each with an inventory. Within `simulated`."""
    world, stage = service.world, Stage(service.world)
    stage.machines, stage.asked = service.machines, service.reaches
    STAGE[:] = [stage]
    folder = Path(tempfile.mkdtemp(prefix="l40s-simulated-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    for gang in service.gangs.values():
        for rank, node in enumerate(gang.nodes):
            node.gang, node.rank, node.folder = gang, rank, folder / node.name
    service.head.gang, service.head.folder = next(iter(service.gangs.values())), folder / "head"
    service.head.request = dict(staged_router())
    first = next(iter(service.gangs.values()))
    spec = inventory_of(service, folder).gangs[0]
    service.controllers = [Controller(f"c{number}", first, stage, spec) for number in range(count)]
    service.inventories = {one.name: inventory_of(service, folder) for one in service.controllers}
    moment = next(value for target, name, value in patches(world, stage) if (target, name) == (raising, "time"))
    more: list[tuple[Any, str, Any]] = []
    more += [(module, "time", moment) for module in (restart, restart_sequence, draining, client, claim, up)]
    more += [(restart, "refuse_starts", lambda *_, **__: None)]
    more += [(module, "facts_of_now", lambda *_: None) for module in (restart, restart_sequence)]
    more += [(module, "GangLock", _lock) for module in (down, restart, up_operation)]
    more += [(routing, "GangLock", _lock)]
    more += planned.patches(partial(_on, service))
    more += [(turn, "connected", lambda inventory: contextlib.nullcontext(operation_of(inventory)))]
    more += [(claim, "RouterClaim", _claim), (maintenance, "time", moment)]
    more += [(maintenance, "boots", _boots), (maintenance, "run_command", _works)]
    more += [(maintenance, "against_starts", lambda *_: None)]
    more += [(documents, "state_folder", service.records(folder))]
    more += [(history, "Fleet", lambda nodes, **_: contextlib.nullcontext(SimulatedFleet(nodes)))]
    try:
        with contextlib.ExitStack() as opened:
            for target, name, value in (*patches(world, stage), *more):
                opened.enter_context(mock.patch.object(target, name, value))
            yield folder
            for controller in service.controllers:
                controller.kill()
            world.run(world.now + 0.001, lambda: None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
