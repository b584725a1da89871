"""Accepted answers checked again after a start: what becomes a finding; trouble is reported, not raised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.reference_cluster import gang

from orchestrator.cli.screen import Screen
from orchestrator.gang.view import GangView
from orchestrator.golden.commands.golden import _print
from orchestrator.golden.compare import AnswerComparison, GoldenVerdict
from orchestrator.golden.document import Subject
from orchestrator.golden.steps import check as golden_check
from orchestrator.golden.steps.golden import Golden
from orchestrator.model.errors import NodeError
from orchestrator.model.finding import Severity
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import Inventory
from orchestrator.remote.fleet import Fleet

RIGHT = AnswerComparison(id="english-fact", verdict=GoldenVerdict.SAME)
WRONG = AnswerComparison(id="code", verdict=GoldenVerdict.DIFFERS, position=2, expected="return x", found="return y")


def asked(patch: pytest.MonkeyPatch, answer: Golden | NodeError) -> golden_check.GoldenCheck:
    def check(*_: Any) -> Golden:
        if isinstance(answer, NodeError):
            raise answer
        return answer

    patch.setattr(golden_check, "check_gang", check)
    return golden_check.ask_again(Fleet([]), gang())


def golden(verdict: GoldenVerdict, *compared: AnswerComparison) -> Golden:
    subject = Subject(model="m", stack="s", layout="TP32")
    return Golden(gang="gang0", subject=subject, file="/f", verdict=verdict, compared=compared)


def test_a_difference_is_a_finding_with_prompt_and_both_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = asked(monkeypatch, golden(GoldenVerdict.DIFFERS, RIGHT, WRONG)).finding
    assert finding is not None
    assert (finding.id, finding.severity, finding.node) == ("GOLDEN-DIFFERS", Severity.STOP, "node0")
    assert "1 of 2" in finding.title
    assert finding.evidence == ("code: from token 3 on 'return x' is now 'return y'",)


def test_the_accepted_answers_are_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    one = asked(monkeypatch, golden(GoldenVerdict.SAME, RIGHT))
    assert (one.finding, one.error) == (None, None) and one.golden is not None


def test_without_accepted_answers_there_is_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, golden(GoldenVerdict.NONE)) == golden_check.GoldenCheck(gang="gang0")


def test_what_was_left_out_is_said_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*left_out: str) -> str:
        _print(replace(golden(GoldenVerdict.SAME), left_out=left_out), Screen(), accepted=True)
        return capsys.readouterr().out

    assert "gang0: 12 answers accepted for m by s at TP32" in said() and "left out" not in said()
    eleven = said("long-context")
    assert "gang0: 11 of 12 answers accepted for" in eleven
    assert "long-context: left out, it was longer than the engine's context" in eleven


def test_an_engine_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    error = NodeError("no answer", where="node0", fix="look")
    assert asked(monkeypatch, error) == golden_check.GoldenCheck(gang="gang0", error=error)


def test_where_nothing_was_ever_accepted_no_node_is_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called: list[object] = []

    def fleet(nodes: object) -> Fleet:
        called.append(nodes)
        return Fleet([])

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(golden_check, "Fleet", fleet)
    monkeypatch.setattr(golden_check, "as_they_run", lambda *_: ())
    views = [GangView(name="gang0", state=GangState.READY, service_healthy=True)]
    inventory = Inventory(path="hosts.yml", gangs=(gang(),))

    assert golden_check.after_start(inventory, views, lambda *_: None) == ()
    assert called == []
    (tmp_path / "l40s-deploy" / "golden").mkdir(parents=True)
    (tmp_path / "l40s-deploy" / "golden" / "m.json").write_text("{}")
    golden_check.after_start(inventory, views, lambda *_: None)
    assert called != []
