"""`up` on a gang that serves another plan, over real agents; and on one that others lead, which clients are told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.local_gang import Local, LocalGang, Notes
from tests.support.reference_cluster import gang, topologies
from tests.support.reference_plan import plan_of, staged

from orchestrator.engines.serving import Worker
from orchestrator.gang.steps import up as up_module
from orchestrator.gang.steps.down import stop
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.operation import AskedOperation, Operation, connected
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.restart import resume
from orchestrator.gang.steps.staging import staged_plan
from orchestrator.gang.steps.status.reports import begun_on, see
from orchestrator.gang.steps.up import asked_of, leave
from orchestrator.gang.steps.up_operation import (
    BeforeGoCheck,
    GangGate,
    Gated,
    GateJudge,
    UpOperation,
    UpRequest,
    UpResult,
)
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import without
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach, RouterSpec
from orchestrator.model.per_node import PerNode
from orchestrator.model.plan import Plan
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import DeployError, Exit, GangFailed, InputError, NodeError, VerificationDiffers
from orchestrator.protocol.staging import Asked, ServiceOrder, StagingRequest
from orchestrator.protocol.verbs import StagedAnswer
from orchestrator.records.plans import RecordedPlan, keep_plan

pytestmark = pytest.mark.processes
Served = tuple[LocalGang, Plan]


def with_env(plan: Plan, **env: str) -> Plan:
    (gang,) = plan.gangs
    nodes = tuple(replace(node, env={**node.env, **env}) for node in gang.nodes)
    return replace(plan, gangs=(replace(gang, nodes=nodes),))


def up(
    gang: LocalGang,
    plan: Plan,
    monkeypatch: pytest.MonkeyPatch,
    *,
    replace_it: bool = False,
    undo: bool = False,
    router: RouterSpec | None = None,
    checks: tuple[BeforeGoCheck, ...] = (),
    gate: GangGate | None = None,
    notes: Notes | None = None,
) -> UpResult:
    """`up` from the point where it makes the plan."""

    @contextmanager
    def prepared(operation: AskedOperation, request: UpRequest, watcher: Watcher) -> Iterator[UpOperation]:
        fleet, gangs = operation.fleet, (gang.gang,)
        with GangLock(fleet, gang.gang, "up") as lock:
            yield UpOperation(
                inventory=operation.inventory,
                fleet=fleet,
                router=operation.router,
                answers=operation.answers,
                request=request,
                watcher=watcher,
                gangs=gangs,
                manned={"gang0": gang.gang},
                views=see(fleet, gangs),
                others=(),
                plan=plan,
                locks={"gang0": lock},
                topologies={},
            )

    monkeypatch.setattr(up_module, "prepared", prepared)
    request = UpRequest(
        plan=PlanRequest(model="Fake"),
        timeout_s=20.0,
        replace=replace_it,
        undo_on_interrupt=undo,
        before_go=checks,
        gate=gate,
    )
    with connected(replace(gang.inventory, router=router)) as operation:
        return up_module.up(operation.asked(), request, notes or Notes())


@pytest.fixture
def served(local: Local, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A gang that serves its plan `plan1`, and that plan."""
    gang = local()
    plan = gang.plan("plan1")
    up(gang, plan, monkeypatch)
    return gang, plan


def test_a_gang_that_serves_alone_is_not_taken_down_in_passing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    gang, plan = served
    before = gang.view().run_id
    with pytest.raises(InputError, match="not serve for about") as refused:
        up(gang, with_env(replace(plan, plan_id="plan2"), NEW="1"), monkeypatch)
    assert "NEW: not there -> <secret>" in refused.value.what and "--replace" in refused.value.fix
    assert gang.view().run_id == before


def test_another_id_for_the_same_settings_changes_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    gang, plan = served
    before = gang.view().run_id
    again = up(gang, replace(plan, plan_id="of-more-gangs"), monkeypatch)
    assert again.ready_before == {"gang0"} and not again.changed
    assert gang.view().run_id == before


