"""What was typed is values: no function is hung on the namespace of argparse and called from there."""

from __future__ import annotations

import ast

from tests.support.sources import PRODUCT


def called_on_the_namespace(tree: ast.AST) -> list[int]:
    """Lines with `args.anything(...)`."""
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    attributes = [function for function in functions if isinstance(function, ast.Attribute)]
    owners = [(attribute.lineno, attribute.value) for attribute in attributes]
    return [line for line, owner in owners if isinstance(owner, ast.Name) and owner.id == "args"]


def test_a_namespace_holds_values_only() -> None:
    lines = [
        f"{path.relative_to(PRODUCT)}:{line}"
        for path in sorted(PRODUCT.rglob("*.py"))
        for line in called_on_the_namespace(ast.parse(path.read_text()))
    ]
    assert lines == []


def test_such_a_call_is_seen() -> None:
    assert called_on_the_namespace(ast.parse("args.read_inventory(args.inventory)")) == [1]
    assert called_on_the_namespace(ast.parse("args.inventory.strip()")) == []
