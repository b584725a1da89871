"""What somebody has to carry: the house may shrink, and grows only where a number here is raised on purpose."""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.support.sources import LAB, PRODUCT, ROOT

from orchestrator.cli.main import every_parser, verbs_of

CEILINGS = {
    "lines of the product": 66_930,
    "statements of the product": 41_000,
    "lines of the lab": 13_460,
    "lines of tests": 66_000,
    "lines that `up` imports": 18_890,
    "lines that `status` imports": 6_540,
    "class names with several homes": 0,
    "commands": 46,
    "options": 310,
    "words of docs and README": 23_570,
}
"""Not more than this. Lower a number when the figure has fallen."""


def _files(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def _lines(files: Iterable[Path]) -> int:
    return sum(path.read_text().count("\n") for path in files)


def _statements(files: Iterable[Path]) -> int:
    return sum(isinstance(node, ast.stmt) for path in files for node in ast.walk(ast.parse(path.read_text())))


def _closure(start: str) -> list[Path]:
    """The product's files that a module needs, imports inside functions included."""
    found: dict[str, Path] = {}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        path = PRODUCT.parent / name.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in found or not path.is_file():
            continue
        found[name] = path
        waiting += _imported(path)
    return list(found.values())


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _names_with_several_homes() -> int:
    homes = defaultdict(set)
    for path in _files(PRODUCT):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].add(path)
    return sum(len(files) > 1 for files in homes.values())


def _leaves() -> list[argparse.ArgumentParser]:
    """The parsers of commands that a user can type, without the lab's."""
    verbs = [parser for name, parser in verbs_of(every_parser()).items() if name != "lab"]
    return [leaf for verb in verbs for leaf in (verbs_of(verb).values() or [verb])]


def _options() -> int:
    return sum(
        any(word.startswith("--") for word in action.option_strings) and action.dest != "help"
        for parser in _leaves()
        for action in parser._actions
    )


def _words() -> int:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "README.zh.md"]
    return sum(len(re.split(r"\s+", page.read_text().strip())) for page in pages)


FIGURES = {
    "lines of the product": lambda: _lines(_files(PRODUCT)),
    "statements of the product": lambda: _statements(_files(PRODUCT)),
    "lines of the lab": lambda: _lines(_files(LAB)),
    "lines of tests": lambda: _lines(_files(ROOT / "tests", ROOT / "lab" / "tests")),
    "lines that `up` imports": lambda: _lines(_closure("orchestrator.gang.commands.up")),
    "lines that `status` imports": lambda: _lines(_closure("orchestrator.gang.commands.status")),
    "class names with several homes": _names_with_several_homes,
    "commands": lambda: len(_leaves()),
    "options": _options,
    "words of docs and README": _words,
}


@pytest.mark.parametrize("what", CEILINGS)
def test_the_house_does_not_grow(what: str) -> None:
    assert FIGURES[what]() <= CEILINGS[what]
