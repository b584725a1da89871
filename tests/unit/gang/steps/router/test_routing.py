"""The gangs behind the router: a serving router is not restarted, and every serving gang is added."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from tests.support.certificates import certified_key
from tests.support.commands import router_of, unasked

from orchestrator.engines import router as words
from orchestrator.engines.serving import RUN_LABEL, UNKNOWN_MODEL, ServedModel, Worker
from orchestrator.gang.claims import Found
from orchestrator.gang.operations import GangOperation, OperationKind
from orchestrator.gang.overview import Overview, RouterGlance
from orchestrator.gang.steps import down, operation, restart, restart_sequence
from orchestrator.gang.steps.restart_sequence import ROLLING, RestartRequest
from orchestrator.gang.steps.router import claim, client, draining, router_start, routing
from orchestrator.gang.steps.router.claim import RouterTurn
from orchestrator.gang.steps.router.client import Router, RouterState
from orchestrator.gang.steps.router.router_start import start_of
from orchestrator.gang.steps.router.routing import add_to_router, rejoin, router_state
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import AUTO, GangPorts, GangSpec, Inventory, NodeSpec, Reach, RouterSpec
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import (
    DeployError,
    Detached,
    GangFailed,
    InputError,
    LockHeld,
    NodeError,
    RunsElsewhere,
    Unreachable,
    WithoutFiles,
)
from orchestrator.protocol.verbs import HttpAnswer, HttpRequest, LockAnswer, LockHolder


def node(name: str, gang: str, stack: str | None = None) -> NodeSpec:
    reach = Reach(connection="local", host="localhost")
    return NodeSpec(name=name, gang=gang, node_rank=0, reach=reach, ports=GangPorts(), stack=stack)


GANGS = tuple(GangSpec(name=name, nodes=(node(f"on-{name}", name),)) for name in ("a", "b", "c"))
INVENTORY = Inventory(path=Path("hosts.yml"), gangs=GANGS, router=RouterSpec(node=node("front", "router")))  # type: ignore[arg-type]
SMG = words.InstalledRouter(words.SMG, words.SMG.venv)
OLD = words.InstalledRouter(words.SGLANG_ROUTER, words.SGLANG_ROUTER.venv)
NO_ANSWER = Unreachable("no route", where="front", fix="look")


def gang(
    name: str, state: GangState = GangState.READY, *, healthy: bool = True, stack: str = "", model: str = "m"
) -> GangView:
    return GangView(
        name=name,
        state=state,
        service_healthy=healthy,
        service_url=f"http://{name}",
        stack=stack or "sglang-0.5.23",
        model=model,
    )


def router(state: GangState, plan_id: str = "") -> GangView:
    alive = state is not GangState.ABSENT
    nodes = (NodeView(name="front", node_rank=0, state=NodeState(state.value), alive=alive),)
    healthy = state is GangState.READY
    return GangView(name="router", state=state, plan_id=plan_id, service_healthy=healthy, nodes=nodes)


@dataclass
class World:
    """The answers of the nodes and the router, and the orders they received."""

    gangs: tuple[GangView, ...]
    router: GangView
    behind: list[str] = field(default_factory=list)
    """Urls in the order in which they were added."""
    unhealthy: tuple[str, ...] = ()
    """Urls that the router does not list as healthy."""
    started: list[str] = field(default_factory=list)
    """Ids of the started plans."""
    said: list[str] = field(default_factory=list)
    argv: list[Sequence[str]] = field(default_factory=list)
    missing: tuple[str, ...] = ()
    """Urls that answer 404."""
    installed: words.InstalledRouter = SMG
    """The router on its host."""
    called: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Aliases that a gang was added with, by its URL."""
    runs: dict[str, str] = field(default_factory=dict)
    """The run that it was added for."""
    found: Found = Found.OURS
    """The claim on the router's host, for a restart."""

    def see(self, _: object, gangs: Sequence[GangSpec], **__: object) -> tuple[GangView, ...]:
        names = [spec.name for spec in gangs]
        return tuple(view for view in (*self.gangs, self.router) if view.name in names)

    def ask_from(self, _: object, node: str, asks: Sequence[HttpRequest]) -> list[HttpAnswer]:
        assert node == "front"
        return [HttpAnswer(status=404 if ask.url in self.missing else 200) for ask in asks]

    def take_in(self, url: str, run: str = "", aliases: Sequence[str] = ()) -> None:
        self.called[url], self.runs[url] = tuple(aliases), run
        if url in self.unhealthy:
            raise NodeError(f"the router does not find {url} healthy", where="front", fix="look")
        self.behind.append(url)

    def take_out(self, url: str) -> None:
        self.behind[:] = [one for one in self.behind if one != url]

    def raise_all(self, _: object, risings: Sequence[Any], *__: object, **___: object) -> None:
        (rising,) = risings
        if self.router.plan_id not in ("", rising.plan_id):
            raise InputError("this gang runs another plan", where="router", fix="")
        self.started.append(rising.plan_id)
        self.argv.append(rising.document["argv"])
        limit = rising.requests["front"].request_limit
        self.router = replace(router(GangState.READY, self.router.plan_id or rising.plan_id), request_limit=limit)

    def step(self, gang: str, words: str) -> None:
        self.said.append(f"{gang}: {words}")


@dataclass
class Lock:
    """Always held by us. kept: records of what was begun, per gang."""

    gang: GangSpec
    kept: ClassVar[dict[str, GangOperation]] = {}

    def begin(self, begun: GangOperation) -> None:
        self.kept[self.gang.name] = begun

    def finish(self) -> None:
        self.kept.pop(self.gang.name, None)


@contextmanager
def lock(_: object, gang: GangSpec, *__: object, **___: object) -> Iterator[Lock]:
    Lock.kept.clear()
    yield Lock(gang)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(gangs=(gang("a"), gang("b"), gang("c")), router=router(GangState.ABSENT))
    for module in (operation, client, restart):
        monkeypatch.setattr(module, "see", made.see)
    monkeypatch.setattr(RouterTurn, "_acquire", lambda *_: made.found)
    monkeypatch.setattr(operation.Operation, "as_they_run", lambda _, gangs: tuple(gangs))
    monkeypatch.setattr(routing, "raise_all", made.raise_all)
    monkeypatch.setattr(routing, "GangLock", lock)
    for module in (draining, router_start):
        monkeypatch.setattr(module, "ask_from", made.ask_from)
    monkeypatch.setattr(Router, "take_in", lambda _, *given: made.take_in(*given))
    monkeypatch.setattr(router_start, "installed_router", lambda *_, **__: made.installed)
    monkeypatch.setattr(Router, "take_out", lambda _, url: made.take_out(url))
    monkeypatch.setattr(Router, "workers", lambda _: ())
    return made


