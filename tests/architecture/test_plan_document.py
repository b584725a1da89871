"""A plan is one document: no type of planning says again, field by field, what is staged on a node."""

from __future__ import annotations

import ast

from tests.support.sources import PRODUCT

Fields = dict[str, frozenset[str]]
"""Names of the fields that a dataclass has by itself, by its own name."""


def fields_of(text: str) -> Fields:
    classes = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.decorator_list)
    own = {node.name: (each for each in node.body if isinstance(each, ast.AnnAssign)) for node in classes}
    return {name: frozenset(ast.unparse(each.target) for each in mine) for name, mine in own.items()}


def twins(ours: Fields, staged: Fields) -> list[tuple[str, str]]:
    """Pairs of which more than half of the smaller one's fields, and at least two, have the same names in both."""
    return [
        (name, other)
        for name, mine in ours.items()
        for other, theirs in staged.items()
        if len(mine & theirs) >= 2 and 2 * len(mine & theirs) > min(len(mine), len(theirs))
    ]


def test_what_is_planned_has_no_twin_among_what_is_staged() -> None:
    files = [*(PRODUCT / "planning").rglob("*.py"), PRODUCT / "model/plan.py", PRODUCT / "model/profile.py"]
    staged = fields_of((PRODUCT / "protocol/staging.py").read_text())
    del staged["Endpoint"]  # an address and a port are in many things
    assert [(path.name, *pair) for path in files for pair in twins(fields_of(path.read_text()), staged)] == []


def test_twins_are_found() -> None:
    ours = fields_of("@dataclass\nclass Canary:\n    prompt: str\n    max_tokens: int\n    expect_any: str")
    theirs = fields_of("@dataclass\nclass CanaryOrder:\n    prompt: str\n    max_tokens: int")
    assert twins(ours, theirs) == [("Canary", "CanaryOrder")]
    other = fields_of("@dataclass\nclass Spoken(Canary):\n    voice: str")
    assert twins(other, theirs) == []
