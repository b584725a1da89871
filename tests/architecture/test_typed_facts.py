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
    """Texts of the code, but for documentation, that are the name of such a variable; command lines looked into."""
    nodes = list(ast.walk(ast.parse(source)))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    looked_into = [node.value for node in nodes if isinstance(node, ast.Subscript)]
    looked_into += [side for node in nodes if isinstance(node, ast.Compare) for side in node.comparators]
    argv = [ast.unparse(node) for node in looked_into if isinstance(node, ast.Attribute) and node.attr == "argv"]
    return [*filter(RENDERED.fullmatch, texts), *(words for words in argv if words != "sys.argv")]


@pytest.mark.parametrize("file", FILES)
def test_what_was_rendered_is_not_read_back(file: str) -> None:
    assert read_back(FILES[file].read_text()) == []


def test_a_reader_would_be_found() -> None:
    assert read_back('def f(run):\n    """NCCL_NET is read."""\n    return run.env.get("NCCL_NET")')
    assert read_back('"--tp-size" in node.argv') and read_back("node.argv[1:]") and not read_back("sys.argv[1:]")
