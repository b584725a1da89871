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


def hooks_of_classes(tree: ast.AST) -> list[str]:
    """Class attributes that somebody is to set to a function before the class can be used."""
    declared = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and node.value is None]
    return [ast.unparse(node.target) for node in declared if "ClassVar[Callable" in ast.unparse(node.annotation)]


def test_nothing_has_to_be_set_before_it_can_be_used() -> None:
    """What connects, packs and reads is imported by who uses it: no class waits for a process to set it up."""
    hooks = {path.name: hooks_of_classes(ast.parse(path.read_text())) for path in sorted(PRODUCT.rglob("*.py"))}
    assert {name: attributes for name, attributes in hooks.items() if attributes} == {}


def test_such_a_class_is_seen() -> None:
    assert hooks_of_classes(ast.parse("class Fleet:\n    opener: ClassVar[Callable[[str], int]]")) == ["opener"]
