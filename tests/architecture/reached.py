"""What a function of the product may call, and what that may: by the names in the source, so rather too much."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from functools import cache

from tests.support.sources import PRODUCT

PACKAGE = "orchestrator"
Place = tuple[str, str]
"""A module, and a name at its top level."""


@cache
def module_of(name: str) -> ast.Module | None:
    path = PRODUCT.joinpath(*name.split(".")[1:])
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if name.startswith(PACKAGE) and file.is_file():
            return without_annotations(ast.parse(file.read_text()))
    return None


def without_annotations(tree: ast.Module) -> ast.Module:
    """A type that is only named is not called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return tree


@cache
def definitions(module: str) -> dict[str, ast.AST]:
    """By name, what stands at its top level and has a body."""
    tree = module_of(module)
    assert tree is not None
    made: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            made[node.name] = node
        elif isinstance(node, ast.Assign):
            made |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
    return made


@cache
def imported(module: str) -> dict[str, Place]:
    """By the name here: what was imported, anywhere in the module; ('module', '') for a module itself."""
    tree = module_of(module)
    assert tree is not None
    names: dict[str, Place] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                place = (inner, "") if module_of(inner) is not None else (str(node.module), alias.name)
                names[alias.asname or alias.name] = place
    return names


def place_of(module: str, node: ast.AST) -> Place | None:
    """What of the product a name, or an attribute of a module, stands for in this module."""
    if isinstance(node, ast.Name):
        place = (module, node.id) if node.id in definitions(module) else imported(module).get(node.id)
        return place if place is not None and place[1] else None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        inner, name = imported(module).get(node.value.id, ("", "none"))
        return (inner, node.attr) if not name else None
    return None


def named_in(module: str, body: ast.AST) -> set[Place]:
    """The product's functions, classes and tables that this code names."""
    return {place for node in ast.walk(body) if (place := place_of(module, node)) is not None}


def reached_from(roots: Iterable[Place]) -> dict[Place, ast.AST]:
    """These places and all that they name, and so on; a class with all of its methods."""
    found: dict[Place, ast.AST] = {}
    left = list(roots)
    while left:
        place = left.pop()
        module, name = place
        if place in found or module_of(module) is None or name not in definitions(module):
            continue
        found[place] = definitions(module)[name]
        left += named_in(module, found[place])
    return found


def calls_of(reached: dict[Place, ast.AST], *called: Place) -> Counter[str]:
    """By `module.name`, how often it calls one of these."""
    counts: Counter[str] = Counter()
    for (module, name), body in reached.items():
        for node in ast.walk(body):
            if isinstance(node, ast.Call) and place_of(module, node.func) in called:
                counts[f"{module.removeprefix(f'{PACKAGE}.')}.{name}"] += 1
    return counts
