"""A class name means one thing: no two files of the product define a class of the same name."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.support.sources import PRODUCT


def homes_of_classes() -> dict[str, set[str]]:
    """By class name without its leading underscores: the files that define it."""
    homes: dict[str, set[str]] = defaultdict(set)
    for path in sorted(PRODUCT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].add(path.relative_to(PRODUCT).as_posix())
    return homes


def test_a_class_name_has_one_home() -> None:
    assert {name: files for name, files in homes_of_classes().items() if len(files) > 1} == {}
