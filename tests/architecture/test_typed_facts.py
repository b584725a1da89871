"""What a plan decided is in its types: nobody reads NCCL's variables or an engine's command line back."""

from __future__ import annotations

import ast
import re

import pytest
from tests.support.sources import source_files

RENDERED = re.compile(r"(NCCL|GLOO)_[A-Z_]+")
MAY_READ = ("engines/", "rules/", "lab/", "planning/environment.py")
"""rules/: what an operator wrote into the inventory or a node's files, not what a plan rendered of it."""
FILES = {name: path for name, path in source_files().items() if not name.startswith(MAY_READ)}


def read_back(source: str) -> list[str]:
    """Texts of the code, but for documentation, that are the name of such a variable."""
    texts = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return [text for text in texts if isinstance(text, str) and RENDERED.fullmatch(text)]


@pytest.mark.parametrize("file", FILES)
def test_nccls_variables_are_known_where_they_are_rendered(file: str) -> None:
    assert read_back(FILES[file].read_text()) == []


def test_a_reader_would_be_found() -> None:
    assert read_back('def f(run):\n    """NCCL_NET is read."""\n    return run.env.get("NCCL_NET")')
