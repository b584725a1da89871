"""One node of a gang lies about the others: where requests go, who is in the run, what was asked for, names and paths.

A case is a JSON object: `nodes`, how many the gang has; `liar`, the node; `report` and `request`, what it reports and
what it says was staged there. Whatever they hold, no traceback comes of it, no address, flag or path of it is taken,
and no other gang is withdrawn. Where others outvote it, no member and no model is taken either.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

from tests.fuzz.mutate import dumped, odd_value
from tests.support.reference_cluster import gang, topologies
from tests.support.reference_plan import plan_of, staged

from orchestrator.engines.serving import Worker
from orchestrator.gang.commands.gangs import gang_block
from orchestrator.gang.guarding import GuardAction, GuardMemory, Policy, decide
from orchestrator.gang.overview import status_json
from orchestrator.gang.steps import up
from orchestrator.gang.steps.router.router_start import engines_behind
from orchestrator.gang.steps.router.routing import with_addresses
from orchestrator.gang.steps.staging import newest_run, staged_plan
from orchestrator.gang.steps.status.reports import as_it_runs, views_of
from orchestrator.gang.steps.up_operation import UpRequest
from orchestrator.gang.view import GangView
from orchestrator.loading.profiles import reported_profile, reported_stack
from orchestrator.model.chosen import without
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import Inventory
from orchestrator.model.per_node import PerNode
from orchestrator.node.agent.clock import ANCHOR
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.report import AgentState, RankReport, RankState, Report
from orchestrator.protocol.staging import Asked, Watch
from orchestrator.protocol.verbs import OtherAgent, ReportAnswer, StagedAnswer

EVIL = "/evil/l40s-fuzz.yml"
"""In every path of a lie: a file of this name must never be opened."""
ITS_END = ("state", "cause", "verdict", "alive")
"""Keys by which a node says that its part of the gang has ended, which is true of any that wants to end it."""
OF_A_LEADER = ("service_state", "trouble")
"""Keys by which a leader says that its engine hangs."""
LATER_S = 100.0
"""When a guard goes on without a node that stays away."""
NOW = 1000.0


MODELS = {4: "DeepSeek-V3-0324-Block64x64", 2: "gpt-oss-120b"}
SIZES = tuple(MODELS)
"""Nodes of a gang: three others outvote a liar, one other does not."""
OUTVOTES = 3
"""From so many nodes on."""
VICTIM_RUN = "20260101-000000-bbbb"
"""Of the gang that has nothing to do with it; the router's entry of that gang names it."""


@functools.cache
def world_of(size: int = SIZES[0]) -> SimpleNamespace:
    """Nodes that agree, and a gang that has nothing to do with them."""
    own = gang(size)
    own = replace(own, nodes=tuple(replace(one, address=one.reach.host) for one in own.nodes))
    other = gang(2, name="gang1", first=6)
    other = replace(other, nodes=tuple(replace(one, address=one.reach.host) for one in other.nodes))
    asked = Asked(model="DeepSeek-V3-0324", stack="sglang-0.5.23", extra_args=("--a", "1"))
    plan = plan_of(replace(own, short=True), MODELS[size], facts=topologies(own))
    requests = staged(own, plan, run_id="20260101-000000-aaaa", asked=asked)
    reports = {
        name: Report(
            run_id=request.run_id,
            gang=own.name,
            node=name,
            node_rank=request.node_rank,
            nnodes=size,
            members=request.members,
            state=AgentState.READY,
            model=request.model,
            stack=request.stack,
            plan_id=request.plan_id,
            started_at=NOW - 60,
            updated_at=NOW - 1,
            now=NOW,
            clock=ANCHOR,
            serves_at=request.serves_at,
            ranks=tuple(RankReport(tp_rank=rank, gpu=0, state=RankState.ALIVE) for rank in request.tp_ranks[:2]),
            links={one: "heard" for one in request.members if one != name},
            service_url=request.service.url if request.service else "",
            service_healthy=True if request.service else None,
            service_checked_at=NOW - 1,
        ).as_json()
        for name, request in requests.items()
    }
    inventory = Inventory(path="hosts.yml", gangs=(own, other))
    last = own.nodes[-1].name
    return SimpleNamespace(
        own=own,
        size=size,
        last=last,
        asked=asked,
        inventory=inventory,
        url=own.leader.stated_url,
        run=requests[own.leader.name].run_id,
        victim=other.leader.stated_url,
        plan=plan_of(without(inventory, [last]).gangs[0], MODELS[size], facts=topologies(own)),
        reports=reports,
        requests={
            name: json.loads(json.dumps(replace(request, watch=Watch()).kept())) for name, request in requests.items()
        },
        model=plan.gangs[0].model,
    )


def _urls(world: SimpleNamespace) -> tuple[str, ...]:
    strange = ("http://127.0.0.1:18677", "http://[::1", "file://" + EVIL, f"{world.url}@evil:1", "http://10.9.9.9:8000")
    return (world.victim, *strange, world.url + "/", "", "x" * 300)


