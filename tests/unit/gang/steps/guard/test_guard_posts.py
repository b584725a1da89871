"""Guards over scripted views, where no node is asked: several gangs, and a gang that goes on without nodes."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.commands import router_of
from tests.support.local_gang import Notes

from orchestrator.gang.guarding import GuardAction, Policy
from orchestrator.gang.overview import RouterGlance
from orchestrator.gang.steps.checks import Objection
from orchestrator.gang.steps.guard import post as posts
from orchestrator.gang.steps.guard import watches
from orchestrator.gang.steps.guard.guard import guard
from orchestrator.gang.steps.guard.post import GangPost
from orchestrator.gang.steps.guard.request import GuardRequest
from orchestrator.gang.steps.guard.watches import HealthWatch, RouterWatch, ended
from orchestrator.gang.steps.up_operation import UpRequest
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach, RouterSpec
from orchestrator.protocol.errors import FindingsError, GangFailed, InputError, LockHeld, Unreachable
from orchestrator.protocol.hang import Hang
from orchestrator.protocol.report import Cause, RailChange
from orchestrator.protocol.severity import Severity
from orchestrator.protocol.staging import Asked

BUSY = Policy(limit=0)
FAILED = GangState.FAILED
READY = GangState.READY


def inventory(*names: str) -> Inventory:
    gangs = (
        GangSpec(name=name, nodes=(NodeSpec(name=f"{name}-node", gang=name, node_rank=0, reach=Reach(host="none")),))
        for name in names
    )
    return Inventory(path="hosts.yml", gangs=tuple(gangs))


class Script:
    """The result of each look at a gang; the last one repeats. last: this gang waits for the others' ends."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, last: str = "", **states: Sequence[GangState | GangView | Exception]
    ) -> None:
        self.last = last
        self.states = {name: list(told) for name, told in states.items()}
        self.told: list[str] = []
        monkeypatch.setattr(posts, "LOOK_EVERY_S", 0.01)
        monkeypatch.setattr(posts, "_guard_lock", lambda *_: nullcontext())
        monkeypatch.setattr(posts, "see", self.see)
        monkeypatch.setattr(posts, "interrupted", lambda *_, **__: ())
        monkeypatch.setattr(posts, "run_hook", self.hook)

    def see(self, _: object, gangs: Sequence[GangSpec], **__: object) -> tuple[GangView, ...]:
        (gang,) = gangs
        told = self.states[gang.name]
        waits = gang.name == self.last and any(
            len(other) > 1 for name, other in self.states.items() if name != self.last
        )
        state = told.pop(0) if len(told) > 1 and not waits else told[0]
        if isinstance(state, Exception):
            raise state
        if isinstance(state, GangView):
            return (replace(state, name=gang.name),)
        return (GangView(name=gang.name, state=state, cause=Cause(node="n", text="TP0 died")),)

    def hook(self, hook: object, event: str, **words: Any) -> str:
        self.told.append(f"{event} {words['gang']}")
        return ""


def test_a_gang_that_is_given_up_is_guarded_again_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, last="b", a=[FAILED, FAILED, READY, READY, FAILED], b=[READY, FAILED])
    left = guard(inventory("a", "b"), GuardRequest(policy=BUSY), Notes())
    assert sorted(script.told) == ["failed a", "failed a", "failed b"]
    assert [one.decision.do for one in left] == [GuardAction.GIVE_UP, GuardAction.GIVE_UP]
    assert all("TP0 died" in one.decision.why for one in left)


def test_a_defect_at_one_look_ends_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, last="b", a=[ZeroDivisionError("our own"), FAILED], b=[OSError(36, "long"), FAILED])
    notes = Notes()
    left = guard(inventory("a", "b"), GuardRequest(policy=BUSY), notes)
    assert [one.decision.do for one in left] == [GuardAction.GIVE_UP, GuardAction.GIVE_UP]
    assert sorted(script.told) == ["failed a", "failed b"]


def test_a_defect_at_the_only_look_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    Script(monkeypatch, a=[ZeroDivisionError("our own")])
    with pytest.raises(ZeroDivisionError):
        guard(inventory("a"), GuardRequest(once=True), Notes())


ROUTER = RouterSpec(node=NodeSpec(name="front", gang="router", node_rank=0, reach=Reach(host="none")))


