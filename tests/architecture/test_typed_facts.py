"""What a plan decided is in its types: nobody reads NCCL's variables or an engine's command line back. What an engine
version is stands in engines/: nobody else names a version or a module of SGLang."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.support.sources import source_files

RENDERED = re.compile(r"(NCCL|GLOO)_[A-Z_]+")
MAY_READ = ("engines/", "doctor/rules/", "lab/", "planning/environment.py", "planning/older_staging.py")
"""older_staging.py: older releases staged the rendered texts alone. rules/: what an operator wrote into the inventory
or a node's files, not what a plan rendered of it."""
FILES = {name: path for name, path in source_files().items() if not name.startswith(MAY_READ)}


WRITERS = {"list", "tuple", "shlex.join"}
"""What may be called with a command line: it is shown or sent as it is."""


def read_back(source: str) -> list[str]:
    """Texts of the code, but for documentation, that are the name of such a variable; command lines that are more than
    handed on, of a plan, a staged request or a document."""
    if not any(part in source for part in ("argv", "NCCL_", "GLOO_")):  # nothing to parse it for
        return []
    tree = ast.parse(source)
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    argv = [node for node in ast.walk(tree) if is_command_line(node) and not is_handed_on(node, parents[node])]
    return [*filter(RENDERED.fullmatch, texts), *map(ast.unparse, argv)]


def is_command_line(node: ast.AST) -> bool:
    """`X.argv` but `sys.argv`, `X["argv"]`, and such a key that is asked for."""
    if isinstance(node, ast.Attribute):
        return node.attr == "argv" and ast.unparse(node) != "sys.argv"
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value == "argv" and isinstance(node.ctx, ast.Load)
    asked = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args
    )
    return bool(asked) and isinstance(node, ast.Call) and ast.unparse(node.args[0]) == "'argv'"


def is_handed_on(node: ast.AST, parent: ast.AST) -> bool:
    """As the argument `argv`, in a longer line, as a document's value, or by a writer."""
    if isinstance(parent, ast.Call):
        return ast.unparse(parent.func) in WRITERS and node in parent.args
    named = isinstance(parent, ast.keyword) and parent.arg == "argv"
    return named or isinstance(parent, (ast.Starred, ast.Assign, ast.Dict))


def test_what_was_rendered_is_not_read_back() -> None:
    assert {file: words for file, path in FILES.items() if (words := read_back(path.read_text()))} == {}


@pytest.mark.parametrize("text", ["""
def f(run):
    'NCCL_NET is read.'
    return run.env.get("NCCL_NET")""", '"--tp-size" in node.argv', "node.argv[1:]", "words_of(request.argv)",
    "return_(staged.argv)", 'settings(node["argv"])', 'pairs(document.get("argv"))', "for word in plan.argv: pass",
])  # fmt: skip
def test_a_reader_would_be_found(text: str) -> None:
    assert read_back(text)


@pytest.mark.parametrize("text", [
    "sys.argv[1:]", "Request(argv=node.argv)", "shlex.join(node.argv)", "(*node.argv, x)", "content['argv'] = it.argv",
])  # fmt: skip
def test_who_hands_on_reads_nothing(text: str) -> None:
    assert read_back(text) == []


FACT = re.compile(r"\b0\.[45]\.\d+|\bsglang\.[a-z_]+|/v1/loads|/health_generate|/metrics\b")
HOMES = {
    "engines": "the facts themselves",
    **dict.fromkeys(("gang/commands", "hosts/commands", "tuning/commands"), "examples name stacks"),
    "monitoring": "the exporter has /metrics of its own",
    "lab/command.py": "examples of commands name stacks",
    "lab/engine/environment.py": "the lab's stack of the real engine",
    "lab/faults/processes.py": "explains what a hung rank looks like",
    "lab/node/files.py": "the shell script that stands for python3 on an emulated node",
    "lab/standin": "plays the versions of SGLang",
    "doctor/rules/host.py": "cites the engine's source",
    "topology/speed.py": "says which engine the prices were measured with",
    "doctor/rules/stacks.py": "cites what a plan starts, and explains what a version's patches are",
}


@cache
def facts(name: str, path: Path) -> tuple[str, ...]:
    """In texts of the code; docstrings and comments may explain by example."""
    return tuple(_facts(name, path))


def _facts(name: str, path: Path) -> Iterator[str]:
    source = path.read_text()
    if not FACT.search(source):  # nothing to parse it for
        return
    tree = ast.parse(source)
    explained = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in explained:
            yield from (f"{name}:{node.lineno}: {found}" for found in FACT.findall(node.value))


def test_no_version_and_no_path_of_an_engine_is_known_elsewhere() -> None:
    elsewhere = [
        found
        for name, path in source_files().items()
        if not any(_below(name, home) for home in HOMES)
        for found in facts(name, path)
    ]
    assert elsewhere == []


def test_every_exception_is_one() -> None:
    for home in HOMES:
        below = {name: path for name, path in source_files().items() if _below(name, home)}
        assert any(facts(*file) for file in below.items()), f"{home} needs no exception any more"


def _below(name: str, home: str) -> bool:
    return name == home or name.startswith(f"{home}/")
