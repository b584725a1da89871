"""Functions small enough to read: decisions are counted, boolean operators, conditional expressions and comprehensions
among them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.sources import source_files

MOST = 12
Function = ast.FunctionDef | ast.AsyncFunctionDef
_APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ONE = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)


def complexity(function: ast.AST) -> int:
    """McCabe's number as radon counts it: 1, and 1 for each decision; a function inside is counted apart."""
    return 1 + sum(_decisions(node) for node in _own(function))


def _own(node: ast.AST) -> Iterator[ast.AST]:
    waiting = [node]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if not isinstance(child, _APART):
                waiting.append(child)
                yield child


def _decisions(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return isinstance(node, _ONE)


def functions() -> Iterator[tuple[str, int]]:
    for name, path in source_files().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                yield f"{name}:{node.name}", complexity(node)


def test_no_function_decides_more_than_can_be_read() -> None:
    assert {name: number for name, number in functions() if number > MOST} == {}


def test_what_is_counted() -> None:
    text = """
def one(a, b):
    def inner(): return [x for x in a if x]
    if a and b or not a:
        return 1 if b else 2
    for _ in a:
        try: pass
        except OSError: pass
    match a:
        case 1: pass
    return {x for x in a for y in b if x if y}
"""
    one = ast.parse(text).body[0]
    assert complexity(one) == 1 + 3 + 1 + 1 + 1 + 1 + 4