def _names() -> tuple[str, ...]:
    return (
        EVIL,
        "x" * 300,
        "../.." + EVIL,
        "node1",
        "node6",
        "gang1",
        "",
        "\0",
        "\ud800",
        "[red]",
        "$(evil)",
        "; evil",
    )


def forged(rng: random.Random, _: bytes) -> bytes:
    """Lies that are well formed, beside values of any shape."""
    world = world_of(rng.choice(SIZES))
    liar = rng.choice([node.name for node in world.own.nodes])
    case = case_of(world, liar)
    for _number in range(rng.choice((1, 1, 2, 4))):
        part = rng.choice(("report", "request"))
        case[part] = _lie(rng, world, case[part])
        if rng.random() < 0.3:
            case[part] = odd_value(rng, case[part])
    return dumped(case).encode("utf-8", "surrogatepass")


def case_of(world: SimpleNamespace, liar: str) -> dict[str, Any]:
    """What the node says where it does not lie."""
    report, request = dict(world.reports[liar]), dict(world.requests[liar])
    return {"nodes": world.size, "liar": liar, "report": report, "request": request}


def _lie(rng: random.Random, world: SimpleNamespace, told: Any) -> Any:
    if not isinstance(told, dict) or not told:
        return told
    name, url = rng.choice(_names()), rng.choice(_urls(world))
    victim = world.inventory.gangs[1].leader.reach.host
    nodes = ["node0", "node1", "node2", "node3", "node6", name]
    members = rng.sample(nodes, rng.randrange(1, len(nodes)))
    lies: dict[str, Callable[[], Any]] = {
        "service_url": lambda: url,
        "service": lambda: {"url": url},
        "serves_at": lambda: url.removeprefix("http://"),
        "members": lambda: members,
        "addresses": lambda: {victim: rng.choice(nodes), "1.1.1.1": name},
        "leader": lambda: {"address": rng.choice(("127.0.0.1", "10.0.0.17", name)), "port": rng.randrange(70000)},
        "ports": lambda: {"check_free": [{"address": "", "port": rng.randrange(70000)}]},
        "asked": lambda: {
            "model": name, "stack": rng.choice((name, None)), "extra_args": [name, EVIL], "accept": [name]
        },
        "run_id": lambda: rng.choice(("99999999", name, VICTIM_RUN)),
        "state": lambda: rng.choice([one.value for one in AgentState]),
        "links": lambda: dict.fromkeys(nodes, rng.choice(("heard", "silent", "lost", name))),
        "cause": lambda: {"node": rng.choice(nodes), "text": name, "fix": name, "lines": [name], "at": 1e9},
        "verdict": lambda: {"node": rng.choice(nodes), "text": name, "tp_rank": 1 << 40},
        "node_rank": lambda: rng.choice((-1, 0, 1, 99)),
        "started_at": lambda: rng.choice((0.0, NOW * 1e6)),
        "now": lambda: rng.choice((0.0, NOW * 1e6)),
    }  # fmt: skip
    key = rng.choice([*lies, "model", "stack", "plan_id", "gang", "node", "layout", "model_path", "launch_script"])
    return {**told, key: lies[key]() if key in lies else name}


class _Nodes:
    """A fleet whose nodes answer `staged`."""

    def __init__(self, answers: Mapping[str, StagedAnswer]) -> None:
        self.answers = answers
        self.nodes = dict.fromkeys(answers)

    def on_every(self, _: Callable[..., Any], *, only: Collection[str] = (), **__: object) -> PerNode[StagedAnswer]:
        return PerNode(values={name: one for name, one in self.answers.items() if name in only}, failures={})


def believe(case: bytes) -> None:
    """What commands and guards make of it. Raises AssertionError for a lie that was taken."""
    try:
        told = json.loads(case)
        liar, report, request = str(told["liar"]), told["report"], told["request"]
        size = told.get("nodes")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return
    world = world_of(size if size in SIZES else SIZES[0])
    if liar not in world.reports:
        return
    with _no_evil_file():
        view = _seen(world, {**world.reports, liar: report})
        _shown(world, view, report)
        _acted_on(world, liar, view, report)
        request = {**request, "launch_script": None} if isinstance(request, dict) else request
        answers = {
            name: StagedAnswer(request=request if name == liar else one, launch_script="#!/bin/sh\n")
            for name, one in world.requests.items()
        }
        _planned(world, _Nodes(answers))
        _leaves(world, _Nodes(answers))
        _withdrawn(world, view)


def _seen(world: SimpleNamespace, reports: Mapping[str, object]) -> GangView:
    node = world.own.leader
    stranger = OtherAgent(
        gang="gang0", node=node.name, port=node.ports.agent, state_dir=EVIL, user="root", stranger="mallory"
    )
    answers = {
        name: ReportAnswer(now=NOW, reports=(one,), others=(stranger,), without_files=(stranger,))
        for name, one in reports.items()
    }
    (view,) = views_of([world.own], answers, {})
    assert view.service_url in (world.url, ""), f"an address was taken: {view.service_url!r}"
    runs_on = [one.name for one in as_it_runs(world.own, view).nodes]
    assert {*runs_on} <= {*world.reports}, f"other machines were taken: {runs_on}"
    if world.size >= OUTVOTES:
        assert view.members == tuple(world.reports), f"members were taken: {view.members!r}"
        assert view.model == world.model, f"a model was taken: {view.model!r}"
        assert runs_on == list(world.reports)
    assert EVIL not in " ".join(words for words in view.remarks if "mallory" in words)
    return view


