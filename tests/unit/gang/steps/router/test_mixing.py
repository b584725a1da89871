"""A second model behind a router that does not look at models: refused before anything starts or stops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.support import recorded_release as recorded
from tests.support.commands import router_of
from tests.support.messages import message

from orchestrator.engines import router as words
from orchestrator.gang.steps.router import client, mixing
from orchestrator.gang.steps.router.client import Router
from orchestrator.gang.steps.router.mixing import forget_other_models, refuse_mixed_models
from orchestrator.gang.steps.staging import staged_request
from orchestrator.gang.steps.status.reports import views_of
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import GangPorts, GangSpec, NodeSpec, Reach, RouterSpec
from orchestrator.protocol.errors import FindingsError, Unreachable
from orchestrator.protocol.verbs import ReportAnswer, StagedAnswer


def node(name: str, gang: str) -> NodeSpec:
    reach = Reach(connection="local", host="localhost")
    return NodeSpec(name=name, gang=gang, node_rank=0, reach=reach, ports=GangPorts())


ROUTER = router_of(RouterSpec(node=node("front", "router")))
OLD, SMG = (words.InstalledRouter(release, release.venv) for release in (words.SGLANG_ROUTER, words.SMG))
LOST = Unreachable("no route", where="front", fix="look")


def front(state: GangState = GangState.READY, error: Unreachable | None = None) -> GangView:
    alive = state is GangState.READY
    seen = (NodeView(name="front", node_rank=0, state=NodeState(state.value), alive=alive, error=error),)
    return GangView(name="router", state=state, service_healthy=alive, nodes=seen)


def gang(name: str, model: str, state: GangState = GangState.READY) -> GangView:
    alive = state is GangState.READY
    seen = (NodeView(name=f"on-{name}", node_rank=0, state=NodeState(state.value), alive=alive),)
    return GangView(name=name, state=state, model=model, service_healthy=alive, service_url="http://a", nodes=seen)


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The router as it is, and what its host has."""
    made = SimpleNamespace(view=front(), runs=words.SGLANG_ROUTER.name, has=OLD, gangs=(gang("a", "m"), gang("b", "m")))
    monkeypatch.setattr(Router, "view", lambda _: made.view)
    monkeypatch.setattr(client, "staged_router", lambda *_: SimpleNamespace(stack=made.runs))
    monkeypatch.setattr(mixing, "installed_for", lambda _: made.has)
    return made


def plans(**models: str) -> Mapping[str, GangView]:
    return {name: gang(name, model) for name, model in models.items()}


@pytest.mark.parametrize(
    "models", [{"a": "m"}, {"a": "m", "b": "m"}, {}], ids=["one that serves again", "all", "nothing"]
)
def test_one_model_behind_the_old_router_is_as_before(behind: SimpleNamespace, models: Mapping[str, str]) -> None:
    refuse_mixed_models(ROUTER, behind.gangs, plans(**models))


@pytest.mark.parametrize(
    "models", [{"a": "other"}, {"a": "other", "b": "other"}], ids=["beside m", "one after the other"]
)
def test_another_model_behind_the_old_router_is_refused(behind: SimpleNamespace, models: Mapping[str, str]) -> None:
    """Two gangs that change one after the other serve two models in between."""
    with pytest.raises(FindingsError, match=r"ROUTER-MODEL-MIXED: .*a: other; b: m") as refused:
        refuse_mixed_models(ROUTER, behind.gangs, plans(**models))
    assert refused.value.exit_code == 3 and "`l40s-deploy prepare --tags router_env`" in refused.value.fix
    behind.runs = words.SMG.name
    refuse_mixed_models(ROUTER, behind.gangs, plans(**models))


