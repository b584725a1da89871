"""What an engine version is stands in engines/: nobody else names a version or a module of SGLang."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import source_files

FACT = re.compile(r"\b0\.[45]\.\d+|\bsglang\.[a-z_]+|/v1/loads|/health_generate|/metrics\b")
HOMES = {
    "engines": "the facts themselves",
    **dict.fromkeys(
        ("gang/commands", "hosts/commands", "planning/commands", "tuning/commands"), "examples name stacks"
    ),
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


def facts(name: str, path: Path) -> Iterator[str]:
    """In texts of the code; docstrings and comments may explain by example."""
    tree = ast.parse(path.read_text())
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
        assert any(True for one in below.items() for _ in facts(*one)), f"{home} needs no exception any more"


def _below(name: str, home: str) -> bool:
    return name == home or name.startswith(f"{home}/")
