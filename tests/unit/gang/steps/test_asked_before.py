"""What gangs were asked for when they were started, for a `plan --diff` that names no model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.advice import refused
from tests.support.commands import unasked
from tests.support.reference_cluster import gang

from orchestrator.gang.steps import asked_before as module
from orchestrator.gang.steps.asked_before import asked_before
from orchestrator.gang.steps.operation import Operation
from orchestrator.model.inventory import Inventory
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.staging import Asked

FIRST, SECOND = gang(2), replace(gang(2), name="gang1")
CLUSTER = Inventory(path="hosts.yml", gangs=(FIRST, SECOND))


def told(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Asked], *names: str) -> Asked:
    monkeypatch.setattr(module, "newest_run", lambda _, spec: answers.get(spec.name))
    monkeypatch.setattr(Operation, "as_they_run", lambda _, specs: tuple(specs))
    monkeypatch.setattr(module, "asked_of", lambda _, spec: answers[spec.name])
    return asked_before(unasked(CLUSTER), names)


def test_what_all_were_asked_for_and_one_that_never_ran_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Asked(model="M", stack="sglang-0.5.23", ep=2)
    assert told(monkeypatch, {"gang0": both, "gang1": replace(both)}) == both
    assert told(monkeypatch, {"gang1": both}) == both


def test_gangs_of_two_models_are_told_apart_by_a_command_that_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"gang0": Asked(model="M"), "gang1": Asked(model="N")}
    assert told(monkeypatch, answers, "gang1").model == "N"
    with pytest.raises(InputError, match=r"gang0: M; gang1: N") as refusal:
        told(monkeypatch, answers)
    assert refused(refusal.value.fix) == ""


def test_where_nothing_ever_ran_a_model_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no gang was ever started here"):
        told(monkeypatch, {})