def test_a_router_that_is_not_running_counts_as_what_would_be_started(behind: SimpleNamespace) -> None:
    behind.view = front(GangState.ABSENT)
    with pytest.raises(FindingsError, match="ROUTER-MODEL-MIXED"):
        refuse_mixed_models(ROUTER, behind.gangs, plans(a="other"))
    behind.has = SMG
    refuse_mixed_models(ROUTER, behind.gangs, plans(a="other"))
    behind.has, behind.gangs = OLD, (gang("a", "m"), gang("b", "m", GangState.ABSENT))
    refuse_mixed_models(ROUTER, behind.gangs, plans(a="other"))


def test_gangs_are_told_apart_by_the_names_that_they_answer_to(behind: SimpleNamespace) -> None:
    """Two of one profile by two names: vLLM answers the other's with 404, and SGLang as if it were its own."""
    renamed = replace(gang("a", "m"), served=("mine",))
    behind.gangs = tuple(replace(view, served=("m",)) for view in behind.gangs)
    with pytest.raises(FindingsError, match=r"ROUTER-MODEL-MIXED: .*a: mine; b: m"):
        refuse_mixed_models(ROUTER, behind.gangs, {"a": renamed})
    with pytest.raises(FindingsError, match=r"ROUTER-MODEL-MIXED: .*b: m; a: mine"):
        refuse_mixed_models(ROUTER, (renamed, behind.gangs[1]), {"b": behind.gangs[1]})
    refuse_mixed_models(ROUTER, behind.gangs, {"a": replace(gang("a", "other"), served=("m",))})


def test_gangs_of_an_older_release_behind_the_old_router_are_restarted_and_mix_with_no_other_model(
    behind: SimpleNamespace,
) -> None:
    """Its agents report a model and no names; what it staged has them as a flag, whatever that says."""
    (raw, *_), answer = recorded.staged().values(), ReportAnswer(now=0.0, reports=(recorded.report("node0", "ready"),))
    spec = GangSpec(name="gang0", nodes=(node("node0", "gang0"),))
    (seen,) = views_of([spec], {"node0": answer}, {})
    assert (seen.served, seen.model) == ((), raw["request"]["model"])
    twin = replace(gang("gang1", seen.model), served=())
    behind.gangs = (replace(seen, state=GangState.READY, nodes=twin.nodes), twin)
    for argv in (raw["request"]["argv"], [*raw["request"]["argv"], "--served-model-name", "mine"]):
        answered = message(StagedAnswer, {**raw, "request": {**raw["request"], "argv": argv}})
        plan = staged_request(spec.leader, "gang0", answered)
        assert plan.model == seen.model
        refuse_mixed_models(ROUTER, behind.gangs, {"gang0": plan})
        with pytest.raises(FindingsError, match="ROUTER-MODEL-MIXED") as refused:
            refuse_mixed_models(ROUTER, behind.gangs, {"gang0": replace(plan, model="other", served=("other",))})
        assert refused.value.exit_code == 3 and "`l40s-deploy prepare --tags router_env`" in refused.value.fix


def test_a_router_that_can_not_be_asked_is_no_yes(behind: SimpleNamespace) -> None:
    behind.view = front(GangState.UNKNOWN, LOST)
    with pytest.raises(Unreachable):
        refuse_mixed_models(ROUTER, behind.gangs, plans(a="other"))
    refuse_mixed_models(ROUTER, behind.gangs, plans(a="m"))
    refuse_mixed_models(None, behind.gangs, plans(a="other"))


@pytest.mark.parametrize(
    ("was", "state", "out"),
    [("m", GangState.ABSENT, ["http://a"]), ("other", GangState.ABSENT, []), ("m", GangState.READY, [])],
)
def test_the_address_of_a_gang_that_ended_is_forgotten_before_another_model_answers_there(
    behind: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, was: str, state: GangState, out: list[str]
) -> None:
    """Seen with smg: it sends the old model's requests there as soon as the address answers again."""
    gone: list[str] = []
    monkeypatch.setattr(Router, "take_out", lambda _, url: gone.append(url))
    rise = {"a": SimpleNamespace(model="other", served=(), service_url="http://a")}
    forget_other_models(ROUTER, (gang("a", was, state),), rise)  # type: ignore[arg-type]
    assert gone == out
