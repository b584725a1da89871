"""Code that is read, not counted: the shapes that save a line and cost its reader a minute are refused.

A nested conditional expression, a text or list times a condition, a pair indexed by a condition, a `# fmt: skip` inside
a function or statement, a comprehension of more than two `for` or three clauses, a function over 50 lines.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.support.sources import PRODUCT

LONGEST = 50
"""Lines of a function, its docstring among them."""
CLAUSES = 2
"""`for` and `if` of one comprehension."""
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SEQUENCES = (ast.List, ast.Tuple, ast.JoinedStr, ast.ListComp)
_CONDITIONS = (ast.Compare, ast.BoolOp)


def nested_conditionals(node: ast.AST) -> bool:
    return isinstance(node, ast.IfExp) and any(
        isinstance(part, ast.IfExp) for part in ast.walk(node) if part is not node
    )


def text_times_condition(node: ast.AST) -> bool:
    """`"s" * (n != 1)`, `[x] * bool(y)`: a sequence times anything but a number or a length."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    sides = (node.left, node.right), (node.right, node.left)
    return any(_is_sequence(sequence) and not _is_number(factor) for sequence, factor in sides)


def pair_by_condition(node: ast.AST) -> bool:
    """`(a, b)[flag]`, `text[: 3 + flag]` where the flag is a comparison or an and/or."""
    if not isinstance(node, ast.Subscript):
        return False
    if isinstance(node.value, ast.Tuple):
        return not isinstance(node.slice, (ast.Constant, ast.Slice))
    return isinstance(node.slice, ast.Slice) and any(isinstance(part, _CONDITIONS) for part in ast.walk(node.slice))


def many_clauses(node: ast.AST) -> bool:
    if not isinstance(node, _COMPREHENSIONS):
        return False
    return sum(1 + len(generator.ifs) for generator in node.generators) > CLAUSES + 1 or len(node.generators) > CLAUSES


def long_function(node: ast.AST) -> bool:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.end_lineno is None:
        return False
    return node.end_lineno - node.lineno + 1 > LONGEST


def _is_sequence(node: ast.AST) -> bool:
    return isinstance(node, _SEQUENCES) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def _is_number(node: ast.AST) -> bool:
    """Arithmetic on numbers, as in `b"\\0" * (-len(value) % 4)`; not where a comparison is a summand."""
    if any(isinstance(part, _CONDITIONS) for part in ast.walk(node)):
        return False
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("len", "max", "min")
    return isinstance(node, ast.BinOp)


SHAPES = {
    "nested conditional expression": nested_conditionals,
    "text or list times a condition": text_times_condition,
    "pair indexed by a condition": pair_by_condition,
    "comprehension of many clauses": many_clauses,
    "function over 50 lines": long_function,
}


def places() -> Iterator[str]:
    """Each place of the product that has one of these shapes."""
    for path in sorted(PRODUCT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for shape, refused in SHAPES.items():
                if refused(node):
                    yield f"{path.relative_to(PRODUCT).as_posix()}:{getattr(node, 'lineno', 0)}: {shape}"


def test_code_has_no_such_shape() -> None:
    assert list(places()) == []


def skipped_formats() -> Counter[str]:
    """`# fmt: skip` in an indented line: inside a function, a class, or a statement of several lines."""
    return Counter(
        path.relative_to(PRODUCT).as_posix()
        for path in sorted(PRODUCT.rglob("*.py"))
        for line in path.read_text().splitlines()
        if line.startswith(" ") and "# fmt: skip" in line
    )


def test_the_formatter_is_not_skipped_inside_functions() -> None:
    assert skipped_formats() == Counter()


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ("nested conditional expression", "x = 1 if a else 2 if b else 3"),
        ("text or list times a condition", "x = 's' * (n != 1)"),
        ("text or list times a condition", "x = [a] * flag"),
        ("pair indexed by a condition", "x = (a, b)[flag]"),
        ("pair indexed by a condition", "x = text[: 3 + (a > b)]"),
        ("comprehension of many clauses", "x = [a for a in b for c in d if a if c]"),
    ],
)
def test_what_is_refused(shape: str, text: str) -> None:
    assert any(SHAPES[shape](node) for node in ast.walk(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    ["x = 1 if a else 2", "x = '-' * 10", "x = [0] * len(a)", "x = (a, b)[0]", "x = [a for b in c for a in b if a]"],
)
def test_what_is_not(text: str) -> None:
    tree = ast.parse(text)
    assert not any(refused(node) for refused in SHAPES.values() for node in ast.walk(tree))
