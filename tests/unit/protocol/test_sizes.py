"""Sizes in words: one form everywhere."""

from __future__ import annotations

import ast

import pytest
from tests.support.sources import source_files

from orchestrator.protocol.sizes import gib, in_words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1 << 10, "1.0 KiB"),
        (3 << 19, "1.5 MiB"),
        ((1 << 30) - 1, "1024.0 MiB"),
        (5 << 28, "1.2 GiB"),
        (700 << 30, "700.0 GiB"),
    ],
)
def test_a_size_is_in_the_unit_that_suits(count: int, words: str) -> None:
    assert in_words(count) == words


def test_arithmetic_has_its_own_digits() -> None:
    assert (gib(3 << 29), gib(3 << 29, 1), gib(-(1 << 30))) == ("1.50", "1.5", "-1.00")


def test_no_other_function_words_a_size() -> None:
    """`def _gib(count)`, `return f"{count / GIB:.1f} GiB"` and the like: `in_words` and `gib` say them."""
    others = [
        f"{name}: {node.name}"
        for name, path in source_files().items()
        if name != "protocol/sizes.py" and not name.startswith("lab/")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.strip("_") in ("gib", "mib", "size_words")
    ]
    assert others == []