def _shown(world: SimpleNamespace, view: GangView, report: object) -> None:
    json.dumps(status_json((view,)), allow_nan=False)
    gang_block(view, remarks=True)
    for key in ("model", "stack"):  # what a single node says, as where it is the only one that answers
        name = report.get(key) if isinstance(report, dict) else None
        if isinstance(name, str) and name != world.reports["node0"][key]:
            list(engines_behind(world.inventory, [replace(view, stack=name)]))
            for lookup in (reported_profile, reported_stack):
                with contextlib.suppress(DeployError):
                    lookup(name)


def _acted_on(world: SimpleNamespace, liar: str, view: GangView, report: object) -> None:
    """A guard restarts the gang for a node that says that its own part has ended, and for nothing else that it says."""
    policy = Policy(degrade_after_s=1.0)
    _, memory = decide(view, GuardMemory(), NOW, policy)
    done = decide(view, memory, NOW + LATER_S, policy)[0].do
    if done in (GuardAction.NOTHING, GuardAction.WARN, GuardAction.WAIT):
        return
    assert done is GuardAction.RESTART, f"a guard would {done.value} for a lie"
    its_end = {*ITS_END, *(OF_A_LEADER if liar == world.own.leader.name else ())}
    sound_report = world.reports[liar]
    changed = {key for key in its_end if isinstance(report, dict) and report.get(key) != sound_report[key]}
    assert changed, "a guard would restart a gang of which no node has ended"


def _planned(world: SimpleNamespace, fleet: Any) -> None:
    with contextlib.suppress(DeployError):
        asked = up.asked_of(fleet, world.own)
        assert asked == world.asked, f"what was asked was taken: {asked!r}"
    with contextlib.suppress(DeployError):
        plan = staged_plan(fleet, world.own)
        assert plan.service_url in (world.url, ""), f"an address was taken: {plan.service_url!r}"
        assert plan.accepted == (), f"findings were set aside: {plan.accepted!r}"
    newest_run(fleet, world.own)


def _leaves(world: SimpleNamespace, fleet: Any) -> None:
    """`up --without` its last node behind a router with both gangs."""
    out: list[str] = []
    router = SimpleNamespace(workers=lambda: _entries(world), take_out=out.append)
    told = SimpleNamespace(step=lambda *_: None)
    left = without(world.inventory, [world.last])
    operation = SimpleNamespace(
        inventory=left,
        fleet=fleet,
        watcher=told,
        request=UpRequest(plan=PlanRequest(model="Fake", without=(world.last,))),
        gangs=left.gangs,
        plan=world.plan,
        views=(),
        others=(),
        serving_router=lambda: router,
    )
    up.leave(operation, rising=())  # type: ignore[arg-type]
    assert out == [], f"a healthy gang was taken out: {out}"


def _entries(world: SimpleNamespace) -> tuple[Worker, ...]:
    """Of a router with both gangs."""
    entered = ((world.url, world.run), (world.victim, VICTIM_RUN))
    return tuple(Worker(id=url, url=url, healthy=True, load=0, run=run) for url, run in entered)


def _withdrawn(world: SimpleNamespace, view: GangView) -> None:
    """`down gang0`, while nobody can be asked where the other gang serves."""
    unread = GangView(name="gang1", state=GangState.UNKNOWN)
    seen = with_addresses(world.inventory, (view, unread), _entries(world))
    assert world.victim not in [one.service_url for one in seen if one.name == view.name], "another gang was taken out"


class _Watch:
    """What is opened, run and connected to meanwhile; None where nobody watches. A hook can't be taken away again."""

    seen: ClassVar[list[str] | None] = None

    @classmethod
    def hear(cls, event: str, arguments: tuple[object, ...]) -> None:
        if cls.seen is not None and event in ("open", "os.listdir", "os.scandir", "subprocess.Popen", "socket.connect"):
            cls.seen.append(f"{event} {arguments[0]!r:.200}")


@functools.cache
def _listen() -> None:
    sys.addaudithook(_Watch.hear)


@contextlib.contextmanager
def _no_evil_file() -> Iterator[None]:
    _listen()
    _Watch.seen = []
    try:
        yield
        evil = [words for words in _Watch.seen if "evil" in words or not words.startswith(("open", "os."))]
        assert not evil, f"a path of a node was used: {evil[0]}"
    finally:
        _Watch.seen = None


def sound() -> bytes:
    """What the first node says where it does not lie."""
    return json.dumps(case_of(world_of(), "node0")).encode()
