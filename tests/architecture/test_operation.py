"""`up` connects the nodes once: its steps get what is connected and what was seen, and hand on what they found."""

from __future__ import annotations

import ast

import pytest
from tests.support.sources import PRODUCT

STEPS_OF_UP = (
    "gang/steps/standing.py",
    "gang/steps/operation.py",
    "gang/steps/up_operation.py",
    "gang/steps/up.py",
    "gang/steps/raising.py",
    "gang/steps/changes.py",
    "gang/steps/router/mixing.py",
    "gang/steps/checks.py",
)
"""From the choice of the gangs to their start; the router and its claim have their own, and so has a restart."""
LOOKS = {"gang/steps/operation.py": 1, "gang/steps/up_operation.py": 1, "gang/steps/raising.py": 1}
"""By file, its places that look at gangs: what every node knows, the chosen gangs before they are locked, and a start
that is followed. A number here may only fall."""
OF_OTHER_COMMANDS = {"would_stop", "diff_inventory"}
"""Functions in these files that `up` does not call: they are whole commands."""


def places(tree: ast.Module, *names: str) -> int:
    """Calls of these functions, by their names."""
    functions = [node for node in tree.body if getattr(node, "name", "") not in OF_OTHER_COMMANDS]
    calls = [node.func for function in functions for node in ast.walk(function) if isinstance(node, ast.Call)]
    return sum(isinstance(called, ast.Name) and called.id in names for called in calls)


def counted(*names: str) -> dict[str, int]:
    by_file = {name: places(ast.parse((PRODUCT / name).read_text()), *names) for name in STEPS_OF_UP}
    return {name: count for name, count in by_file.items() if count}


def test_up_connects_its_nodes_in_one_place() -> None:
    assert counted("Fleet") == {"gang/steps/operation.py": 1}


@pytest.mark.parametrize("name", ["down", "restart", "restart_sequence", "rollback", "maintenance"])
def test_steps_of_other_commands_open_nothing_of_their_own(name: str) -> None:
    assert places(ast.parse((PRODUCT / f"gang/steps/{name}.py").read_text()), "Fleet") == 0


def test_up_looks_at_gangs_in_few_places() -> None:
    assert counted("see", "everything", "as_they_run") == LOOKS


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