def test_a_router_that_serves_with_other_settings_is_left_alone_and_takes_the_gangs_in(world: World) -> None:
    world.router = router(GangState.READY, "other")
    add_to_router(unasked(INVENTORY), world.gangs, world, command="up")  # type: ignore[arg-type]
    assert world.behind == ["http://a", "http://b", "http://c"] and not world.started
    assert any(words.endswith("`l40s-deploy router down`, then `l40s-deploy router up`") for words in world.said)


def test_clients_are_told_of_the_router_that_runs(world: World, tmp_path: Path) -> None:
    """TLS and another port, which its inventory has since, are not there before it is started anew."""
    world.router = replace(router(GangState.READY, "other"), told_url="http://127.0.0.1:30001")
    spec = replace(guarded(tmp_path), port=30002)
    now = add_to_router(unasked(replace(INVENTORY, router=spec)), world.gangs, world, command="up")  # type: ignore[arg-type]
    assert now is not None and (now.url, spec.url) == ("http://localhost:30001", "https://localhost:30002")
    world.router = router(GangState.ABSENT)
    assert router_state(unasked(replace(INVENTORY, router=spec))).url == spec.url


@pytest.mark.parametrize(
    ("holder", "left_out"),
    [
        (LockHolder(token="theirs", who="bob", host="desk", pid=7, command="restart b", why="b"), "b"),
        (LockHolder(token="ours", command="up", why="b"), ""),
        (LockHolder(token="theirs", command="restart b", why="b", stale=True), ""),
        (None, ""),
    ],
)
def test_nobody_puts_back_what_another_command_takes_out(
    world: World, monkeypatch: pytest.MonkeyPatch, holder: LockHolder | None, left_out: str
) -> None:
    """It drains, and with new requests that would never end."""
    world.router = router(GangState.READY)
    shown = PerNode(values={"front": LockAnswer(held=holder)}, failures={})
    monkeypatch.setattr(claim, "shown_locks", lambda *_: shown)
    add_to_router(unasked(INVENTORY), world.gangs, world, command="up", ours="ours")  # type: ignore[arg-type]
    assert world.behind == [f"http://{name}" for name in "abc" if name != left_out]
    assert any("bob@desk (pid 7) changes it with `restart b`" in words for words in world.said) is bool(left_out)


