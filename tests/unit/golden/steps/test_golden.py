"""Accepted answers on this machine, and checked again after a start: trouble is reported, not raised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.support.commands import unasked
from tests.support.reference_cluster import gang

from orchestrator.cli.screen import Screen
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.view import GangView
from orchestrator.golden.answers import (
    PROMPTS,
    Answer,
    AnswerComparison,
    Baseline,
    GoldenVerdict,
    PromptBaseline,
    Subject,
)
from orchestrator.golden.commands.golden import _print
from orchestrator.golden.steps import gate as gating
from orchestrator.golden.steps import golden
from orchestrator.golden.steps.golden import Golden
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import Inventory
from orchestrator.protocol.errors import DeployError, InputError, NodeError
from orchestrator.protocol.severity import Severity
from orchestrator.remote.fleet import Fleet

RIGHT = AnswerComparison(id="english-fact", same=True)
WRONG = AnswerComparison(id="code", same=False, position=2, expected="return x", found="return y")


def asked(patch: pytest.MonkeyPatch, answer: Golden | NodeError) -> Golden | DeployError | None:
    def check(*_: Any) -> Golden:
        if isinstance(answer, NodeError):
            raise answer
        return answer

    patch.setattr(golden, "check_gang", check)
    return golden.ask_again(Fleet([]), gang())


def checked(verdict: GoldenVerdict, *compared: AnswerComparison, left_out: Sequence[str] = ()) -> Golden:
    subject = Subject(model="m", stack="s", layout="TP32")
    accepted = PromptBaseline(tokens=(1,), varies_from=None, noise=0.0)
    prompts = {name: accepted for name in PROMPTS if name not in left_out}
    baseline = Baseline(**subject.as_json(), made_at=1.0, prompts=prompts)
    return Golden(gang="gang0", leader="node0", subject=subject, baseline=baseline, verdict=verdict, compared=compared)


def test_a_difference_is_a_finding_with_prompt_and_both_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    check = asked(monkeypatch, checked(GoldenVerdict.DIFFERS, RIGHT, WRONG))
    assert isinstance(check, Golden) and check.finding is not None
    finding = check.finding
    assert (finding.id, finding.severity, finding.node) == ("GOLDEN-DIFFERS", Severity.STOP, "node0")
    assert "1 of 2" in finding.title
    assert finding.evidence == ("code: from token 3 on 'return x' is now 'return y'",)


def test_what_is_no_difference_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    one = asked(monkeypatch, checked(GoldenVerdict.SAME, RIGHT))
    assert isinstance(one, Golden) and one.finding is None
    assert asked(monkeypatch, checked(GoldenVerdict.NONE)) is None, "nothing was accepted"
    error = NodeError("no answer", where="node0", fix="look")
    assert asked(monkeypatch, error) is error


def test_an_engine_that_computes_no_numbers_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "kept", lambda *_: checked(GoldenVerdict.NONE))
    written = Mock()
    for name, stand_in in (("serving_view", Mock()), ("refuse_busy", Mock()), ("write_document", written)):
        monkeypatch.setattr(golden, name, stand_in)
    answer = Answer(tokens=(1, 0), logprobs=(-0.1, math.nan))
    monkeypatch.setattr(golden, "asked", lambda *_: iter([("english-fact", answer)]))
    with pytest.raises(NodeError, match="computes NaN from token 2 on"):
        golden.accept_gang(Fleet([]), gang(), lambda *_: None)
    assert not written.called


def test_what_was_left_out_is_said_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*left_out: str) -> str:
        _print(checked(GoldenVerdict.SAME, left_out=left_out), Screen(), accepted=True)
        return capsys.readouterr().out

    assert "gang0: 12 answers accepted for m by s at TP32" in said() and "left out" not in said()
    eleven = said("long-context")
    assert "gang0: 11 of 12 answers accepted for" in eleven
    assert "long-context: left out, it was longer than the engine's context" in eleven


def test_where_nothing_was_ever_accepted_no_node_is_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called: list[object] = []

    def as_they_run(fleet: object, _: object) -> tuple[()]:
        called.append(fleet)
        return ()

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(Operation, "as_they_run", as_they_run)
    views = [GangView(name="gang0", state=GangState.READY, service_healthy=True)]
    operation = unasked(Inventory(path="hosts.yml", gangs=(gang(),)))

    assert golden.after_start(operation, views, lambda *_: None) == {}
    assert called == []
    (tmp_path / "l40s-deploy" / "golden").mkdir(parents=True)
    (tmp_path / "l40s-deploy" / "golden" / "m.json").write_text("{}")
    golden.after_start(operation, views, lambda *_: None)
    assert called != []


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, "\xff", "null", "[]", "{}", '{"format": 2}', '{"format": 1, "prompts": 3}',
             '{"format": 2, "model": "m", "stack": "s", "layout": "", "made_at": 1, "prompts": {}}']
)  # fmt: skip
def test_what_is_no_baseline_names_its_file_and_the_fix(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    assert golden.read_baseline(file) is None
    file.write_text(text, "latin-1")
    with pytest.raises(InputError, match="baseline") as told:
        golden.read_baseline(file)
    assert told.value.where == str(file)
    assert "golden accept" in told.value.fix


def later_release() -> Golden:
    """A baseline with prompts that only a later release has."""
    known = checked(GoldenVerdict.SAME, RIGHT)
    assert known.baseline is not None
    prompts = {"of-a-later-release": known.baseline.prompts["english-fact"]}
    return replace(known, baseline=replace(known.baseline, prompts=prompts))


def test_prompts_of_a_later_release_are_left_out_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("serving_view", "refuse_busy"):
        monkeypatch.setattr(golden, name, Mock())
    monkeypatch.setattr(golden, "asked", lambda *_: iter(()))
    monkeypatch.setattr(golden, "asked_at_once", Mock(side_effect=AssertionError("nothing is known to ask")))
    nobody = Fleet([])
    done = golden.checked_in_batches(nobody, gang(), later_release(), lambda *_: None, requests=16)
    assert done.in_batches is not None and done.in_batches.answers == 0
    monkeypatch.setattr(golden, "check_gang", lambda *_: later_release())
    assert golden.finding(nobody, gang()) is None, "as the guard asks"


@pytest.mark.parametrize(
    ("drafted_then", "drafts", "batch_noise", "same"),
    [
        (False, True, 0.25, True),
        (True, False, 0.25, True),
        (False, True, 0.001, False),
        (False, True, None, False),
        (False, False, 0.25, False),
    ],
)
def test_an_engine_that_drafts_checks_several_tokens_at_once_as_a_batch(
    monkeypatch: pytest.MonkeyPatch, drafted_then: bool, drafts: bool, batch_noise: float | None, same: bool
) -> None:
    accepted = PromptBaseline(
        tokens=(1, 2), logprobs=(-0.1, -0.7), margins=(3.0, 0.08), text="ab", varies_from=None, noise=0.0
    )
    kept = checked(GoldenVerdict.NONE)
    assert kept.baseline is not None
    baseline = replace(kept.baseline, prompts={"english-fact": accepted}, batch_noise=batch_noise, drafts=drafted_then)
    other = Answer(tokens=(1, 3), logprobs=(-0.1, -0.7), text="ac")
    monkeypatch.setattr(golden, "serving_view", Mock())
    monkeypatch.setattr(golden, "asked", lambda *_: iter([("english-fact", other)]))
    found = golden.checked(Fleet([]), gang(), replace(kept, baseline=baseline, drafts=drafts), lambda *_: None)
    assert (found.verdict is GoldenVerdict.SAME) is same
    assert ("was a tie: 0.0800 apart" in found.compared[0].tolerated) is same


@pytest.mark.parametrize(
    ("flags", "drafts"),
    [
        ((("--speculative-algorithm", "EAGLE"),), True),
        ((("--speculative-config", '{"method":"mtp"}'),), True),
        ((("--tp-size", "8"),), False),
    ],
)
def test_whether_an_engine_drafts_is_read_from_what_was_staged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: tuple[tuple[str, ...], ...], drafts: bool
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    leader = gang().leader.name
    request = Mock(model="m", stack="s", layout=None, flags=flags)
    monkeypatch.setattr(golden, "staged_plan", lambda *_, **__: Mock(requests={leader: request}))
    assert golden.kept(Fleet([]), gang(), lambda *_: None).drafts is drafts


@pytest.mark.parametrize("accepted", [True, False])
def test_a_gate_holds_the_new_plan_against_what_was_accepted_where_only_the_noise_is_unknown(
    monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    """Of a baseline that an earlier release has kept."""
    kept = checked(GoldenVerdict.NONE)
    now = replace(kept.baseline, made_at=2.0, batch_noise=0.25) if kept.baseline is not None else None
    monkeypatch.setattr(golden, "kept", lambda *_: kept if accepted else replace(kept, baseline=None))
    monkeypatch.setattr(golden, "measured", lambda *_: (now, ()))
    for name in ("_kernels", "serving_view", "graded"):
        monkeypatch.setattr(gating, name, Mock())
    monkeypatch.setattr(gating, "old_speeds", lambda *_: ())
    gated: Any = Mock()
    gated.here.as_they_run = lambda gangs: gangs
    judge = gating.Gate(within=0.05, timeout_s=1.0).before(gated, Mock())
    assert (judge.accepted, judge.baseline.made_at, judge.baseline.batch_noise) == (
        (True, 1.0, 0.25) if accepted else (False, 2.0, 0.25)
    )
