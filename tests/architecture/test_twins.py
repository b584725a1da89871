"""A function stands in one place: no two have the same parameters and the same body."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.support.sources import source_files

SMALLEST = 250
"""Of a body, as characters of its tree: shorter ones are the words of one sentence, not a copy."""
MAY_BE_TWINS = [
    {
        "tuning/on_node/tune.py:_digest",
        "engines/tuned_validity.py:digest",
    }  # the node and the controller share protocol/ alone
]


def bodies() -> dict[str, set[str]]:
    """Where each function stands, by its parameters and its body without the docstring."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in source_files().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                text = "|".join(ast.dump(one) for one in body)
                if len(text) >= SMALLEST:
                    found[ast.dump(node.args) + text].add(f"{name}:{node.name}")
    return found


def test_no_function_stands_twice() -> None:
    twins = [places for places in bodies().values() if len(places) > 1]
    assert [places for places in twins if places not in MAY_BE_TWINS] == []
    assert [places for places in MAY_BE_TWINS if places not in twins] == [], "these are no twins any more"
