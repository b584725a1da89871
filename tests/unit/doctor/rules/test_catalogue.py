"""Every id of a finding or a cause is in the catalogue, and `doctor --explain` explains it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

import orchestrator
from orchestrator.cli.main import main
from orchestrator.doctor.rules.support.catalogue import catalogue
from orchestrator.monitoring.metrics import cause_labels
from orchestrator.protocol.report import Cause

SOURCE = Path(orchestrator.__file__).parent
ID = re.compile(r"[A-Z][A-Z0-9]+(-[A-Z0-9]+)+")
ID_FIELDS = ("id", "signature")
OTHER_IDS = {"Advisory", "Compared", "NettestStep", "Prompt", "RailRun", "TuneJob", "Way", "Worker"}
"""Classes whose id is neither a finding's nor a cause's."""
NO_IDS = {"NCCL-FILE", "DMA-FQ"}
"""Words that look like an id but are not."""


@cache
def trees() -> Sequence[tuple[str, ast.Module]]:
    """All sources except the lab's, which reports no findings."""
    files = [path for path in SOURCE.rglob("*.py") if "lab" not in path.relative_to(SOURCE).parts]
    return [(str(path.relative_to(SOURCE)), ast.parse(path.read_text())) for path in files]


def carriers() -> dict[str, dict[str, int]]:
    """Classes with a field for an id, and the field's place among the positional arguments."""
    found: dict[str, dict[str, int]] = {}
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name not in OTHER_IDS:
                fields = [one.target.id for one in node.body
                          if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]  # fmt: skip
                if places := {name: fields.index(name) for name in ID_FIELDS if name in fields}:
                    found.setdefault(node.name, {}).update(places)
    return found


def handed(call: ast.Call, places: Mapping[str, int]) -> Iterator[ast.expr]:
    """The id arguments of a carrier's call."""
    yield from (word.value for word in call.keywords if word.arg in places)
    yield from (call.args[place] for place in places.values() if place < len(call.args))


def literals(value: ast.expr) -> Iterator[str]:
    """The possible texts of an expression; one that is put together raises, because nobody could search for it."""
    assert not isinstance(value, (ast.JoinedStr, ast.BinOp)), f"an id is put together: {ast.unparse(value)}"
    if isinstance(value, ast.IfExp):
        yield from (*literals(value.body), *literals(value.orelse))
    elif isinstance(value, ast.BoolOp):
        yield from (text for one in value.values for text in literals(one))
    elif isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value


def ids_in_source() -> set[str]:
    """Every text in the form of an id, and every id argument of a carrier."""
    found = set()
    known = carriers()
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and ID.fullmatch(node.value):
                found.add(node.value)
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                for value in handed(node, known.get(name, {})):
                    found |= set(literals(value))
    return found - NO_IDS - {""}


def put_together(tree: ast.Module) -> Iterator[str]:
    """F-strings that produce a text in the form of an id."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and len(node.values) > 1:
            parts = [str(part.value) if isinstance(part, ast.Constant) else "AA" for part in node.values]
            fixed = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
            if ID.fullmatch("".join(parts)) and re.search("[A-Z]{2}", fixed):
                yield ast.unparse(node)


def test_every_id_is_in_the_catalogue() -> None:
    assert ids_in_source() - set(catalogue()) == set()


def test_carriers_are_found_by_their_fields() -> None:
    assert {"Finding", "Cause", "CausePattern", "Rule", "CheckpointFinding", "KernelWord", "Xid"} <= set(carriers())


def test_no_id_is_put_together() -> None:
    assert {name: found for name, tree in trees() if (found := list(put_together(tree)))} == {}
    assert list(put_together(ast.parse('f"XID-{number}", f"{kind}-MISSING", f"{a}-{b}", f"a-{b}"'))) == [
        "f'XID-{number}'", "f'{kind}-MISSING'",
    ]  # fmt: skip


def test_the_label_of_an_unmatched_cause_is_explained() -> None:
    """The alert of a failed gang sends operators to `doctor --explain` with the label's value."""
    assert str(cause_labels(Cause(node="node0", text="killed"))["cause"]) in catalogue()


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