def test_what_another_command_takes_out_meanwhile_is_taken_out_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim is seen by the second look only: between the two the gang was added that it drains."""
    world.router = router(GangState.READY)
    behind_at_looks: list[bool] = []

    def shown(*_: object) -> PerNode[LockAnswer]:
        behind_at_looks.append("http://b" in world.behind)
        typed = LockHolder(token="theirs", who="bob", host="desk", pid=7, command="restart b", why="b")
        return PerNode(values={"front": LockAnswer(held=typed if behind_at_looks[-1] else None)}, failures={})

    monkeypatch.setattr(claim, "shown_locks", shown)
    add_to_router(unasked(INVENTORY), world.gangs, world, command="up")  # type: ignore[arg-type]
    assert behind_at_looks == [False, True] and world.behind == ["http://a", "http://c"]
    assert any("b: not added to the router: bob@desk (pid 7) changes it" in words for words in world.said)


@pytest.mark.parametrize(("was_run", "enters"), [("old", False), ("", True)])
def test_nobody_adds_a_plan_on_which_a_gate_came_to_no_verdict(
    world: World, monkeypatch: pytest.MonkeyPatch, was_run: str, enters: bool
) -> None:
    """The plan before may enter: the gate had not come to the stop."""
    world.router = router(GangState.READY)
    begun = GangOperation(gang="b", what=OperationKind.CHANGE, turning=True, was_run=was_run, unjudged=True)
    monkeypatch.setattr(routing, "begun_on", lambda _, gangs: (begun,) if "b" in [gang.name for gang in gangs] else ())
    add_to_router(unasked(INVENTORY), world.gangs, world, command="up")  # type: ignore[arg-type]
    assert ("http://b" in world.behind) is enters
    assert any(words.startswith("b: not added to the router: its `up --gate`") for words in world.said) is not enters


@pytest.mark.parametrize("looks", [1, 2])
def test_nobody_puts_back_what_a_down_ends(world: World, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """Whether it was typed before the gangs are added, or meanwhile."""
    world.router = router(GangState.READY)
    looked: list[str] = []

    def shown(_: object, gangs: Sequence[GangSpec], *__: object) -> PerNode[LockAnswer]:
        nodes = [node.name for gang in gangs for node in gang.nodes]
        looked.extend(node for node in nodes if node == "on-b")
        held = LockHolder(token="theirs", command="down") if len(looked) >= looks else None
        return PerNode(values={node: LockAnswer(held=held if node == "on-b" else None) for node in nodes}, failures={})

    monkeypatch.setattr(down, "shown_locks", shown)
    add_to_router(unasked(INVENTORY), world.gangs, world, command="up")  # type: ignore[arg-type]
    assert world.behind == ["http://a", "http://c"]
    assert any("not added to the router: `down` ends it" in words for words in world.said)


def test_a_rehearsal_says_what_would_be_started_and_added(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.gangs = (gang("a"), gang("b", GangState.STARTING, healthy=False), gang("c"))
    (would,) = routing.would_start_router(unasked(INVENTORY))
    assert (would.gang, would.state) == ("router", "absent") and would.then
    assert would.what == "would be started; a, c would be added"
    world.router = router(GangState.READY, "other")
    behind = (Worker(id="1", url="http://a", healthy=True, load=0),)
    monkeypatch.setattr(Router, "workers", lambda _: behind)
    (would,) = routing.would_start_router(unasked(INVENTORY))
    assert (would.then, would.what) == ("other", "is running and would be left unchanged; c would be added")
    assert not world.started and not world.behind


def test_a_router_on_its_way_up_with_other_settings_is_waited_for(world: World) -> None:
    world.router = router(GangState.STARTING, "other")
    add_to_router(unasked(INVENTORY), world.gangs, world, command="up")  # type: ignore[arg-type]
    assert world.started == ["other"] and len(world.behind) == 3


def test_who_serves_at_the_moment_does_not_change_a_routers_settings(world: World) -> None:
    world.gangs = (gang("a"), gang("b", stack="sglang-0.4.4-l40s"))
    add_to_router(unasked(INVENTORY), world.gangs, world, command="up")  # type: ignore[arg-type]
    world.gangs = world.gangs[:1]
    add_to_router(unasked(INVENTORY), world.gangs, world, command="up")  # type: ignore[arg-type]
    assert len(world.started) == 1 and not any("settings differ" in words for words in world.said)


def test_its_limit_goes_by_what_the_gangs_run_and_is_no_other_setting_when_that_changes(world: World) -> None:
    assert INVENTORY.router is not None
    limited = replace(INVENTORY, router=replace(INVENTORY.router, max_requests=AUTO))
    world.gangs = (replace(gang("a"), runs_at_once=80), gang("b", GangState.ABSENT, healthy=False), gang("c"))
    add_to_router(unasked(limited), world.gangs, world, command="up")  # type: ignore[arg-type]
    assert " --max-concurrent-requests 480 " in " ".join(world.argv[0])
    world.gangs = (world.gangs[0], replace(gang("b"), runs_at_once=100), world.gangs[2])
    add_to_router(unasked(limited), world.gangs, world, command="up")  # type: ignore[arg-type]
    assert len(world.started) == 1 and not any("settings differ" in words for words in world.said)
    assert any("at most 480 requests at once; by what its gangs run now 560" in words for words in world.said)


def test_a_limit_that_no_gang_tells_is_none_and_said(world: World) -> None:
    assert INVENTORY.router is not None
    limited = replace(INVENTORY, router=replace(INVENTORY.router, max_requests=AUTO))
    add_to_router(unasked(limited), world.gangs, world, command="up")  # type: ignore[arg-type]
    assert "--max-concurrent-requests" not in world.argv[0]
    assert any("lets in any number of requests: no gang told" in words for words in world.said)


def test_a_gang_without_the_routers_health_path_is_told_and_keeps_nobody_out(world: World) -> None:
    add_to_router(unasked(INVENTORY), world.gangs[1:], world, command="up")  # type: ignore[arg-type]
    world.gangs = (gang("a", stack="sglang-0.4.4-l40s"), *world.gangs[1:])
    world.unhealthy, world.behind = ("http://a",), []
    with pytest.raises(NodeError, match="http://a") as failed:
        add_to_router(unasked(INVENTORY), world.gangs, world, command="up")  # type: ignore[arg-type]
    assert "`l40s-deploy router down`, then `l40s-deploy router up`" in failed.value.fix
    assert world.behind == ["http://b", "http://c"]


def _asked(world: World) -> str:
    add_to_router(unasked(INVENTORY), world.gangs, world, command="up")  # type: ignore[arg-type]
    (argv,) = world.argv
    return argv[argv.index("--health-check-endpoint") + 1]


def test_the_router_asks_for_the_flag_that_draining_lowers(world: World) -> None:
    assert _asked(world) == "/ready"


def test_it_asks_otherwise_where_a_gangs_version_has_no_such_flag(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the version, whatever the stack's name."""
    mine = tmp_path / "inventory" / "stacks" / "mine.yml"
    mine.parent.mkdir(parents=True)
    mine.write_text("name: mine\nsource: x\ndialect: sglang-0.4.4\nengine_version: 0.4.4.post3\n")
    monkeypatch.chdir(tmp_path)
    world.gangs = (gang("a"), gang("b", stack="mine"))
    assert _asked(world) == "/health"


def test_a_path_that_a_node_reports_is_no_stack(world: World, tmp_path: Path) -> None:
    evil = tmp_path / "evil.yml"
    evil.write_text("name: evil\nsource: x\ndialect: sglang-0.4.4\nengine_version: 0.4.4.post3\n")
    world.gangs = (gang("a"), gang("b", stack=str(evil)), gang("c", stack="x" * 300))
    assert _asked(world) == "/ready"


def test_it_asks_otherwise_where_an_engine_lacks_what_its_version_has(world: World) -> None:
    world.missing = ("http://b/ready",)
    assert _asked(world) == "/health"


def test_a_restarted_gang_is_taken_in_where_a_router_serves(world: World) -> None:
    rejoin(router_of(INVENTORY.router), world.gangs[:1], world)  # type: ignore[arg-type]
    assert world.behind == []
    world.router, world.unhealthy = router(GangState.READY), ("http://b",)
    rejoin(router_of(INVENTORY.router), world.gangs, world)  # type: ignore[arg-type]
    assert world.behind == ["http://a", "http://c"] and "http://b healthy" in world.said[-1]


def test_a_router_that_cant_be_asked_fails_no_restart(world: World) -> None:
    lost = NodeView(name="front", node_rank=0, state=NodeState("unreachable"), error=NO_ANSWER)
    world.router = GangView(name="router", state=GangState.DEGRADED, nodes=(lost,))
    rejoin(router_of(INVENTORY.router), world.gangs, world)  # type: ignore[arg-type]
    assert world.said == ["router: front: no route"]


@dataclass
class Staged:
    gang: GangSpec
    drain_s: float = 0.0
    plan_id: str = "p"
    model: str = "m"
    served: tuple[str, ...] = ()

    def hung_after(self, _: float | None) -> Staged:
        return self

    @property
    def service_url(self) -> str:
        return f"http://{self.gang.name}"

    def again(self, *_: object, **__: object) -> Staged:
        return self


@pytest.fixture
def rolled(world: World, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...]]]:
    """The gang that was stopped, and the workers behind the router then."""
    stops: list[tuple[str, tuple[str, ...]]] = []

    def stop(_: object, gangs: Sequence[GangSpec], *__: object, **___: object) -> None:
        stops.append((" ".join(gang.name for gang in gangs), tuple(world.behind)))

    def raise_all(_: object, starts: Sequence[Staged], *__: object, **___: object) -> tuple[GangView, ...]:
        names = [start.gang.name for start in starts]
        if "b" in names:
            raise GangFailed("does not come up", where="gang b", fix="look")
        return tuple(view for view in world.gangs if view.name in names)

    monkeypatch.setattr(restart, "staged_plan", lambda _, spec: Staged(spec))
    monkeypatch.setattr(restart, "GangLock", lock)
    monkeypatch.setattr(restart, "refuse_starts", lambda *_, **__: None)
    monkeypatch.setattr(restart_sequence, "see", world.see)
    monkeypatch.setattr(restart_sequence, "stop", stop)
    monkeypatch.setattr("orchestrator.gang.steps.restart_sequence.raising.raise_all", raise_all)
    monkeypatch.setattr("orchestrator.gang.steps.restart_sequence.wait_until_drained", lambda *_, **__: None)
    return stops


