"""A sweep over a real gang of local agents, whose plans and benchmark are made up: what is measured once, what failed,
what is left after an interruption, and what serves at the end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.local_gang import LocalGang, Notes
from tests.unit.sweep.made import LOAD, record, result

from orchestrator.bench.steps import bench as benching
from orchestrator.engines.serving import ServedModel, Worker
from orchestrator.engines.settings import NCCL_TRIALS
from orchestrator.gang.steps.down import DownRequest, down
from orchestrator.gang.steps.operation import connected
from orchestrator.gang.steps.router import claim, entry, routing
from orchestrator.gang.steps.router.claim import RouterTurn
from orchestrator.gang.steps.router.client import Router
from orchestrator.gang.steps.up_operation import UpResult
from orchestrator.gang.view import GangView
from orchestrator.golden.steps import golden as asking
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import NodeSpec, Reach, RouterSpec
from orchestrator.model.measured import CandidateResult, CandidateState, SweepRecord
from orchestrator.nettest.steps import nettest as nettesting
from orchestrator.protocol.errors import (
    DeployError,
    Disturbed,
    FindingsError,
    GangFailed,
    InputError,
    NodeError,
    Unreachable,
)
from orchestrator.protocol.staging import Asked
from orchestrator.records.sweeps import kept_sweep
from orchestrator.sweep.steps import sweep as sweeping
from orchestrator.sweep.steps.plans import PlannedSweep, SweepOptions
from orchestrator.sweep.steps.sweep import SweepScreen

pytestmark = pytest.mark.processes
Local = Callable[..., LocalGang]
BEFORE = "plan-before"
OPTIONS = SweepOptions(
    models=("Fake",), stack=None, layouts=(), vary=(), requests=LOAD.requests, input=LOAD.input, output=LOAD.output,
    dataset=None, budget_s=None, keep_best=False, replaces=False, again=False, network=False, accept=(), timeout_s=60.0,
    command="x",
)  # fmt: skip


class Cluster:
    """A local gang. says: what a start or a run of the benchmark raises, by candidate or (candidate, requests)"""

    def __init__(self, gang: LocalGang, patch: pytest.MonkeyPatch) -> None:
        self.gang, self.says = gang, dict[Any, BaseException]()
        self.started: list[str] = []
        self.ran: list[tuple[str, int]] = []
        self.said: list[str] = []
        patch.setattr(sweeping, "up", self._up)
        patch.setattr(sweeping, "asked_of", lambda *_: Asked(model="before"))
        patch.setattr(benching, "run_now", self._bench)
        patch.setattr(asking, "check_gang", self._golden)
        patch.setattr(nettesting, "run_now", self._nettest)
        self.tried: list[tuple[dict[str, str], bool]] = []
        self.notes = Notes()
        self.router: RouterSpec | None = None

    def _up(self, _: Any, request: Any, watcher: Any) -> UpResult:
        name = request.plan.model if request.plan.model == "before" else request.plan.layout
        plan = self.gang.plan(f"plan-{name}")
        watcher.planned(plan)
        self._raise(name)
        view = self.gang.view()
        ready = view.serves and view.plan_id == plan.plan_id
        if not ready:
            self.started.append(name)
            (view,) = self.gang.up(plan_id=plan.plan_id)
        return UpResult(plan=plan, views=(view,), ready_before=frozenset({"gang0"} if ready else ()), seconds=2.0)

    def _bench(self, operation: Any, order: Any, progress: Any) -> Any:
        assert operation.router is None and order.load.prompts == order.load.concurrency
        name, requests = self.gang.view().plan_id.removeprefix("plan-"), order.load.prompts
        progress("run 1", 1, requests)
        self._raise((name, requests))
        self.ran.append((name, requests))
        speed = {"a": 10.0, "b": 30.0, "c": 20.0}[name] * requests
        serving = {"output_tok_s": speed, "ttft_median_ms": 1.0, "itl_median_ms": 1.0}
        assert order.enough([serving, serving]) is True
        return SimpleNamespace(record={"serving": serving, "runs": [serving, serving], "stand_in": True})

    def _nettest(self, operation: Any, order: Any, _: Any) -> Any:
        assert not self.gang.view().running and operation.router is None
        (gang,) = operation.inventory.gangs
        env = dict(gang.leader.overrides.env)
        self.tried.append((env, order.kept))
        self._raise(env.get("NCCL_PROTO", "" if env else "as planned"))
        test = {"kind": "all ranks", "bytes": 14336, "measured_us": 50.0}
        return (SimpleNamespace(record={"verification": {"verdict": "ok"}, "tests": [test]}),)

    def _golden(self, *_: Any) -> Any:
        wrong = self.says.get("golden " + self.gang.view().plan_id.removeprefix("plan-"))
        words = SimpleNamespace(id="GOLDEN-DIFFERS", title="3 answers differ", fix="look")
        return SimpleNamespace(finding=words if wrong else None)

    def _raise(self, of: Any) -> None:
        if of in self.says:
            raise self.says.pop(of)

    def record(self, *results: CandidateResult) -> SweepRecord:
        kept = kept_sweep(record(gang="gang0"))
        if kept is not None:
            return kept
        return record(*(results or map(candidate, "abc")), gang="gang0")

    def sweep(self, *results: CandidateResult, seconds: float = 1.0, **options: Any) -> SweepRecord:
        begun = self.record(*results)
        planned = PlannedSweep(begun, {each.candidate.id: seconds for each in begun.results})
        screen = SweepScreen(
            say=self.said.append,
            ended=lambda each: self.said.append(f"{each.candidate.id} {each.state.value}"),
            counting=lambda _: nullcontext(lambda *_: None),
            rising=lambda: nullcontext(self.notes),
        )
        inventory = replace(self.gang.inventory, router=self.router)
        return sweeping.sweep(inventory, self.gang.gang, planned, replace(OPTIONS, **options), screen)

    def states(self) -> dict[str, str]:
        kept = self.record()
        return {each.candidate.id: each.state.value for each in kept.results}


def candidate(name: str) -> CandidateResult:
    plain = result(name)
    return replace(plain, candidate=replace(plain.candidate, named=name))


@pytest.fixture
def cluster(local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    return Cluster(local(nodes=1, ranks_each=1), monkeypatch)


def test_each_is_measured_at_each_load_and_nothing_is_left(cluster: Cluster) -> None:
    found = cluster.sweep()
    assert cluster.states() == dict.fromkeys("abc", "measured")
    assert cluster.ran == [(name, requests) for name in "abc" for requests in LOAD.requests]
    first = found.results[0]
    assert (first.start_s, first.points[1].tok_s, first.points[1].runs, first.stand_in) == (2.0, 40.0, 2, True)
    assert first.seconds > 0 and (found.kept, found.started, found.before) == ("", (), None)
    assert "c measured" in cluster.said
    cluster.gang.nothing_left()


def test_what_serves_is_stopped_only_with_replace_and_serves_again(cluster: Cluster) -> None:
    cluster.gang.up(plan_id=BEFORE)
    run = cluster.gang.view().run_id
    with pytest.raises(InputError, match="which a sweep stops") as refused:
        cluster.sweep()
    assert "--replace" in refused.value.fix and cluster.gang.view().run_id == run
    found = cluster.sweep(replaces=True)
    view = cluster.gang.view()
    assert (view.plan_id, view.serves, view.run_id != run, found.kept) == (BEFORE, True, True, "before")
    assert cluster.started == ["a", "b", "c", "before"]
    again = cluster.sweep()
    assert again.kept == "before" and cluster.gang.view().run_id == view.run_id, "nothing is left to do"


@pytest.mark.turns
@pytest.mark.parametrize("fails", [False, True], ids=["measured", "failed"])
def test_a_candidate_that_somebody_put_behind_the_router_leaves_it_and_drains(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """As `up` of another gang does, which adds all that serve."""
    behind: list[Worker] = []
    at_once: list[bool] = []
    host = NodeSpec(name="front", gang="router", node_rank=0, reach=Reach(connection="local", host="localhost"))
    cluster.router = RouterSpec(node=host)

    def bench(*given: Any) -> Any:
        if cluster.gang.view().plan_id == "plan-b":
            url = cluster.gang.view().service_url
            behind[:] = [Worker(url, url, True, 0)]
            if fails:
                raise NodeError("the client broke", where="node0", fix="look")
        return cluster._bench(*given)

    def take_out(_: Router, url: str) -> None:
        assert cluster.gang.view().serves and behind.pop().url == url

    def stopped(operation: Any, request: Any, **more: Any) -> Any:
        at_once.append(request.now)
        return down(operation, request, **more)

    monkeypatch.setattr(benching, "run_now", bench)
    monkeypatch.setattr(entry, "down", stopped)
    monkeypatch.setattr(routing, "claimed", lambda _: {})
    monkeypatch.setattr(Router, "view", lambda _: GangView(name="router", state=GangState.READY, service_healthy=True))
    monkeypatch.setattr(Router, "workers", lambda _: tuple(behind))
    monkeypatch.setattr(Router, "take_out", take_out)
    cluster.sweep()
    assert at_once == [True, False, True] and not behind
    assert any("another command has put it behind the router" in words for words in cluster.said)


@pytest.mark.turns
@pytest.mark.parametrize("others_model", ["", "Other", "Fake"], ids=["nobody else", "another model's", "the same"])
def test_that_it_served_alone_is_said_before_it_leaves_the_router(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, others_model: str
) -> None:
    order: list[str] = []
    host = NodeSpec(name="front", gang="router", node_rank=0, reach=Reach(connection="local", host="localhost"))
    cluster.router = RouterSpec(node=host)
    cluster.gang.up(plan_id=BEFORE)
    mine = cluster.gang.view().service_url
    behind = [Worker(mine, mine, True, 0)]
    if others_model:
        theirs = "http://others:30000"
        behind.append(Worker(theirs, theirs, True, 0, models=(ServedModel(others_model),)))

    def noted(words: str) -> None:
        assert cluster.gang.view().serves, "nothing is stopped yet"
        order.append(words)

    def take_out(_: Router, url: str) -> None:
        assert url == mine
        noted("out")

    cluster.notes.on_step = noted
    ready = GangView(name="router", state=GangState.READY, service_healthy=True)
    monkeypatch.setattr(RouterTurn, "take", lambda _: True)
    monkeypatch.setattr(routing, "claimed", lambda _: {})
    monkeypatch.setattr(Router, "view", lambda _: ready)
    monkeypatch.setattr(Router, "workers", lambda _: tuple(behind))
    monkeypatch.setattr(Router, "take_out", take_out)
    cluster.says["a"] = KeyboardInterrupt()  # once the gang is out, before the first candidate
    with pytest.raises(KeyboardInterrupt):
        cluster.sweep(replaces=True)
    said = "it served alone behind the router: requests fail until the sweep ends"
    assert order == (["out"] if others_model == "Fake" else [said, "out"])
    assert not cluster.gang.view().running


def test_it_has_its_turn_behind_the_router_until_what_served_before_serves_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An interrupted one has it again as soon as it goes on."""
    host = NodeSpec(
        name="front", gang="router", node_rank=0, reach=Reach(connection="local", host="localhost"),
        state_dir=str(tmp_path / "front"),
    )  # fmt: skip
    cluster.router = RouterSpec(node=host)
    cluster.gang.up(plan_id=BEFORE)
    turns: list[str] = []

    def holder() -> str:
        with connected(replace(cluster.gang.inventory, router=cluster.router)) as operation:
            assert operation.router is not None
            held = claim.claimed(operation.router).get("gang0")
        return held.token if held is not None else ""

    def bench(*given: Any) -> Any:
        turns.append(holder())
        return cluster._bench(*given)

    def up(operation: Any, request: Any, watcher: Any) -> UpResult:
        if request.plan.model == "before":
            assert request.turn == holder() != "", "what it claims for itself keeps it out of no router"
        return cluster._up(operation, request, watcher)

    monkeypatch.setattr(benching, "run_now", bench)
    monkeypatch.setattr(sweeping, "up", up)
    monkeypatch.setattr(Router, "view", lambda _: GangView(name="router", state=GangState.READY, service_healthy=True))
    monkeypatch.setattr(Router, "workers", lambda _: ())
    monkeypatch.setattr(Router, "take_out", lambda *_: None)
    cluster.says["b"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        cluster.sweep(replaces=True)
    assert holder() == "", "an interruption gives it back"
    cluster.sweep(replaces=True)
    assert all(turns) and len(set(turns)) == 2 and holder() == "", turns


def test_what_did_not_serve_has_its_turn_too(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another command adds a candidate to the router, or takes another gang out and counts on it."""
    announced: list[str] = []
    host = NodeSpec(name="front", gang="router", node_rank=0, reach=Reach(connection="local", host="localhost"))
    cluster.router = RouterSpec(node=host)
    monkeypatch.setattr(RouterTurn, "announce", lambda turn: announced.extend(turn.gangs))
    monkeypatch.setattr(Router, "view", lambda _: GangView(name="router", state=GangState.READY, service_healthy=True))
    monkeypatch.setattr(Router, "workers", lambda _: ())
    cluster.sweep()
    assert set(announced) == {"gang0"}


def test_the_best_is_kept(cluster: Cluster) -> None:
    cluster.gang.up(plan_id=BEFORE)
    found = cluster.sweep(replaces=True, keep_best=True)
    view = cluster.gang.view()
    assert (view.plan_id, view.serves, found.kept) == ("plan-b", True, "b")


@pytest.mark.turns(of="sweep: the best does not come up again")
@pytest.mark.parametrize("all_fail", [False, True], ids=["the next best", "what served before"])
def test_where_the_best_does_not_come_up_again_the_gang_is_not_left_empty(cluster: Cluster, all_fail: bool) -> None:
    cluster.gang.up(plan_id=BEFORE)
    up, broken = cluster._raise, "abc" if all_fail else "b"

    def broken_later(name: Any) -> None:
        if len(cluster.ran) == 6 and name in list(broken) and not cluster.gang.view().running:
            raise GangFailed("CUDA out of memory", where="gang gang0", fix="x")
        up(name)

    cluster._raise = broken_later  # type: ignore[method-assign, assignment]
    found = cluster.sweep(replaces=True, keep_best=True)
    view = cluster.gang.view()
    wanted = (BEFORE, "before") if all_fail else ("plan-c", "c")
    assert (view.serves, view.plan_id, found.kept) == (True, *wanted)
    assert {cluster.states()[name] for name in broken} == {"failed"}
    assert any("b does not come up again: CUDA out of memory" in words for words in cluster.said)


def of_another_load() -> SweepRecord:
    """Where this machine keeps another sweep of the gang."""
    return replace(record(*map(candidate, "abc"), gang="gang0"), load=replace(LOAD, requests=(16,)))


def test_a_sweep_of_another_load_returns_to_what_the_interrupted_one_has_stopped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its candidate is nobody's service."""
    cluster.gang.up(plan_id=BEFORE)
    cluster.says["b", 4] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        cluster.sweep(replaces=True)
    assert cluster.gang.view().plan_id == "plan-b"
    monkeypatch.setattr(sweeping, "asked_of", None)  # what runs is no service
    monkeypatch.setattr(cluster, "record", lambda *_: kept_sweep(of_another_load()) or of_another_load())
    found = cluster.sweep(replaces=True)
    assert (cluster.gang.view().plan_id, cluster.gang.view().serves, found.kept) == (BEFORE, True, "before")
    old = kept_sweep(record(gang="gang0"))
    assert old is not None and (old.before, old.started) == (None, ())
    assert any("a candidate of another sweep" in words for words in cluster.said)


def test_what_another_command_has_changed_during_the_wait_for_the_turn_is_what_it_returns_to(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.gang.up(plan_id=BEFORE)

    def changed(_: RouterTurn) -> bool:
        if cluster.gang.view().plan_id == BEFORE:
            with connected(cluster.gang.inventory) as operation:
                down(operation, DownRequest(gangs=("gang0",), now=True))
            cluster.gang.up(plan_id="plan-changed")
        return True

    monkeypatch.setattr(RouterTurn, "wait", changed)
    cluster.says["a"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        cluster.sweep(replaces=True)
    assert cluster.record().before_plan == "plan-changed"


@pytest.mark.turns
@pytest.mark.parametrize(
    "failure",
    [
        GangFailed("CUDA out of memory\n    | line", where="gang0", fix="x"),
        FindingsError("a finding", where="x", fix="x"),
        NodeError("a node's check", where="x", fix="x"),
        InputError("no such flag", where="x", fix="x"),
    ],
)
def test_a_candidate_that_does_not_start_costs_its_start_alone(cluster: Cluster, failure: DeployError) -> None:
    cluster.says["a"] = failure
    found = cluster.sweep()
    assert cluster.states() == {"a": "failed", "b": "measured", "c": "measured"}
    assert found.results[0].cause == failure.what.partition("\n")[0] and cluster.started == ["b", "c"]
    assert [name for name, _ in cluster.ran] == ["b", "b", "c", "c"]


@pytest.mark.turns(of="sweep: a candidate whose answers or points are no good")
def test_one_that_answers_wrong_is_out(cluster: Cluster) -> None:
    cluster.says["golden b"] = ValueError()
    found = cluster.sweep()
    assert cluster.states()["b"] == "failed" and "GOLDEN-DIFFERS" in found.results[1].cause
    assert ("b", 1) not in cluster.ran
    cluster.gang.nothing_left()


def test_answers_are_not_asked_for_where_the_arithmetic_is_another(cluster: Cluster) -> None:
    plain = candidate("b")
    other = replace(plain, candidate=replace(plain.candidate, settings={"kv": "fp8"}))
    cluster.says["golden b"] = ValueError()
    cluster.sweep(other)
    assert cluster.states() == {"b": "measured"}


@pytest.mark.turns(of="sweep: a candidate whose answers or points are no good")
def test_one_that_breaks_under_load_has_its_cause_and_its_points(cluster: Cluster) -> None:
    cluster.says["a", 4] = NodeError("the client ended with status 1", where="x", fix="x")
    found = cluster.sweep()
    assert cluster.states()["a"] == "failed" and "the client ended" in found.results[0].cause
    assert [point.requests for point in found.results[0].points] == [1]


@pytest.mark.turns
@pytest.mark.parametrize(
    "stop",
    [
        KeyboardInterrupt(),
        Unreachable("a node", where="x", fix="x"),
        Disturbed("requests of others", where="x", fix="x"),
        InputError("it was never idle", where="x", fix="x"),
    ],
)
def test_what_ends_it_early_leaves_all_that_was_measured_and_it_goes_on(cluster: Cluster, stop: BaseException) -> None:
    cluster.gang.up(plan_id=BEFORE)
    cluster.says["b", 4] = stop
    with pytest.raises(type(stop)):
        cluster.sweep(replaces=True)
    view = cluster.gang.view()
    assert (view.plan_id, view.serves) == ("plan-b", True), "the candidate that runs is left as it is"
    assert cluster.states() == {"a": "measured", "b": "left", "c": "left"}
    cluster.sweep()
    assert cluster.ran == [(name, requests) for name in "abc" for requests in LOAD.requests], "nothing twice"
    assert cluster.started == ["a", "b", "c", "before"] and cluster.gang.view().plan_id == BEFORE


@pytest.mark.turns(of="sweep: what served before, at an early end")
def test_a_budget_of_nothing_ends_it_with_what_served_before(cluster: Cluster) -> None:
    cluster.gang.up(plan_id=BEFORE)
    cluster.says["a", 4] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        cluster.sweep(replaces=True)
    found = cluster.sweep(budget_s=0.0)
    assert cluster.states() == dict.fromkeys("abc", "left") and cluster.gang.view().plan_id == BEFORE
    assert all(each.cause.startswith("cut by --budget") for each in found.results) and found.kept == "before"


def test_what_somebody_starts_meanwhile_is_left_alone(cluster: Cluster) -> None:
    """Between two candidates somebody's plan comes up: `up` refuses, and so does the next sweep."""
    taken = InputError("this gang runs another plan", where="gang gang0", fix="x")

    def somebody(name: str) -> None:
        if name == "b" and not cluster.gang.view().running:
            cluster.gang.up(plan_id="plan-theirs")
            raise taken

    cluster._raise = somebody  # type: ignore[method-assign, assignment]
    with pytest.raises(InputError, match="another plan"):
        cluster.sweep()
    assert cluster.states() == {"a": "measured", "b": "left", "c": "left"}
    with pytest.raises(InputError, match="which a sweep stops"):
        cluster.sweep()
    assert cluster.gang.view().plan_id == "plan-theirs" and cluster.gang.view().serves


@pytest.mark.turns(of="sweep: the network is tried first")
def test_the_network_is_tried_before_the_first_candidate_and_once(cluster: Cluster) -> None:
    cluster.gang.up(plan_id=BEFORE)
    cluster.says["LL128"] = NodeError("NCCL refuses LL128", where="x", fix="x")
    cluster.says["Simple"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        cluster.sweep(replaces=True, network=True)
    assert cluster.ran == [] and not cluster.gang.view().running, "a trial runs in the engine's place"
    found = cluster.sweep(network=True)
    assert [trial.name for trial in found.trials] == list(NCCL_TRIALS)
    assert [env for env, _ in cluster.tried] == [*list(NCCL_TRIALS.values())[:6], *list(NCCL_TRIALS.values())[5:]]
    assert [kept for env, kept in cluster.tried] == [not env for env, _ in cluster.tried]
    causes = {trial.name: trial.cause for trial in found.trials if trial.cause}
    assert causes == {"LL128": "NCCL refuses LL128"} and found.trials[0].reduces_us == {"14336": 50.0}
    assert set(cluster.states().values()) == {"measured"} and cluster.gang.view().plan_id == BEFORE


@pytest.mark.turns(of="sweep: the network is tried first")
def test_unasked_the_network_is_tried_before_what_waits_alone(cluster: Cluster) -> None:
    found = cluster.sweep(network=None)
    assert len(found.trials) == len(NCCL_TRIALS) and set(cluster.states().values()) == {"measured"}
    cluster.sweep(network=None, again=True)
    assert len(cluster.tried) == len(NCCL_TRIALS), "they are kept"


@pytest.mark.turns(of="sweep: the network is tried first")
def test_nothing_else_is_tried_where_the_plans_own_network_can_not_be_tested(cluster: Cluster) -> None:
    cluster.says["as planned"] = InputError("one GPU has no network", where="x", fix="x")
    found = cluster.sweep(network=None)
    assert [(trial.name, trial.cause) for trial in found.trials] == [("as planned", "one GPU has no network")]
    assert set(cluster.states().values()) == {"measured"}


@pytest.mark.turns(of="sweep: what served before, at an early end")
def test_a_failure_of_what_served_before_is_raised_and_everything_is_kept(cluster: Cluster) -> None:
    cluster.gang.up(plan_id=BEFORE)
    cluster.says["before"] = GangFailed("no memory", where="gang gang0", fix="x")
    with pytest.raises(GangFailed, match="no memory"):
        cluster.sweep(replaces=True)
    assert set(cluster.states().values()) == {CandidateState.MEASURED.value}
    assert cluster.sweep().kept == "before" and cluster.gang.view().plan_id == BEFORE