@pytest.mark.parametrize(("running", "ended"), [(False, []), (True, ["router"])])
def test_a_router_that_failed_or_hangs_is_restarted_as_a_gang_is(
    monkeypatch: pytest.MonkeyPatch, *, running: bool, ended: list[str]
) -> None:
    hung = GangView(
        name="",
        state=GangState.DEGRADED,
        trouble="hung",
        nodes=(NodeView(name="front", node_rank=0, state=NodeState.READY, alive=True),),
    )
    ill = hung if running else FAILED
    script = Script(monkeypatch, router=[ill, ill, READY, FAILED, FAILED])
    stopped, raised = list[str](), list[str]()
    monkeypatch.setattr(posts, "GangLock", lambda *_, **__: nullcontext())
    monkeypatch.setattr(posts, "stop", lambda _, gangs, *__, **___: stopped.append(gangs[0].name))

    def raise_router(*_: object) -> GangView:
        raised.append("router")
        return GangView(name="router", state=READY)

    monkeypatch.setattr(posts, "raise_router", raise_router)
    front = router_of(ROUTER)
    request = GuardRequest(policy=Policy(limit=1), once=True)
    with ExitStack() as held:
        routed = replace(inventory("a"), router=ROUTER)
        post = posts.RouterPost(routed, front.fleet, front.gang, request, Notes(), spec=front.spec, held=held)
        for _ in range(3):
            post.stand()
    assert (stopped, raised) == (ended, ["router"])
    assert script.told == ["ready router", "failed router"] and post.decision.do is GuardAction.GIVE_UP


def test_a_router_that_another_guard_watches_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Script(monkeypatch, a=[READY], router=[FAILED])

    def guard_lock(_: object, gang: GangSpec, __: object) -> Any:
        if gang.name == "router":
            raise LockHeld("held", where="front", fix="wait")
        return nullcontext()

    monkeypatch.setattr(posts, "_guard_lock", guard_lock)
    (left,) = guard(replace(inventory("a"), router=ROUTER), GuardRequest(once=True, policy=BUSY), Notes())
    assert left.view.name == "a"


def on_rails(run_id: str, *, up: bool) -> GangView:
    """It serves although a port failed, which may be back."""
    node = NodeView(
        name="node1", node_rank=0, state=NodeState.READY, rails=(RailChange(port="mlx5_1:1", up=up, at=1.0),)
    )
    return GangView(name="", state=READY, run_id=run_id, service_healthy=True, nodes=(node,))


def test_the_hook_is_called_once_for_a_port_that_is_back_and_again_in_another_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone, back = on_rails("r1", up=False), on_rails("r1", up=True)
    script = Script(monkeypatch, c=[READY, gone, back, back, gone, back, on_rails("r2", up=True), FAILED])
    guard(inventory("c"), GuardRequest(policy=BUSY), Notes())
    assert script.told == ["back c", "back c", "failed c"]


def test_a_node_that_did_not_answer_is_not_asked_what_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []
    error = Unreachable("no answer", where="gone", fix="switch it on")
    nodes = (
        NodeView(name="here", node_rank=0, state=NodeState.FAILED),
        NodeView(name="gone", node_rank=1, state=NodeState.UNREACHABLE, error=error),
    )
    Script(monkeypatch, one=[GangView(name="one", state=READY, nodes=nodes)])

    def interrupted(*_: object, only: Sequence[str]) -> tuple[()]:
        asked.append(only)
        return ()

    monkeypatch.setattr(posts, "interrupted", interrupted)
    guard(inventory("one"), GuardRequest(once=True, policy=BUSY), Notes())
    assert asked == [["here"]]


NOW = Policy(limit=3, first_pause_s=60, degrade_after_s=0)
TCP = Finding(
    id="TRAFFIC-ON-TCP", severity=Severity.SLOW, node="node2", title="all of it uses TCP", effect="half as fast"
)
LOST = Unreachable("no answer", where="node", fix="look")


def node(name: str, *, spare: bool = False) -> NodeSpec:
    return NodeSpec(name=name, gang="gang0", node_rank=0, reach=Reach(host="none"), spare=spare)