def roll(world: World, **request: Any) -> DeployError:
    with pytest.raises(DeployError) as failed:
        restart.restart(unasked(INVENTORY), RestartRequest(verb=ROLLING, **request), world)  # type: ignore[arg-type]
    return failed.value


def test_a_gang_that_serves_and_is_not_behind_the_router_gets_in_before_another_stops(
    world: World, rolled: list[tuple[str, tuple[str, ...]]]
) -> None:
    world.behind = ["http://a"]
    roll(world)
    assert rolled[0] == ("a", ("http://b", "http://c"))


def test_only_who_is_behind_the_router_counts_as_serving(
    world: World, rolled: list[tuple[str, tuple[str, ...]]]
) -> None:
    world.unhealthy = ("http://b", "http://c")
    refused = roll(world)
    assert isinstance(refused, InputError) and "1 of 3 gangs serve behind the router (a)" in refused.what
    assert not rolled and world.behind == ["http://a"]


SICK, WELL = (Worker(id="1", url="http://a", healthy=healthy, load=0) for healthy in (False, True))
LOST = NodeView(name="front", node_rank=0, state=NodeState.UNREACHABLE, error=NO_ANSWER)


@pytest.mark.parametrize(
    ("view", "workers", "code"),
    [
        (router(GangState.FAILED), (), 5),
        (GangView(name="router", state=GangState.DEGRADED, nodes=(LOST,)), (), 4),
        (GangView(name="router", state=GangState.DEGRADED, trouble="hung"), (), 3),
        (router(GangState.READY), (SICK,), 3),
        (router(GangState.READY), (SICK, WELL), 0),
        (router(GangState.READY), (), 0),
        (router(GangState.STARTING), (), 0),
        (router(GangState.ABSENT), (), 0),
    ],
)
def test_a_script_learns_from_status_whether_the_router_serves(
    view: GangView, workers: tuple[Worker, ...], code: int
) -> None:
    assert RouterState(view=view, url="", workers=workers).exit_code == code


def test_a_router_whose_state_is_elsewhere_is_left_alone(world: World) -> None:
    error = RunsElsewhere("it runs there", where="front", fix="set l40s_state_dir")
    there = replace(LOST, state=NodeState.UNKNOWN, error=error)
    world.router = GangView(name="router", state=GangState.UNKNOWN, nodes=(there,))
    for do in (
        lambda: routing.start_router(unasked(INVENTORY), world, command="up"),  # type: ignore[arg-type]
        lambda: routing.stop_router(unasked(INVENTORY), command="down"),
    ):
        with pytest.raises(RunsElsewhere):
            do()
    assert RouterState(view=world.router, url="").exit_code == 4 and not world.started
    seen = Overview(views=(), router=RouterGlance(url="", node="front", state=GangState.UNKNOWN, error=error))
    assert seen.exit_code == 4


def test_a_failed_router_comes_back_with_every_gang_that_serves(world: World) -> None:
    world.router = router(GangState.FAILED)
    front = router_of(INVENTORY.router)
    world.gangs, world.unhealthy = (*world.gangs, gang("d", healthy=False)), ("http://b",)
    assert routing.raise_router(unasked(INVENTORY), front, world).serves  # type: ignore[arg-type]
    assert world.behind == ["http://a", "http://c"] and len(world.started) == 1


def staged(path: str, stack: str) -> Any:
    """What a router was started with, as far as it is asked."""
    return SimpleNamespace(stack=stack, watch=SimpleNamespace(http={words.WORKERS_HEALTH: path} if path else {}))


class Front:
    """A router whose worker answers its health path with these statuses, one after the other.

    believes: whether it lists the worker as healthy, look by look; the last one stays
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        path: str,
        *statuses: int,
        spec: RouterSpec | None = None,
        stack: str = words.SMG.name,
    ) -> None:
        self.statuses, self.asked, self.posted = list(statuses), list[str](), list[str]()
        self.believes = [True]
        self.replaced, self.busy, self.model = list[str](), 0, "m"
        self.listed: dict[str, dict[str, Any]] = {}
        self.keys = list[str | None]()
        self.router = router_of(spec or INVENTORY.router)
        monkeypatch.setattr(client, "staged_router", lambda *_: staged(path, stack))
        monkeypatch.setattr(client, "ask_from", self.ask_from)
        monkeypatch.setattr("orchestrator.gang.steps.router.host.ask_from", lambda *given, **_: self.ask_from(*given))
        monkeypatch.setattr(draining, "POLL_S", 0.0)

    def ask_from(self, _: object, __: str, asks: Sequence[HttpRequest], **___: object) -> list[HttpAnswer]:
        (ask,) = asks
        if ask.url.startswith("/v1/"):
            return [HttpAnswer(status=400)]
        if ask.url.startswith("/"):
            if ask.method in ("POST", "PUT"):
                return [self._told(ask.method, json.loads(ask.body or ""))]
            believes = self.believes.pop(0) if self.listed and len(self.believes) > 1 else self.believes[0]
            listed = [{**one, "is_healthy": believes} for one in self.listed.values()]
            return [HttpAnswer(status=200, body=json.dumps({"workers": listed}))]
        self.asked.append(ask.url)
        return [HttpAnswer(status=self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0])]

    def _told(self, method: str, worker: dict[str, Any]) -> HttpAnswer:
        if self.busy:
            self.busy -= 1
            return HttpAnswer(status=409, body='{"code":"WORKER_ALREADY_EXISTS"}')
        (self.posted if method == "POST" else self.replaced).append(worker["url"])
        self.keys.append(worker.get("api_key"))
        self.listed[worker["url"]] = {"models": [{"id": self.model}], **worker, "id": worker["url"]}
        return HttpAnswer(status=202)


def test_a_gang_is_added_once_it_answers_what_the_router_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    front = Front(monkeypatch, "/ready", 503, 503, 200)
    front.router.take_in("http://a")
    assert front.asked == [*["http://a/ready"] * 3, "http://a/v1/models"] and front.posted == ["http://a"]


def test_a_gang_is_in_once_the_router_itself_counts_it_as_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """`up` ends only then: the router may not yet send requests to an engine that answers."""
    front = Front(monkeypatch, "/ready", 200)
    front.believes = [False, False, True, False]
    front.router.take_in("http://a")
    assert front.believes == [False]


def test_a_gang_that_the_router_does_not_believe_in_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    front = Front(monkeypatch, "/ready", 200)
    front.believes = [False]
    monkeypatch.setattr(client, "TAKE_IN_S", 0.05)
    with pytest.raises(NodeError, match="did not report http://a as healthy"):
        front.router.take_in("http://a")


def test_a_gang_that_lacks_what_the_router_asks_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The router would list it as healthy until its own checks fail, and answer every request with 503."""
    front = Front(monkeypatch, "/ready", 404)
    with pytest.raises(NodeError, match="checks the health of gangs at http://a/ready") as failed:
        front.router.take_in("http://a")
    assert front.posted == [] and "`l40s-deploy router down`, then `l40s-deploy router up`" in failed.value.fix