def test_replaced(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    gang, plan = served
    done = up(gang, with_env(replace(plan, plan_id="plan2"), NEW="1"), monkeypatch, replace_it=True)
    assert done.changed == ("gang0",)
    assert (gang.view().state, gang.view().plan_id) == (GangState.READY, "plan2")


@pytest.mark.turns(of="up: the previous plan comes back", play=2)
def test_the_previous_plan_comes_back_when_the_new_one_does_not_rise(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang, plan = served
    before = gang.view().run_id
    bad = with_env(replace(plan, plan_id="plan2"), FAKE_LINES="CUDA out of memory", FAKE_EXIT="1")
    with pytest.raises(GangFailed, match="ran out of memory") as failed:
        up(gang, bad, monkeypatch, replace_it=True)
    assert "gang0 is back on its previous plan plan1" in failed.value.what
    view = gang.view()
    assert (view.state, view.plan_id) == (GangState.READY, "plan1") and view.run_id != before


@pytest.mark.turns(of="up: the previous plan comes back", play=2)
def test_a_slow_network_brings_the_previous_plan_back(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test is between *armed* and *go* of the new plan's start."""
    gang, plan = served
    tested: list[tuple[str | None, set[str]]] = []

    def before_go(_: GangSpec, __: Mapping[str, StagingRequest]) -> None:
        view = gang.view()
        tested.append((view.plan_id, {node.state for node in view.nodes}))
        raise VerificationDiffers("the network is slow, and no rank was started", where="gang gang0", fix="look")

    check = BeforeGoCheck(1.0, lambda *given: before_go(*given[-2:]))
    with pytest.raises(VerificationDiffers, match="no rank was started") as slow:
        up(gang, with_env(replace(plan, plan_id="plan2"), NEW="1"), monkeypatch, replace_it=True, checks=(check,))
    assert "gang0 is back on its previous plan plan1" in slow.value.what
    assert tested == [("plan2", {"armed"})]
    view = gang.view()
    assert (view.state, view.plan_id) == (GangState.READY, "plan1")


@dataclass
class ToldGate:
    """A gate with this verdict; what it saw."""

    gang: LocalGang
    passes: bool
    seen: list[str] = field(default_factory=list)

    def before(self, gated: Gated, _: Watcher) -> GateJudge:
        self.seen.append(f"before: {self.gang.view().plan_id} of {gated.old}, {gated.changes}")
        return self

    def __call__(self, view: GangView, watcher: Watcher) -> None:
        self.seen.append(f"after: {view.plan_id}")
        if not self.passes:
            raise VerificationDiffers("GATE-FAILED: slower", where="gang gang0", fix="look")

    def refused(self, run_id: str, failure: DeployError) -> str:
        self.seen.append(f"refused: {run_id}, {failure.what}")
        return "its page"


@pytest.mark.turns
@pytest.mark.parametrize("passes", [True, False])
def test_a_gate_sees_both_plans_and_what_does_not_pass_returns(
    served: Served, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    gang, plan = served
    gate = ToldGate(gang, passes)
    changed = with_env(replace(plan, plan_id="plan2"), NEW="1")
    if passes:
        assert up(gang, changed, monkeypatch, replace_it=True, gate=gate).changed == ("gang0",)
    else:
        with pytest.raises(VerificationDiffers, match="GATE-FAILED") as failed:
            up(gang, changed, monkeypatch, replace_it=True, gate=gate)
        assert failed.value.exit_code == Exit.DIFFERS
        assert "gang0 is back on its previous plan plan1" in failed.value.what
    before, after, *refused = gate.seen
    assert (before.partition(",")[0], after) == ("before: plan1 of plan1", "after: plan2") and "NEW" in before
    assert passes or "GATE-FAILED: slower" in refused[0]
    view = gang.view()
    assert (view.state, view.plan_id) == (GangState.READY, "plan2" if passes else "plan1")


@dataclass
class Interrupted(ToldGate):
    """Its operator has no more patience, or its machine is switched off."""

    ends: BaseException = field(default_factory=KeyboardInterrupt)

    def __call__(self, view: GangView, watcher: Watcher) -> None:
        raise self.ends


def let_in(operation: Operation, gang: LocalGang) -> Iterator[bool]:
    """Whether what was begun lets the run that it has now in."""
    return (begun.lets_in(gang.view().run_id) for begun in begun_on(operation.fleet, (gang.gang,)))


@pytest.mark.turns
@pytest.mark.parametrize("then", ["up", "up --gate", "the same without --gate", "once it has ended"])
def test_a_gate_without_a_verdict_leaves_a_plan_that_its_operator_alone_can_take(
    served: Served, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    gang, plan = served
    changed, notes = with_env(replace(plan, plan_id="plan2"), NEW="1"), Notes()
    with pytest.raises(KeyboardInterrupt):
        up(gang, changed, monkeypatch, replace_it=True, gate=Interrupted(gang, passes=True), notes=notes)
    assert any("the gate came to no verdict on gang0, whose new plan serves" in words for words in notes.steps)
    assert gang.view().plan_id == "plan2"
    if then == "up":
        with connected(gang.inventory) as operation:
            resume(operation, (), Notes(), command="up", timeout_s=20.0)
    elif then == "up --gate":
        gate = ToldGate(gang, passes=True)
        assert up(gang, changed, monkeypatch, replace_it=True, gate=gate).changed == ("gang0",)
        assert [words.partition(",")[0] for words in gate.seen] == ["before: plan1 of plan1", "after: plan2"]
    else:
        if then == "once it has ended":
            with connected(gang.inventory) as operation:
                stop(operation.fleet, [gang.gang], Notes(), now=True)
        entered: list[bool] = []
        monkeypatch.setattr(up_module, "add_to_router", lambda here, *_, **__: entered.extend(let_in(here, gang)))
        up(gang, changed, monkeypatch)
        assert entered == [True], "the router may have it, before the record is gone"
    view = gang.view()
    assert (view.state, view.plan_id) == (GangState.READY, "plan1" if then == "up" else "plan2")
    with connected(gang.inventory) as operation:
        assert begun_on(operation.fleet, (gang.gang,)) == ()


@pytest.mark.turns
@pytest.mark.parametrize("ends", ["its engine", "a check before it starts"])
def test_a_run_that_never_could_be_judged_has_its_verdict(
    served: Served, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    gang, plan = served
    was, gate = gang.view().run_id, ToldGate(gang, passes=True)
    checks: tuple[BeforeGoCheck, ...] = ()
    new, cause = with_env(replace(plan, plan_id="plan2"), NEW="1"), "slow network"
    if ends == "its engine":
        new, cause = with_env(new, FAKE_LINES="CUDA out of memory", FAKE_EXIT="1"), "ran out of memory"
    else:
        checks = (BeforeGoCheck(1.0, refuse_start),)
    with pytest.raises(VerificationDiffers, match=cause) as failed:
        up(gang, new, monkeypatch, replace_it=True, gate=gate, checks=checks)
    assert "gang0 is back on its previous plan plan1" in failed.value.what
    assert failed.value.what.endswith("its page")
    _, refused = gate.seen
    run_id = refused.removeprefix("refused: ").partition(",")[0]
    assert run_id and run_id not in (was, gang.view().run_id) and cause in refused


def refuse_start(*_: object) -> None:
    raise VerificationDiffers("slow network", where="gang gang0", fix="look")


def test_another_model_can_not_be_judged_and_nothing_stops(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    gang, plan = served
    before, gate = gang.view().run_id, ToldGate(gang, passes=True)
    (planned,) = plan.gangs
    parts = tuple(replace(part, model="Other") for part in planned.nodes)
    other = replace(plan, plan_id="plan2", gangs=(replace(planned, nodes=parts),))
    with pytest.raises(InputError, match="another model answers otherwise"):
        up(gang, other, monkeypatch, replace_it=True, gate=gate)
    assert gate.seen == [] and gang.view().run_id == before


@pytest.mark.turns(of="up: the previous plan comes back", play=2)
def test_ctrl_c_while_it_stops_brings_the_previous_plan_back(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    gang, plan = served
    before = gang.view().run_id
    orders: list[bool] = []

    def interrupted(*args: Any, now: bool) -> None:
        orders.append(now)
        if not now:
            raise KeyboardInterrupt  # the nodes have their orders by now, and drain
        stop(*args, now=now)

    monkeypatch.setattr("orchestrator.gang.steps.restart_sequence.stop", interrupted)
    new = with_env(replace(plan, plan_id="plan2"), NEW="1")
    with pytest.raises(KeyboardInterrupt):
        up(gang, new, monkeypatch, replace_it=True, undo=True)
    view = gang.view()
    assert (view.state, view.plan_id) == (GangState.READY, "plan1") and view.run_id != before
    assert orders == [False, True]


@pytest.mark.turns(of="up: a model that goes, and none")
def test_another_model_is_changed_over_only_where_that_is_asked_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang, plan = served
    (of_gang,) = plan.gangs
    parts = tuple(replace(part, model="Other") for part in of_gang.nodes)
    other = replace(plan, plan_id="plan2", gangs=(replace(of_gang, nodes=parts),))
    with pytest.raises(InputError, match="another model than Fake") as refused:
        up(gang, other, monkeypatch)
    assert "--replace" in refused.value.fix and gang.view().model == "Fake"
    running = list[bool]()
    notes = Notes(on_step=lambda _: running.append(gang.view().serves))
    assert up(gang, other, monkeypatch, replace_it=True, notes=notes).changed == ("gang0",)
    assert gang.view().model == "Other"
    said = [words for words, serves in zip(notes.steps, running, strict=True) if serves]
    assert any("will not serve for about" in words for words in said), "and for how long, before it stops"
    assert any(words.startswith("no gang serves Fake once it has changed") for words in said)


@pytest.mark.turns(of="up: a model that goes, and none")
def test_of_settings_alone_no_model_is_said_to_go(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    gang, plan = served
    notes = Notes()
    up(gang, with_env(replace(plan, plan_id="plan2"), NEW="1"), monkeypatch, replace_it=True, notes=notes)
    assert any("will not serve" in words for words in notes.steps)
    assert not any("once it has changed" in words for words in notes.steps)


class Router:
    """Keeps its workers' addresses in order of arrival, and every address that was removed."""

    spec = SimpleNamespace(aliases={})

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.out: list[str] = []

    def workers(self) -> tuple[Worker, ...]:
        return tuple(Worker(id=url, url=url, healthy=True, load=0) for url in self.addresses)

    def take_in(self, url: str, *_: object) -> None:
        if url not in self.addresses:
            self.addresses.append(url)

    def take_out(self, url: str) -> None:
        self.out.append(url)
        self.addresses.remove(url)

    def refuse_last_key(self, urls: Sequence[str]) -> None:
        """It passes on the key that all have."""


@pytest.mark.turns
@pytest.mark.parametrize("rises", [pytest.param(True, id="it-rises"), pytest.param(False, id="it-does-not")])
def test_a_gang_that_serves_elsewhere_after_its_turn_is_in_the_router_there(
    rises: bool, local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a return to all nodes, when another node leads again."""
    gang, router = local(), Router()
    plan = gang.plan("plan1")
    (of_gang,) = plan.gangs
    was, then = of_gang.service_url, of_gang.service_url.replace("127.0.0.1", "localhost")
    monkeypatch.setattr(Operation, "serving_router", lambda operation: router if operation.router else None)
    monkeypatch.setattr(up_module, "add_to_router", lambda *_, **__: None)
    spec = RouterSpec(node=gang.spec(0))
    up(gang, plan, monkeypatch, router=spec)
    router.addresses.append(was)
    leader = replace(of_gang.leader, http_url=then, service=ServiceOrder(url=then))
    moved = replace(of_gang, nodes=(leader, *of_gang.nodes[1:]))
    other = with_env(replace(plan, plan_id="plan2", gangs=(moved,)), NEW="1")
    if rises:
        up(gang, other, monkeypatch, replace_it=True, router=spec)
    else:
        with pytest.raises(GangFailed, match="back on its previous plan"):
            up(gang, with_env(other, FAKE_EXIT="1", FAKE_LINES="no"), monkeypatch, replace_it=True, router=spec)
    assert (router.out, router.addresses) == ([was], [then if rises else was])


SPEC = gang(4)
FACTS = topologies(SPEC)
ROUTER = RouterSpec(node=NodeSpec(name="front", gang="router", node_rank=0, reach=Reach(host="front")))
INVENTORY = Inventory(path="hosts.yml", gangs=(SPEC,), router=ROUTER)


def planned(spec: GangSpec) -> Plan:
    return plan_of(replace(spec, short=True), facts=FACTS)


def ran(spec: GangSpec, run_id: str) -> dict[str, StagedAnswer]:
    """Each node's knowledge of its run."""
    requests = staged(spec, planned(spec), run_id=run_id)
    return {name: StagedAnswer(request=one.kept(), launch_script="#!/bin/sh\n") for name, one in requests.items()}


def left(*names: str) -> GangSpec:
    return without(INVENTORY, names).gangs[0]


@dataclass
class World:
    """Nodes with their knowledge, and a router."""

    known: dict[str, StagedAnswer]
    workers: list[str] = field(default_factory=list)
    serves: bool = True
    refuses: str = ""
    said: list[str] = field(default_factory=list)
    router: object = None
    nodes: dict[str, NodeSpec] = field(default_factory=dict)

    def on_every(self, _: Callable[..., Any], *, only: Collection[str]) -> PerNode[StagedAnswer]:
        return PerNode(values={name: self.known[name] for name in only if name in self.known}, failures={})

    def take_out(self, url: str) -> None:
        if self.refuses:
            raise NodeError(self.refuses, where="front", fix="look")
        self.workers.remove(url)

    def step(self, gang: str, words: str) -> None:
        self.said.append(words)

    def leave(self, names: Sequence[str], *, rising: Sequence[str] = ("gang0",), router: bool = True) -> str:
        """The address where the gang then serves."""
        inventory = without(replace(INVENTORY, router=ROUTER if router else None), names)
        plan, me = planned(inventory.gangs[0]), self
        operation = SimpleNamespace(
            inventory=inventory,
            fleet=me,
            watcher=me,
            request=UpRequest(plan=PlanRequest(model="Fake", without=tuple(names))),
            gangs=inventory.gangs[:1],
            plan=plan,
            views=(),
            others=(),
            serving_router=lambda: self.router if router and self.serves else None,
        )
        leave(operation, rising=rising)  # type: ignore[arg-type]
        return plan.gangs[0].service_url


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(known=ran(SPEC, "20260101-000000-aaaa"))
    made.workers = [url_of(SPEC), "http://another:8000"]

    def workers() -> list[Worker]:
        return [Worker(id=url, url=url, healthy=True, load=0) for url in made.workers]

    router = SimpleNamespace(workers=workers, take_out=made.take_out)
    made.router = router
    return made


def url_of(spec: GangSpec) -> str:
    return planned(spec).gangs[0].service_url


def others(leader: str, led: str) -> str:
    now = url_of(SPEC if leader == "node0" else left("node0"))
    return f"{leader} leads it instead of {led}; its address is now {now}"


LED_BY_NODE1 = ran(left("node0"), "20260101-000001-aaaa")
"""node0 was away and still has the previous run."""


@pytest.mark.parametrize(
    ("again", "leaves", "rising", "gone", "said"),
    [
        pytest.param({}, ["node0"], ["gang0"], True, others("node1", "node0"), id="a leader leaves the router"),
        pytest.param({}, ["node2"], ["gang0"], False, "", id="another node changes no address"),
        pytest.param(LED_BY_NODE1, ["node3"], ["gang0"], True, others("node0", "node1"), id="a leader that is back"),
        pytest.param(LED_BY_NODE1, [], ["gang0"], True, others("node0", "node1"), id="the same, and nobody leaves"),
        pytest.param(LED_BY_NODE1, [], [], False, others("node0", "node1"), id="one that serves leaves in its turn"),
    ],
)
def test_addresses_that_are_left_leave_the_router(
    world: World, again: dict[str, StagedAnswer], leaves: list[str], rising: list[str], gone: bool, said: str
) -> None:
    was = url_of(left("node0") if again else SPEC)
    world.known |= again
    world.workers = [was, "http://another:8000"]
    world.leave(leaves, rising=rising)
    assert world.workers == ([] if gone else [was]) + ["http://another:8000"]
    assert world.said == [*([f"removing {was} from the router"] if gone else []), *([said] if said else [])]


def test_where_there_is_no_router_the_clients_are_to_be_told(world: World) -> None:
    world.leave(["node0"], router=False)
    assert len(world.workers) == 2
    assert "no router: tell your clients" in "".join(world.said)


def test_what_the_router_can_not_be_told_is_said(world: World) -> None:
    world.refuses = "the router does not remove it"
    world.leave(["node0"])
    assert any("front: the router does not remove it" in words for words in world.said)
    world.said, world.refuses, world.serves = [], "", False
    world.leave(["node0"])
    assert len(world.workers) == 2 and len(world.said) == 1
    world.said, world.known = [], {}
    world.leave(["node0"])
    assert world.said == [], "a gang that nobody started has no address to leave"


def test_a_forged_address_takes_no_other_gang_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    other = gang(1, name="gang1", first=7, http_host="10.0.0.99")
    victim = other.leader.stated_url
    monkeypatch.setattr(f"{__name__}.INVENTORY", replace(INVENTORY, gangs=(SPEC, other)))
    for name, answer in world.known.items():
        request = dict(answer.request)
        request["addresses"] = {**request["addresses"], "10.0.0.99": "node1"}
        if name == "node2":  # one alone, then all of them
            world.known |= {name: replace(answer, request=request)}
    world.workers = [victim]
    world.leave(["node1"])
    assert world.workers == [victim]
    for name, answer in world.known.items():
        addresses = {**answer.request["addresses"], "10.0.0.99": "node1"}
        world.known |= {name: replace(answer, request={**answer.request, "addresses": addresses})}
    world.leave(["node1"])
    assert world.workers == [victim]


MODEL = "DeepSeek-V3-0324"
ASKED = Asked(model=MODEL, stack="sglang-0.5.23", extra_args=("--a",))


def known(*asked: Asked | None, run_ids: Sequence[str] = ()) -> dict[str, StagedAnswer]:
    """What the nodes say was asked of their gang."""
    requests = staged(SPEC, planned(SPEC), run_id="r1")
    found = {}
    for number, (name, request) in enumerate(requests.items()):
        one = replace(request, asked=asked[number % len(asked)], run_id=run_ids[number] if run_ids else "r1")
        found[name] = StagedAnswer(request=one.kept(), launch_script="#!/bin/sh\n")
    return found


@pytest.fixture
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def asked_by(answers: dict[str, StagedAnswer]) -> Asked:
    return asked_of(World(known=answers), SPEC)  # type: ignore[arg-type]


@pytest.mark.usefixtures("own_state")
def test_what_all_nodes_say_alike_was_asked() -> None:
    assert asked_by(known(ASKED)) == ASKED
    odd = replace(ASKED, extra_args=("--trust-remote-code",))
    elsewhere = known(ASKED, ASKED, ASKED, odd, run_ids=["r1", "r1", "r1", "r9"])
    assert asked_by(elsewhere) == ASKED  # another run is none of this one's


@pytest.mark.usefixtures("own_state")
@pytest.mark.parametrize(
    "odd",
    [
        replace(ASKED, extra_args=("--model-loader-extra-config", "/evil")),
        replace(ASKED, model="DeepSeek-R1"),
        replace(ASKED, stack=None),
        replace(ASKED, accept=("GPU-ECC",)),
        None,
    ],
)
@pytest.mark.parametrize("place", [0, 3])
def test_what_one_node_says_was_asked_is_planned_for_nobody(odd: Asked | None, place: int) -> None:
    told: list[Asked | None] = [ASKED] * 4
    told[place] = odd
    with pytest.raises(InputError, match=r"NODE-DISAGREES: node[03] has another model"):
        asked_by(known(*told))


@pytest.mark.usefixtures("own_state")
def test_what_all_nodes_say_is_refused_where_this_machine_recorded_something_else() -> None:
    plan_id = planned(SPEC).plan_id
    keep_plan("gang0", plan_id, RecordedPlan(service_url="", asked=replace(ASKED, extra_args=()).as_json()))
    with pytest.raises(InputError, match="record"):
        asked_by(known(ASKED))
    keep_plan("gang0", plan_id, RecordedPlan(service_url="", asked=ASKED.as_json()))
    assert asked_by(known(ASKED)) == ASKED


@pytest.mark.usefixtures("own_state")
@pytest.mark.parametrize("name", ["/x/evil.yml", "x" * 300, "../evil", "no-such-model", ""])
def test_a_path_counts_only_where_this_machine_recorded_it(name: str) -> None:
    for asked in (replace(ASKED, model=name), replace(ASKED, stack=name)):
        with pytest.raises(InputError, match="a node reports the"):
            asked_by(known(asked))
    mine = replace(ASKED, model="/home/ops/mine.yml")
    keep_plan("gang0", planned(SPEC).plan_id, RecordedPlan(service_url="", asked=mine.as_json()))
    assert asked_by(known(mine)) == mine


@pytest.mark.usefixtures("own_state")
def test_one_node_sets_no_finding_aside() -> None:
    odd = replace(ASKED, accept=("GPU-ECC",))
    answers = World(known=known(odd, ASKED, ASKED, ASKED))
    assert staged_plan(answers, SPEC).accepted == ()  # type: ignore[arg-type]
    assert staged_plan(World(known=known(odd)), SPEC).accepted == ("GPU-ECC",)  # type: ignore[arg-type]


@pytest.mark.usefixtures("own_state")
def test_a_staged_plan_that_serves_elsewhere_is_not_started_again() -> None:
    answers = known(ASKED)
    forged = {**answers["node0"].request, "service": {"url": "http://127.0.0.1:18677"}}
    with pytest.raises(InputError, match=r"node0 says that it serves at http://127\.0\.0\.1:18677"):
        staged_plan(World(known={**answers, "node0": replace(answers["node0"], request=forged)}), SPEC)  # type: ignore[arg-type]
