"""Accepted answers on this machine, and checked again after a start: trouble is reported, not raised."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