def test_a_router_that_does_not_tell_what_it_asks_is_taken_at_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    front = Front(monkeypatch, "", 404)
    front.router.take_in("http://a")
    assert front.asked == ["http://a/v1/models"] and front.posted == ["http://a"]


def test_a_gang_comes_in_again_once_the_router_has_forgotten_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """smg lists a gang for 5 s after it was removed, and takes no other one at its address meanwhile."""
    front = Front(monkeypatch, "", 200)
    front.busy = 3
    front.router.take_in("http://a", "r1")
    assert front.posted == ["http://a"] and front.busy == 0


def test_another_run_at_the_same_address_is_asked_for_its_model_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would answer for the model that the address served before."""
    front = Front(monkeypatch, "", 200)
    front.router.take_in("http://a", "r1")
    front.router.take_in("http://a", "r1")
    assert (front.posted, front.replaced) == (["http://a"], [])
    front.router.take_in("http://a", "r2")
    assert (front.posted, front.replaced) == (["http://a"], ["http://a"])
    assert front.listed["http://a"]["labels"] == {"l40s_run": "r2"}


def test_a_gang_that_would_not_tell_the_router_its_model_is_not_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a wrong key: smg takes it for a gang of the model 'unknown' in the end."""
    front = Front(monkeypatch, "", 200)
    front.model = "unknown"
    monkeypatch.setattr(client, "TAKE_IN_S", 0.05)
    with pytest.raises(NodeError, match="did not report http://a as healthy"):
        front.router.take_in("http://a", "r1")


def test_a_gang_is_found_by_its_aliases_with_the_name_that_the_router_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    front = Front(monkeypatch, "", 200)
    front.router.take_in("http://a", "r1", ("default", "gpt-oss"))
    assert front.posted == ["http://a"] and front.replaced == ["http://a"]
    assert front.listed["http://a"]["models"] == [{"id": "m", "aliases": ["default", "gpt-oss"]}]
    assert front.listed["http://a"]["labels"] == {RUN_LABEL: "r1"}
    front.router.take_in("http://a", "r1", ("default",))
    assert front.replaced == ["http://a"]  # it has them already


def test_a_router_that_does_not_look_at_models_needs_no_aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    front = Front(monkeypatch, "", 200, stack=words.SGLANG_ROUTER.name)
    front.router.take_in("http://a", "r1", ("default",))
    assert not front.replaced


def test_an_alias_names_one_model_or_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Router, "looks_at_models", lambda _: True)
    monkeypatch.setattr(Router, "workers", lambda _: ())
    aliases = {"a": ("default", "other"), "b": ("default",), "c": ("default", "mine")}
    assert INVENTORY.router is not None
    serving = (gang("a", model="other"), gang("b"), gang("c"))
    failures = routing.take_in_all(router_of(replace(INVENTORY.router, aliases=aliases)), serving)
    assert set(failures) == {"a", "b", "c"} and "default would name two models" in failures["b"].what
    assert world.behind == ["http://a", "http://b", "http://c"] and not any(world.called.values())
    front = router_of(replace(INVENTORY.router, aliases={"b": ("default",), "c": ("default",)}))
    assert not routing.take_in_all(front, serving)
    assert world.called["http://b"] == world.called["http://c"] == ("default",)


def test_a_router_that_does_not_look_at_models_is_told_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    front = Front(monkeypatch, "", 200, stack=words.SGLANG_ROUTER.name)
    front.router.take_in("http://a", "r1")
    front.router.take_in("http://a", "r2")
    assert front.posted == ["http://a"] and "labels" not in front.listed["http://a"] and not front.replaced


