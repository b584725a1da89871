"""Every id that a finding or a cause can carry is in the catalogue, and `doctor --explain` answers for it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import orchestrator
from orchestrator.cli.main import main
from orchestrator.rules.support.catalogue import catalogue

SOURCE = Path(orchestrator.__file__).parent
ID = re.compile(r"[A-Z][A-Z0-9]+(-[A-Z0-9]+)+")
CARRIERS = {"Finding", "Cause", "CausePattern", "Rule"}
NO_IDS = {"NCCL-FILE"}
"""Words of that form which are something else."""


def ids_in_source() -> set[str]:
    """Texts of an id's form anywhere in the sources but the lab's."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        if "lab" not in path.relative_to(SOURCE).parts:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and ID.fullmatch(node.value):
                    found.add(node.value)
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") in CARRIERS:
                    values = (word.value for word in node.keywords if word.arg == "id")
                    found |= {str(value.value) for value in values if isinstance(value, ast.Constant)}
    return found - NO_IDS - {""}


def test_every_id_is_in_the_catalogue() -> None:
    assert ids_in_source() - set(catalogue()) == set()


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_explain_answers_for_every_id(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--explain", name]) == 0
    said = capsys.readouterr().out
    entry = catalogue()[name]
    assert said.startswith(name) and entry.title in said and entry.explain in said
    assert entry.title and entry.reads and entry.source


def test_explain_as_json_and_a_misspelt_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--explain", "GID-INDEX-MIXED"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["rules"]
    assert said["id"] == "GID-INDEX-MIXED" and said["kind"] == "plan" and said["explain"]
    assert main(["doctor", "--explain", "GID-INDEX-MIXD"]) == 2
    assert "GID-INDEX-MIXED" in capsys.readouterr().err
