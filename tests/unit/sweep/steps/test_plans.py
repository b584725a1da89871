"""The candidates with a plan each: what is refused before anything is stopped, known from before, or cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.commands import unconnected
from tests.support.reference_cluster import gang
from tests.unit.sweep.made import point

from orchestrator.model.inventory import Inventory
from orchestrator.model.measured import CandidateResult, CandidateState
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import FindingsError, InputError, Unreachable
from orchestrator.records.sweeps import keep_sweep
from orchestrator.sweep.candidates import variation_of
from orchestrator.sweep.steps import plans
from orchestrator.sweep.steps.plans import PlannedSweep, SweepOptions

GANG = gang()
OPTIONS = SweepOptions(
    models=("DeepSeek-V3-0324-Block64x64",), stack="sglang-0.5.23", layouts=({"tp": 32}, {"pp": 4, "tp": 8}), vary=(),
    requests=(1, 32), input=200, output=200, dataset=None, budget_s=None, keep_best=False, replaces=False, again=False,
    network=False,
    accept=(), timeout_s=60.0, command="x",
)  # fmt: skip
Planned = Callable[..., PlannedSweep]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planned:
    """Plans without nodes. refuses: what the plan of a candidate raises, by its TP degree; asked: gets each request"""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(plans, "connected", unconnected)
    monkeypatch.setattr(plans, "look", lambda *_: SimpleNamespace(all=dict))
    monkeypatch.setattr(plans, "examined", lambda made, *_, **__: made.plan)

    def make(refuses: dict[int, Exception] | None = None, asked: list[PlanRequest] | None = None, **words: Any) -> Any:
        def make_plan(_: Any, request: PlanRequest, __: Any) -> Any:
            if asked is not None:
                asked.append(request)
            if refuses and request.tp in refuses:
                raise refuses[request.tp]
            memory = SimpleNamespace(memory=SimpleNamespace(kv_tokens=7))
            name = f"plan-{request.tp}{'-'.join(request.extra_args)}"
            return SimpleNamespace(plan=SimpleNamespace(plan_id=name, gangs=(memory,), findings=()))

        monkeypatch.setattr(plans, "make_plan", make_plan)
        return plans.planned(Inventory(path="hosts.yml", gangs=(GANG,)), GANG, replace(OPTIONS, **words))

    return make


def by_id(found: PlannedSweep) -> dict[str, CandidateResult]:
    return {result.candidate.id: result for result in found.record.results}


def test_each_has_its_plan_and_its_time(planned: Planned) -> None:
    asked: list[PlanRequest] = []
    found = planned(asked=asked)
    assert {name: (one.plan_id, one.kv_tokens, one.waits) for name, one in by_id(found).items()} == {
        "tp32": ("plan-32", 7, True),
        "pp4,tp8": ("plan-8", 7, True),
    }
    assert (
        all(seconds > plans.READY_S for seconds in found.seconds.values())
        and found.seconds.keys() == by_id(found).keys()
    )
    assert {(one.model, one.stack, one.gangs) for one in asked} == {(OPTIONS.models[0], OPTIONS.stack, (GANG.name,))}
    assert (found.record.model, found.record.stack, found.record.gang) == (OPTIONS.models[0], OPTIONS.stack, "gang0")


@pytest.mark.parametrize(
    "why",
    [InputError("no room for a KV cache", where="x", fix="x"), FindingsError("a card is missing", where="x", fix="x")],
)
def test_what_can_not_be_planned_is_refused_with_its_cause(planned: Planned, why: Exception) -> None:
    found = by_id(planned(refuses={32: why}))
    assert found["tp32"].state is CandidateState.REFUSED and found["tp32"].cause in str(why)
    assert found["pp4,tp8"].waits


def test_a_node_that_does_not_answer_is_no_refusal(planned: Planned) -> None:
    with pytest.raises(Unreachable):
        planned(refuses={32: Unreachable("away", where="x", fix="x")})


def test_where_nothing_can_be_measured_it_says_why(planned: Planned) -> None:
    why = InputError("no room", where="x", fix="x")
    with pytest.raises(InputError, match=r"no candidate can be measured: .*no room"):
        planned(refuses={32: why, 8: why})


def test_what_is_known_is_not_measured_again_unless_asked(planned: Planned) -> None:
    first = planned().record
    done = replace(first.results[0], state=CandidateState.MEASURED, points=(point(1, 5.0),), seconds=50.0)
    keep_sweep(replace(first, results=(done, *first.results[1:]), started=("plan-x",)))
    again = planned()
    name = done.candidate.id
    assert by_id(again)[name].points == done.points and not by_id(again)[name].waits
    assert again.record.started == ("plan-x",), "what it has started is still its own"
    assert set(again.seconds.values()) == {50.0}, "as long as the measured one took"
    assert by_id(planned(again=True))[name].waits
    assert by_id(planned(output=512))[name].waits, "another load is another sweep"


def test_a_budget_cuts_and_a_second_call_does_not_remember_that(planned: Planned) -> None:
    cut = planned(budget_s=0.0)
    assert all(one.cause.startswith("cut by --budget") for one in by_id(cut).values())
    keep_sweep(cut.record)
    assert all(one.waits for one in by_id(planned()).values())


def test_a_stack_by_its_file_is_asked_for_by_that(planned: Planned, tmp_path: Path) -> None:
    from orchestrator.loading.resources import data_dir

    file = tmp_path / "mine.yml"
    file.write_text(
        (data_dir("inventory") / "stacks/sglang-0.5.23.yml").read_text().replace("name: sglang-0.5.23", "name: mine")
    )
    asked: list[PlanRequest] = []
    found = planned(asked=asked, stack=str(file))
    assert {one.stack for one in asked} == {str(file)} and found.record.stack == "mine"


def test_an_engine_without_a_known_client_is_refused(planned: Planned) -> None:
    with pytest.raises(InputError, match="can't measure vLLM"):
        planned(models=("tiny-qwen3-moe",), stack="vllm-0.33.0", layouts=())


def test_settings_reach_the_plan_as_flags(planned: Planned) -> None:
    asked: list[PlanRequest] = []
    planned(asked=asked, layouts=({"tp": 32},), vary=(variation_of("kv=auto,fp8"),))
    assert [one.extra_args for one in asked] == [(), ("--kv-cache-dtype", "fp8_e4m3")]