@dataclass
class Cluster(Notes):
    """A failed gang of four nodes, perhaps with a spare. lost: does not answer; sick: the doctor refuses it;
    missing: its newest run was without it; ends: what a start on other nodes raises; breaks: what the doctor raises;
    off: nodes without a usable RDMA port, under a plan that needs one; state: of the gang; gpus: of every node."""

    lost: tuple[str, ...] = ()
    sick: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    ends: Exception | None = None
    breaks: Exception | None = None
    off: tuple[str, ...] = ()
    state: GangState = GangState.FAILED
    gpus: tuple[str, ...] = ("GPU-a", "GPU-b", "GPU-c")
    asked: list[list[str]] = field(default_factory=list)
    without: list[tuple[str, ...]] = field(default_factory=list)
    returns: int = 0

    @property
    def gang(self) -> GangSpec:
        nodes = tuple(node(f"node{rank}") for rank in range(4))
        return GangSpec(name="gang0", nodes=nodes, spares=tuple(node(name, spare=True) for name in self.spares))

    def see(self, *_: object, **__: object) -> tuple[GangView, ...]:
        nodes = tuple(self._seen(rank, spec.name) for rank, spec in enumerate(self.gang.nodes))
        members = tuple(one.name for one in nodes if one.name not in self.missing)
        spares = tuple(self._seen(-1, name) for name in self.spares)
        cause = Cause(node="node0", text="it was lost")
        trouble = "nodes" if self.state is GangState.DEGRADED else ""
        return (
            GangView(name="gang0", state=self.state, cause=cause, nodes=nodes, members=members, plan_id="over-tcp",
                     trouble=trouble, service_healthy=self.state is GangState.READY, missing=self.missing,
                     spares=spares),
        )  # fmt: skip

    def _seen(self, rank: int, name: str) -> NodeView:
        return NodeView(name=name, node_rank=rank, state=NodeState.FAILED, error=LOST if name in self.lost else None)

    def examine(self, _: object, specs: Collection[str]) -> Any:
        if self.breaks is not None:
            raise self.breaks
        found = [Finding(id="GPU-MISSING", severity=Severity.STOP, node=name, title="a GPU is gone", fix="look")
                 for name in specs if name in self.sick]  # fmt: skip
        found += [replace(TCP, node=name) for name in specs if name in self.off]
        port = SimpleNamespace(name="mlx5_0:1", active=True)
        gpus = [SimpleNamespace(uuid=uuid, lost="") for uuid in self.gpus]
        ports = {name: SimpleNamespace(rdma=() if name in self.off else (port,), gpus=gpus) for name in specs}
        return SimpleNamespace(findings=tuple(found), failures={}, cluster=SimpleNamespace(topologies=ports))

    def asked_of(self, _: object, gang: GangSpec) -> object:
        self.asked.append([one.name for one in gang.nodes])
        return Asked(model="m")

    def up(self, _: object, __: str, without: tuple[str, ...] | None = None) -> Any:
        """A start on these nodes; None: the return to all."""
        if without is None:
            self.returns += 1
            return SimpleNamespace(views=self.see())
        self.without.append(without)
        if self.ends is not None:
            raise self.ends
        return SimpleNamespace(views=self.see(), plan=SimpleNamespace(findings=(TCP,) if self.off else ()))

    def staged_plan(self, _: object, gang: GangSpec, **__: object) -> Any:
        planned = SimpleNamespace(gpus=(0, 1), gpu_uuids=("GPU-a", "GPU-b"))
        return SimpleNamespace(requests={one.name: planned for one in gang.nodes})

    def against_starts(self, *_: object) -> Objection | None:
        error = InputError("none of its RDMA ports can be used", where="".join(self.off), fix="look")
        return Objection(error=error, outdated=True) if self.off else None


def guarded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, looks: int) -> GangPost:
    for name in ("see", "examine", "asked_of", "against_starts"):
        monkeypatch.setattr(posts, name, getattr(cluster, name))
    monkeypatch.setattr(GangPost, "_up", cluster.up)
    monkeypatch.setattr(posts, "interrupted", lambda *_, **__: ())
    monkeypatch.setattr(posts, "GangLock", lambda *_, **__: nullcontext())
    monkeypatch.setattr(posts, "staged_plan", cluster.staged_plan)
    nothing: Any = None
    inventory = Inventory(path="hosts.yml", gangs=(cluster.gang,))
    post = GangPost(inventory, nothing, cluster.gang, GuardRequest(policy=NOW, restores=True), cluster)
    for _ in range(looks):
        post._look()
    return post