def private(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def guarded(folder: Path) -> RouterSpec:
    """A router with its own key and certificate, in front of gangs with another key."""
    assert INVENTORY.router is not None
    node = replace(INVENTORY.router.node, api_key_file=private(folder / "client", "client-key-1"))
    cert, key = certified_key("router.example")
    return replace(
        INVENTORY.router,
        node=node,
        gang_key_file=private(folder / "gang", "engine-key-1"),
        tls_cert=private(folder / "cert.pem", cert),
        tls_key=private(folder / "key.pem", key),
    )


def test_a_gang_gets_its_own_key_from_a_router_that_asks_clients_for_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    front = Front(monkeypatch, "", 200, spec=guarded(tmp_path))
    front.router.take_in("http://a")
    plain = Front(monkeypatch, "", 200)
    plain.router.take_in("http://a")
    assert (front.keys, plain.keys) == (["engine-key-1"], [None])


def test_keys_and_certificate_are_files_of_the_routers_node_and_in_no_argument(tmp_path: Path) -> None:
    spec = guarded(tmp_path)
    rising = start_of(router_of(spec), "/ready", SMG)
    (staged,) = rising.of_run("run-1", "00").values()
    assert staged.secrets is not None and staged.service is not None
    files = {file.name: file.text for file in staged.secrets.files}
    admin = staged.secrets.authorization.removeprefix("Bearer ")
    arguments = files["engine-secrets.args"].splitlines()
    assert arguments[:2] == ["--control-plane-api-keys", f"l40s-deploy:l40s-deploy:admin:{admin}"]
    assert arguments[2:] == ["--api-key", "client-key-1"] and len(admin) == 48
    assert files["router-key.pem"].startswith("-----BEGIN") and staged.service.url.startswith("https://127.0.0.1:")
    shown = json.dumps([*staged.argv, staged.launch_script, rising.document, spec.url])
    assert not any(secret in shown for secret in (admin, "client-key-1", "engine-key-1", "PRIVATE"))
    assert set(staged.secrets.redact) == {admin, "client-key-1"}


def test_another_key_or_certificate_are_other_settings_and_another_start_is_not(tmp_path: Path) -> None:
    spec = guarded(tmp_path)

    def plan_id() -> str:
        return start_of(router_of(spec), "/ready", SMG).plan_id

    at_first = plan_id()
    assert plan_id() == at_first
    private(tmp_path / "client", "client-key-2")
    with_another_key = plan_id()
    cert, key = certified_key("router.example")
    private(tmp_path / "cert.pem", cert)
    with pytest.raises(InputError, match="is not the key of the certificate"):
        plan_id()
    private(tmp_path / "key.pem", key)
    assert len({at_first, with_another_key, plan_id()}) == 3


def test_what_a_running_router_asks_is_known_without_its_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its certificate may have been replaced since it was started, or be on another controller."""
    spec = guarded(tmp_path)
    front = Front(monkeypatch, "/ready", 503, 200, spec=spec)
    for file in (spec.tls_cert, spec.tls_key, spec.node.api_key_file):
        Path(file or "").unlink()
    front.router.take_in("http://a")
    assert front.asked == ["http://a/ready", "http://a/ready", "http://a/v1/models"] and front.posted == ["http://a"]


def test_a_router_that_passes_its_clients_key_on_is_not_started_before_gangs_with_another(
    world: World, tmp_path: Path
) -> None:
    routed = replace(INVENTORY, router=guarded(tmp_path))
    with pytest.raises(InputError, match="the router's key differs from the gangs'"):
        routing.start_router(unasked(routed), world, command="router up")  # type: ignore[arg-type]
    assert not world.started
    world.installed = OLD
    routing.start_router(unasked(routed), world, command="router up")  # type: ignore[arg-type]
    assert len(world.started) == 1
    world.installed, world.router, world.started = SMG, router(GangState.ABSENT), []
    private(tmp_path / "client", "engine-key-1")
    routing.start_router(unasked(routed), world, command="router up")  # type: ignore[arg-type]
    assert len(world.started) == 1


def test_a_host_with_the_old_router_alone_starts_that_one(world: World) -> None:
    world.installed = OLD
    add_to_router(unasked(INVENTORY), world.gangs, world, command="up")  # type: ignore[arg-type]
    (argv,) = world.argv
    assert argv[0] == "/opt/l40s/venvs/sglang-router-0.3.2/bin/python3" and "--enable-igw" not in argv
    world.installed, world.router, world.argv = SMG, router(GangState.ABSENT), []
    add_to_router(unasked(INVENTORY), world.gangs, world, command="up")  # type: ignore[arg-type]
    (argv,) = world.argv
    assert argv[0] == "/opt/l40s/venvs/smg-1.13.0/bin/python3" and "--enable-igw" in argv


@pytest.mark.parametrize("by_model", [False, True])
def test_gangs_of_two_models_stand_behind_a_router_that_tells_them_apart_only(
    world: World, monkeypatch: pytest.MonkeyPatch, by_model: bool
) -> None:
    monkeypatch.setattr(Router, "looks_at_models", lambda _: by_model)
    behind = (Worker(id="1", url="http://b", healthy=True, load=0),)
    monkeypatch.setattr(Router, "workers", lambda _: behind)
    world.router, world.gangs = router(GangState.READY), (gang("a", model="other"), gang("b"), gang("c"))
    failures = routing.take_in_all(router_of(INVENTORY.router), world.gangs)
    if by_model:
        assert not failures and len(world.behind) == 3
        return
    assert world.behind == ["http://b", "http://c"] and list(failures) == ["a"]
    assert failures["a"].what.startswith("ROUTER-MODEL-MIXED: ") and failures["a"].exit_code == 3


def test_no_router_is_started_with_a_certificate_that_has_expired(world: World, tmp_path: Path) -> None:
    cert, key = certified_key("router.example", days=-1)
    spec = replace(guarded(tmp_path), tls_cert=private(tmp_path / "old", cert), tls_key=private(tmp_path / "its", key))
    with pytest.raises(InputError, match="expired on "):
        routing.start_router(unasked(replace(INVENTORY, router=spec)), world, command="router up")  # type: ignore[arg-type]
    assert not world.started


@pytest.mark.parametrize("unread", ["cert.pem", "key.pem", "client"])
def test_files_that_a_router_has_read_at_its_start_keep_no_gang_out_of_it(
    world: World, tmp_path: Path, unread: str
) -> None:
    """They are said once every gang is in; a router that does not serve needs them."""
    spec = guarded(tmp_path)
    for file in (spec.tls_cert, spec.tls_key, spec.node.api_key_file):
        if Path(str(file)).name == unread:
            Path(str(file)).unlink()
    inventory = replace(INVENTORY, router=spec)
    with pytest.raises(InputError, match="can't be read"):
        routing.start_router(unasked(inventory), world, command="router up")  # type: ignore[arg-type]
    assert not world.started and not world.behind
    world.router = router(GangState.READY, "other")
    with pytest.raises(InputError, match="can't be read"):
        add_to_router(unasked(inventory), world.gangs, world, command="up")  # type: ignore[arg-type]
    assert world.behind == ["http://a", "http://b", "http://c"] and not world.started


def test_a_failure_that_was_reported_leaves_nothing_to_resume(
    world: World, rolled: list[tuple[str, tuple[str, ...]]]
) -> None:
    roll(world)
    assert [names for names, _ in rolled] == ["a", "b"] and not Lock.kept


@pytest.mark.parametrize("signal", [KeyboardInterrupt, Detached])
def test_an_interruption_leaves_what_is_not_finished(
    world: World,
    rolled: list[tuple[str, tuple[str, ...]]],
    monkeypatch: pytest.MonkeyPatch,
    signal: type[BaseException],
) -> None:
    def interrupted(_: object, starts: Sequence[Staged], *__: object, **___: object) -> Any:
        if any(start.gang.name == "b" for start in starts):
            world.gangs = (gang("a"), gang("b", GangState.STARTING, healthy=False), gang("c"))
            raise signal
        return tuple(gang(start.gang.name) for start in starts)

    monkeypatch.setattr("orchestrator.gang.steps.restart_sequence.raising.raise_all", interrupted)
    with pytest.raises(signal):
        restart.restart(unasked(INVENTORY), RestartRequest(verb=ROLLING), world)  # type: ignore[arg-type]
    assert {name: begun.turning for name, begun in Lock.kept.items()} == {"b": True, "c": False}
    assert sorted(set(world.behind)) == ["http://a", "http://c"]


def test_an_interruption_while_requests_are_waited_for_has_changed_nothing(
    world: World, rolled: list[tuple[str, tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        assert Lock.kept["a"].turning
        raise KeyboardInterrupt

    monkeypatch.setattr(restart_sequence, "wait_until_drained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        restart.restart(unasked(INVENTORY), RestartRequest(verb=ROLLING), world)  # type: ignore[arg-type]
    assert not rolled and sorted(set(world.behind)) == ["http://a", "http://b", "http://c"]
    assert [begun.turning for begun in Lock.kept.values()] == [False] * 3


def test_a_gang_whose_address_nobody_agrees_on_is_not_taken_in(world: World) -> None:
    lies = replace(gang("a"), service_url="", remarks=("NODE-DISAGREES: a says that it serves at http://evil:1",))
    world.gangs = (lies, gang("b"))
    with pytest.raises(NodeError, match="NODE-DISAGREES: a says"):
        add_to_router(unasked(INVENTORY), world.gangs, world, command="up")  # type: ignore[arg-type]
    assert world.behind == ["http://b"]


def test_a_restart_that_waited_for_its_turn_takes_the_gang_out_of_the_router_first(
    world: World, rolled: list[tuple[str, tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it was typed no other gang served, so that it was no rolling one; meanwhile others serve again."""
    monkeypatch.setattr(RouterTurn, "take", lambda _: False)
    monkeypatch.setattr(RouterTurn, "wait", lambda _: True)
    monkeypatch.setattr(restart, "can_roll", lambda *_: True)
    world.router = router(GangState.READY)
    done = restart.restart(unasked(INVENTORY), RestartRequest(gangs=("a",)), world)  # type: ignore[arg-type]
    assert done.rolled and rolled == [("a", ("http://b", "http://c"))]


@pytest.mark.parametrize("found", [Found.HELD, Found.AWAY])
def test_without_its_turn_nothing_is_locked_and_nothing_stopped(
    world: World, rolled: list[tuple[str, tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch, found: Found
) -> None:
    def no_lock(*_: object, **__: object) -> None:
        raise AssertionError

    def acquire(turn: RouterTurn) -> Found:
        turn._why = NO_ANSWER if found is Found.AWAY else LockHeld("another has it", where="front", fix="wait")
        return found

    monkeypatch.setattr(restart, "GangLock", no_lock)
    monkeypatch.setattr(RouterTurn, "_acquire", acquire)
    assert roll(world, timeout_s=0.0).exit_code == (4 if found is Found.AWAY else 6)
    assert not rolled and not world.behind


def test_whoever_loses_the_turn_takes_nothing_out(
    world: World, rolled: list[tuple[str, tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: object) -> None:
        raise LockHeld("the claim was lost", where="front", fix="look")

    monkeypatch.setattr(RouterTurn, "still_ours", lost)
    assert "claim was lost" in roll(world).what
    assert not rolled and sorted(world.behind) == ["http://a", "http://b", "http://c"]


def test_down_learns_that_it_takes_the_last_one_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.router = router(GangState.READY)
    world.behind = ["http://a", "http://b"]
    monkeypatch.setattr(
        Router, "workers", lambda _: tuple(Worker(url, url, url != "http://b", 0) for url in world.behind)
    )
    assert routing.withdraw(unasked(INVENTORY), ["b"]).last == {}
    world.behind.append("http://b")
    announced: list[tuple[Mapping[str, object], list[str]]] = []
    operation = unasked(INVENTORY)
    last = routing.withdraw(operation, ["a"], lambda last: announced.append((last, [*world.behind]))).last
    assert announced == [(last, ["http://a", "http://b"])] and last == {"a": ("m",)}
    assert world.behind == ["http://b"]
    assert routing.withdraw(unasked(INVENTORY), ["a"]).last == {}


def test_down_is_told_who_changes_all_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has the claim may have looked before this `down` was typed."""
    world.router = router(GangState.READY)
    world.behind = ["http://a", "http://b", "http://c"]
    monkeypatch.setattr(
        Router, "workers", lambda _: tuple(Worker(url, url, healthy=True, load=0) for url in world.behind)
    )
    rolling = LockHolder(token="theirs", who="bob", host="desk", pid=7, command="restart --rolling", why="b, c")
    held = {"front": LockAnswer(held=rolling)}
    monkeypatch.setattr(claim, "shown_locks", lambda *_: PerNode(values=held, failures={}))
    withdrawn = routing.withdraw(unasked(INVENTORY), ["a"])
    assert (withdrawn.last, withdrawn.changing) == ({}, {"a": rolling})
    held["front"] = LockAnswer(held=replace(rolling, why="b"))
    world.behind.append("http://a")
    assert routing.withdraw(unasked(INVENTORY), ["a"]).changing == {}


def test_another_model_takes_no_requests_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.router, world.gangs = router(GangState.READY), (gang("a", model="other"), gang("b"), gang("c"))
    world.behind = ["http://a", "http://b", "http://c"]
    monkeypatch.setattr(
        Router, "workers", lambda _: tuple(Worker(url, url, healthy=True, load=0) for url in world.behind)
    )
    assert not restart.can_roll(unasked(INVENTORY), ["a"]) and restart.can_roll(unasked(INVENTORY), ["b"])
    assert routing.withdraw(unasked(INVENTORY), ["b"]).last == {}
    assert routing.withdraw(unasked(INVENTORY), ["a"]).last == {"a": ("other",)}


def test_a_gang_that_a_flag_gave_another_name_takes_no_requests_over(
    world: World, rolled: list[tuple[str, tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--served-model-name: both run the same profile, and the router sends each the requests for its own name."""
    world.router, world.gangs = router(GangState.READY), (gang("a"), gang("b"), gang("c"))
    names = {"http://a": "mine", "http://b": "m", "http://c": UNKNOWN_MODEL}
    monkeypatch.setattr(
        Router,
        "workers",
        lambda _: tuple(Worker(url, url, True, 0, (ServedModel(names[url]),)) for url in world.behind),
    )
    world.behind = [*names]
    assert not restart.can_roll(unasked(INVENTORY), ["a"]) and restart.can_roll(unasked(INVENTORY), ["b"])
    assert "none would be left for mine" in roll(world).what and not rolled
    world.behind = [*names]
    assert routing.withdraw(unasked(INVENTORY), ["b"]).last == {}
    assert routing.withdraw(unasked(INVENTORY), ["a"]).last == {"a": ("mine",)}


def test_an_alias_of_one_gang_is_nobodys_while_it_is_out(
    world: World, rolled: list[tuple[str, tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All serve one model, and the router sends requests for `default` to a alone."""
    world.router, world.gangs = router(GangState.READY), (gang("a"), gang("b"), gang("c"))
    aliases = {"http://a": ("default",)}
    monkeypatch.setattr(
        Router,
        "workers",
        lambda _: tuple(Worker(url, url, True, 0, (ServedModel("m", aliases.get(url, ())),)) for url in world.behind),
    )
    world.behind = ["http://a", "http://b", "http://c"]
    assert restart.can_roll(unasked(INVENTORY), ["a"])  # the others take over what names the model
    roll(world)
    lost = "no other gang serves default behind the router: requests fail until it is back"
    assert [words for words in world.said if "no other gang" in words] == [f"a: {lost}"]
    world.behind = ["http://a", "http://b", "http://c"]
    assert routing.withdraw(unasked(INVENTORY), ["b"]).last == {}
    assert routing.withdraw(unasked(INVENTORY), ["a"]).last == {"a": ("default",)}


def test_a_gang_comes_back_by_all_of_its_names_and_its_run(world: World) -> None:
    """What a restart puts back is what `up` would have added."""
    assert INVENTORY.router is not None
    front = router_of(replace(INVENTORY.router, aliases={"a": ("default",), "b": ("other",)}))
    views = [replace(gang("a"), run_id="r2"), gang("b"), gang("c", model="other")]
    restart_sequence.put_back(front, views, world)  # type: ignore[arg-type]
    assert world.called == {"http://a": ("default",), "http://b": (), "http://c": ()}
    assert world.runs["http://a"] == "a/r2"
    assert any("other would name two models" in words for words in world.said)
    world.unhealthy = ("http://b",)
    with pytest.raises(NodeError, match="does not find http://b"):
        restart_sequence.put_back(front, views, world)  # type: ignore[arg-type]


def test_an_alias_that_another_operators_gang_has_is_not_given_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Worker("w", "http://theirs", True, 0, (ServedModel("big", ("default",)),))
    monkeypatch.setattr(Router, "workers", lambda _: (theirs,))
    assert INVENTORY.router is not None
    front = router_of(replace(INVENTORY.router, aliases={"a": ("default", "mine")}))
    failures = routing.take_in_all(front, [gang("a")])
    assert "default would name two models" in failures["a"].what and world.called == {"http://a": ()}


def test_a_down_says_that_the_routers_host_does_not_answer(world: World) -> None:
    world.router = router(GangState.UNKNOWN)
    (node,) = world.router.nodes
    world.router = replace(world.router, nodes=(replace(node, error=NO_ANSWER, state=NodeState.UNREACHABLE),))
    with pytest.raises(Unreachable):
        routing.withdraw(unasked(INVENTORY), ["a"])


def test_a_gang_whose_files_were_deleted_is_taken_out_where_the_inventory_says_its_address(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.router = router(GangState.READY)
    lost = WithoutFiles("no file tells of it", where="a", fix="down")
    (served,) = (replace(node, error=lost) for node in router(GangState.UNKNOWN).nodes)
    world.gangs = (GangView(name="a", state=GangState.UNKNOWN, nodes=(served,)), gang("b"))
    world.behind = ["http://a", "http://b"]
    monkeypatch.setattr(Router, "workers", lambda _: tuple(Worker(url, url, True, 0) for url in world.behind))
    stated = replace(INVENTORY, gangs=(replace(GANGS[0], url="http://a"), *GANGS[1:]))
    assert routing.withdraw(unasked(INVENTORY), ["a"]).last == {} and world.behind == ["http://a", "http://b"]
    assert routing.withdraw(unasked(stated), ["a"]).last == {} and world.behind == ["http://b"]


def test_a_gang_whose_leader_nobody_reads_is_taken_out_by_its_run_and_its_requests_are_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leader's address is another machine's now: who tells of the run is a fellow, which knows no address."""
    world.router = router(GangState.READY)
    unread = replace(gang("a"), service_url="", run_id="r7")
    world.gangs, world.behind = (unread, gang("b")), ["http://a:8000", "http://b"]
    runs, left = {"http://a:8000": "a/r7"}, [2, 1, 0, 0]
    quiet: list[int] = []
    monkeypatch.setattr(
        Router,
        "workers",
        lambda _: tuple(Worker(url, url, True, 0, run=runs.get(url, "")) for url in world.behind),
    )

    def asked(*_: object) -> tuple[HttpAnswer, ...]:
        quiet.append(left[len(quiet)])
        return (HttpAnswer(status=200, body=json.dumps({"loads": [_load(quiet[-1])]})),)

    monkeypatch.setattr(draining, "ask_from", asked)
    monkeypatch.setattr(draining, "POLL_S", 0.0)
    assert routing.withdraw(unasked(INVENTORY), ["a"]).last == {}
    assert world.behind == ["http://b"] and quiet == left
    runs["http://b"] = "a/r7"  # another gang's known address is never taken for its own
    assert routing.withdraw(unasked(INVENTORY), ["a"]).last == {} and world.behind == ["http://b"]
    world.gangs, runs["http://b"] = (unread, replace(gang("b"), service_url="")), "b/r7"  # nor its run, where one node
    assert routing.withdraw(unasked(INVENTORY), ["a"]).last == {} and world.behind == ["http://b"]  # of `a` names it


def _load(running: int) -> dict[str, int]:
    return {"num_running_reqs": running, "num_waiting_reqs": 0}
