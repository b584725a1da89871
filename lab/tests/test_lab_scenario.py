"""Scenario files are read strictly: every mistake is reported with its position, before a lab is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.odd_yaml import ODD_YAML

from l40s_lab.rehearsal import scenario
from orchestrator.model.errors import InputError


def test_those_that_ship_can_be_read() -> None:
    assert set(scenario.names()) == {"three-weeks", "dead-rank", "rolling-restart"}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (None, "wanted a mapping"),
        ({"summary": "x"}, "wanted steps"),
        ({"summary": "x", "steps": [{}]}, "steps[0]"),
        ({"summary": "x", "steps": [{"run": "status", "exits": 0}]}, "found 'exits'"),
        ({"summary": "x", "steps": [{"run": "status", "exit": True}]}, "wanted int"),
        ({"summary": "x", "steps": [{"run": "say 'it"}]}, "No closing quotation"),
        ({"summary": "x", "steps": [{"break": "node2"}]}, "at least 2 words"),
        ({"summary": "x", "steps": [{"break": "node2 gpu-lots 1"}]}, "did you mean gpu-lost"),
        ({"summary": "x", "steps": [{"until": "failed", "cause": {"who": 1}}]}, "found 'who'"),
        ({"summary": "x", "lab": {"nodes": "four"}, "steps": [{"say": "x"}]}, "lab.nodes"),
        ({"summary": "x", "steps": [{"lab": {"wires": "right"}}]}, "found 'wires'"),
    ],
)
def test_mistakes_are_told_with_their_place(document: object, said: str) -> None:
    with pytest.raises(InputError) as told:
        scenario.parse(document, "mine", "mine.yml")
    assert said in str(told.value)


def test_a_file_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="dead-rank"):
        scenario.load(str(tmp_path / "none.yml"))


@pytest.mark.parametrize("text", ODD_YAML)
def test_yaml_of_any_shape_is_refused_without_a_defect(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.yml").write_text(text)
    with pytest.raises(InputError):
        scenario.load(str(tmp_path / "odd.yml"))