def test_the_second_restart_for_one_hang_within_a_day_is_told_louder(monkeypatch: pytest.MonkeyPatch) -> None:
    """On its screen, to the receivers with the fix, and to the hook of failures; the first one is not."""
    louder: list[tuple[str, ...]] = []
    monkeypatch.setattr(GangPost, "_warn", lambda _, words: louder.append(("screen", words)))
    monkeypatch.setattr(GangPost, "_notify", lambda _, event, text, fix: louder.append((event.value, text, fix)))
    monkeypatch.setattr(GangPost, "_failed", lambda _, words: louder.append(("hook", words)))
    post = guarded(Cluster(), monkeypatch, looks=0)
    cause = Cause(node="node0", text="it stands", fix="look", hang=Hang(name="HANG-DIVERGED"))
    hung = GangView(name="gang0", state=GangState.DEGRADED, trouble="hung", cause=cause)
    post._note_hang(hung)
    assert louder == []
    post._note_hang(hung)
    words = "2 restarts within a day for HANG-DIVERGED: restarting does not mend it"
    assert louder == [("screen", f"{words}; it stands"), ("finding", f"{words}; it stands", "look"), ("hook", words)]


def again(post: GangPost) -> None:
    """Look once more, after every pause."""
    post.memory = replace(post.memory, not_before=0.0, return_at=0.0)
    post._look()


