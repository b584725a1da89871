"""`up` connects the nodes once: its steps get what is connected, and open nothing of their own."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tests.support.sources import PRODUCT

STEPS_OF_UP = (
    "gang/steps/standing.py",
    "gang/steps/up.py",
    "gang/steps/raising.py",
    "gang/steps/router/mixing.py",
    "gang/steps/checks.py",
)
"""From the choice of the gangs to their start; the router, its claim and what was interrupted have their own."""
CONNECTS = {"gang/steps/standing.py": 1, "gang/steps/raising.py": 1}
"""By file, its places that open connections: which gangs stand as replicas, and the nodes of the inventory. A number
here may only fall."""


def places_that_connect(tree: ast.AST) -> int:
    calls: Iterable[ast.expr] = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sum(isinstance(called, ast.Name) and called.id == "Fleet" for called in calls)


def test_up_connects_its_nodes_in_one_place() -> None:
    places = {name: places_that_connect(ast.parse((PRODUCT / name).read_text())) for name in STEPS_OF_UP}
    assert {name: count for name, count in places.items() if count} == CONNECTS