@pytest.mark.parametrize(("sick", "spares"), [("node1", ()), ("node1", ("spare0",)), ("spare0", ("spare0",))])
def test_who_has_a_stop_finding_is_left_out_too_and_that_counts_no_restart(
    sick: str, spares: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(lost=("node0",), sick=(sick,), spares=spares)
    post = guarded(cluster, monkeypatch, looks=1)
    assert (post.memory.restarts, cluster.without) == (0, [])
    assert post.decision.do is GuardAction.WAIT and "GPU-MISSING" in post.decision.why
    post._look()
    assert (post.memory.restarts, post.memory.unfit, cluster.without) == (1, (), [("node0", sick)])


@pytest.mark.parametrize("spares", [(), ("spare0",)])
def test_a_refusal_of_the_start_itself_counts_nothing(spares: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    refused = FindingsError("RAIL-SUBNETS: rails differ", where="the cluster", fix="look")
    post = guarded(Cluster(lost=("node0",), spares=tuple(spares), ends=refused), monkeypatch, looks=1)
    assert (post.memory.restarts, post.memory.unfit, post.memory.held_back) == (0, (), 1)
    assert post.decision.do is GuardAction.WAIT and "RAIL-SUBNETS" in post.decision.why


def test_a_start_that_failed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = GangFailed("TP3 was killed", where="gang0", fix="look")
    assert guarded(Cluster(lost=("node0",), ends=failed), monkeypatch, looks=1).memory.restarts == 1


def test_a_node_that_is_back_takes_part_and_is_not_asked_what_the_gang_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(lost=("node0",), missing=("node2",))
    post = guarded(cluster, monkeypatch, looks=1)
    assert (cluster.without, cluster.asked) == ([("node0",)], [["node1", "node3"]])
    assert any("it serves" in one.why and "3 of 4 nodes, without node0" in one.why for one in cluster.decisions)
    assert post.memory.restarts == 1


def test_a_node_without_an_rdma_port_has_its_gang_planned_anew_with_the_price(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(off=("node2",))
    post = guarded(cluster, monkeypatch, looks=1)
    assert (post.memory.restarts, cluster.without) == (0, []), "a link may be training: it is looked at again first"
    again(post)
    assert (post.memory.restarts, cluster.without, post.memory.replanned) == (1, [()], "over-tcp")
    said = cluster.decisions[-1].why
    assert "4 of 4 nodes, planned anew; all of it uses TCP; half as fast" in said


def test_a_port_that_is_back_in_time_needs_no_new_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(off=("node2",))
    post = guarded(cluster, monkeypatch, looks=1)
    cluster.off = ()
    again(post)
    assert (cluster.without, post.memory.outdated_since) == ([], None)


def test_a_plan_that_can_not_be_made_counts_nothing_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(off=("node2",), ends=InputError("no layout", where="node2", fix="look"))
    post = guarded(cluster, monkeypatch, looks=1)
    again(post)
    assert (cluster.without, post.memory.restarts, post.memory.replanned) == ([()], 0, "")
    cluster.ends = None
    again(post)
    assert (len(cluster.without), post.memory.replanned) == (2, "over-tcp")


def test_a_node_with_a_stop_finding_beside_it_is_left_out_of_the_new_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(off=("node2",), sick=("node1",), missing=("node1",))
    post = guarded(cluster, monkeypatch, looks=1)
    again(post)
    assert (cluster.without, post.memory.barred) == ([], ("node1",))
    again(post)
    assert cluster.without == [("node1",)]


def test_a_gang_that_was_planned_anew_returns_once_its_ports_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(off=("node2",))
    post = guarded(cluster, monkeypatch, looks=1)
    again(post)
    cluster.state = GangState.READY
    post._look()
    assert (post.decision.do, cluster.returns) == (GuardAction.RETURN, 0)
    assert "node2: all of it uses TCP; half as fast" in cluster.decisions[-1].why
    for off, returns in (("node1",), 0), ((), 0), ((), 1):
        cluster.off = off
        again(post)
        assert cluster.returns == returns
    assert any("ports of two looks in a row are the same" in one.why for one in cluster.decisions)
    assert post.memory.replanned == ""


def test_a_node_that_is_back_is_reason_enough_to_return_while_a_port_is_still_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(off=("node2",), missing=("node3",), state=GangState.DEGRADED)
    post = guarded(cluster, monkeypatch, looks=0)
    post.memory = replace(post.memory, replanned="over-tcp")
    post._look()
    again(post)
    assert cluster.returns == 1


def test_a_return_waits_for_its_turn_behind_the_router_at_a_later_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a gang that serves out: not beside another command, and no post waits within one look."""
    asked: list[UpRequest] = []

    def up(_: object, request: UpRequest, __: object) -> None:
        asked.append(request)
        raise LockHeld("ann@desk changes gang1 behind the router", where="front", fix="wait")

    own = GangPost._up
    cluster = Cluster(missing=("node3",), state=GangState.DEGRADED)
    post = guarded(cluster, monkeypatch, looks=0)
    monkeypatch.setattr(GangPost, "_up", own)
    monkeypatch.setattr(posts, "up", up)
    monkeypatch.setattr(posts, "planned_again", lambda *_: (inventory("gang0"), SimpleNamespace()))
    monkeypatch.setattr(posts, "connected", lambda _: nullcontext(SimpleNamespace(asked=lambda: None)))
    post._look()
    again(post)
    assert [(request.turn_s, request.all_at_once) for request in asked] == [(0.0, False)]
    assert "ann@desk changes gang1" in cluster.decisions[-1].why and post.memory.return_at > 0
    post._look()
    assert len(asked) == 1
    again(post)
    assert len(asked) == 2


def test_a_node_returns_with_the_cards_that_it_had_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(missing=("node3",), state=GangState.DEGRADED, gpus=("GPU-a", "GPU-c"))
    post = guarded(cluster, monkeypatch, looks=1)
    for gpus, returns in (cluster.gpus, 0), (cluster.gpus, 0), (("GPU-c", "GPU-b", "GPU-a"), 0), ((), 1):  # two looks
        cluster.gpus = gpus
        again(post)
        assert cluster.returns == returns
    told = next(one.why for one in cluster.decisions if "it lost" in one.why)
    assert "node3: it lost GPU 1 (GPU-b); to use others: l40s-deploy up --model m --gang gang0 --replace" in told


def test_a_doctor_that_can_not_be_asked_holds_back_and_ends_no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(lost=("node0",), breaks=Unreachable("no answer", where="node1", fix="look"))
    post = guarded(cluster, monkeypatch, looks=1)
    assert (post.decision.do, post.memory.restarts, cluster.without) == (GuardAction.WAIT, 0, [])


@dataclass
class Ears:
    """A notifier that keeps what it was shown."""

    views: list[GangView] = field(default_factory=list)
    notices: list[Any] = field(default_factory=list)

    def look(self, view: GangView) -> None:
        self.views.append(view)

    def tell(self, notice: Any) -> None:
        self.notices.append(notice)

    @property
    def ids(self) -> list[str]:
        return list(dict.fromkeys(one.id for view in self.views for one in view.findings))


def post(ears: Ears, gang: GangSpec, **more: Any) -> GangPost:
    found = GangPost(inventory(gang.name), None, gang, GuardRequest(notifier=ears), Notes(), **more)  # type: ignore[arg-type]
    found.health.ask_if_due = lambda *_, **__: None  # type: ignore[method-assign]
    return found


def test_a_gang_of_which_no_node_answers_for_a_lease_is_unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    Script(monkeypatch, a=[READY, GangState.UNKNOWN])
    ears = Ears()
    at = post(ears, replace(inventory("a").gangs[0]))
    at._look()
    at._look()
    at._heard_at -= 31.0
    at._look()
    assert [(view.state, view.trouble) for view in ears.views] == [
        (READY, ""),
        (GangState.UNKNOWN, ""),
        (GangState.UNKNOWN, "unheard"),
    ]


def test_looks_that_fail_are_told_as_a_guard_without_power(monkeypatch: pytest.MonkeyPatch) -> None:
    Script(monkeypatch, a=[RuntimeError("broken")])
    ears = Ears()
    at = post(ears, inventory("a").gangs[0])
    for _ in range(5):
        at._look_again()
    assert len(ears.views) == 1 and ears.ids == ["GUARD-POWERLESS"] and "broken" in ears.views[0].remarks[0]


@pytest.mark.parametrize(
    ("lack", "words"),
    [
        (RuntimeError("can't start new thread"), "no more threads"),
        (MemoryError(), "the memory is used up"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "no file can be opened"),
    ],
)
def test_looks_that_fail_for_a_lack_of_this_machine_are_no_defect(
    monkeypatch: pytest.MonkeyPatch, lack: Exception, words: str
) -> None:
    Script(monkeypatch, a=[lack])
    ears = Ears()
    at = post(ears, inventory("a").gangs[0])
    for _ in range(5):
        at._look_again()
    (told,) = ears.views
    assert words in told.remarks[0] and "defect" not in told.remarks[0]


def test_a_failed_gang_that_waits_for_a_node_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = NodeView(
        name="n", node_rank=0, state=NodeState.UNREACHABLE, error=Unreachable("gone", where="n", fix="look")
    )
    Script(monkeypatch, a=[GangView(name="a", state=FAILED, cause=Cause(node="n", text="gone"), nodes=(lost,))])
    ears = Ears()
    at = post(ears, inventory("a").gangs[0])
    at._look()
    assert ears.ids == []
    at.memory = replace(at.memory, away_since=-1e9, lost={"n": -1e9})
    at._look()
    assert ears.ids == ["GUARD-POWERLESS"]


def test_a_gang_that_serves_and_is_out_of_the_router_is_a_finding_unless_a_command_works_on_it() -> None:
    view = GangView(name="a", state=READY, service_url="http://n:1", service_healthy=True)
    eyes = RouterWatch(None, _glance=RouterGlance(url="http://r", node="r", state=READY, workers=()))
    assert eyes.finding(view, 0.0, lambda: False) == ()
    ((found,), _) = (eyes.finding(view, 5.0, lambda: False), None)
    assert found.id == "ROUTER-ENTRY-MISSING" and found.fix == "l40s-deploy router up"
    assert eyes.finding(view, 6.0, lambda: True) == () == eyes.finding(view, 7.0, lambda: False)
    unknown = RouterWatch(None, _glance=RouterGlance(url="http://r", node="r"))
    assert unknown.finding(view, 0.0, lambda: False) == () == unknown.finding(view, 9.0, lambda: False)


def test_a_gang_that_ended_without_a_failure_an_order_or_a_command_is_said() -> None:
    over = GangView(name="a", state=GangState.ABSENT, run_id="r1")
    assert ended(over, lambda: False).trouble == "ended"
    assert ended(over, lambda: True) == over
    for view in (replace(over, ordered=("n",)), replace(over, run_id=""), replace(over, state=FAILED)):
        assert ended(view, lambda: False) == view


def test_what_the_doctor_said_of_one_run_is_forgotten_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Finding(id="RAILS-ISOLATED", severity=Severity.STOP, node="", title="while a link was down", fix="")
    monkeypatch.setattr(watches, "health", lambda *_: (lost,))
    watch, gang = HealthWatch("hosts.yml"), inventory("a").gangs[0]
    watch.ask_if_due(gang, "r1", 0.0, wait=True)
    heard = [watch.findings]
    for at in (10.0, 80.0):
        watch.ask_if_due(gang, "r2", at, wait=True)
        heard.append(watch.findings)
    assert heard == [(lost,), (), (lost,)]
