"""Folders small enough to read, and no two files that need each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.sources import LAB, PRODUCT

MODULES = {
    ".".join((package.name, *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__"): path
    for package in (PRODUCT, LAB)
    for path in sorted(package.rglob("*.py"))
}
LARGEST_FOLDER = 20


@pytest.mark.parametrize("layer", ["node", "gang", "doctor", "checkpoint"])
def test_no_folder_is_a_heap(layer: str) -> None:
    folders = [path for path in (PRODUCT / layer).rglob("*") if path.is_dir()] + [PRODUCT / layer]
    sizes = {str(folder.relative_to(PRODUCT)): len(list(folder.glob("*.py"))) for folder in folders}
    sizes.pop("doctor/rules", 0)  # one diagnosis a file
    assert {name: size for name, size in sizes.items() if size > LARGEST_FOLDER} == {}


def test_no_two_files_need_each_other() -> None:
    """Imports for types alone do not count; those inside functions do."""
    needs = {name: set(needed(name, path)) - {name} for name, path in MODULES.items()}
    while leaves := {name for name, others in needs.items() if not others}:
        needs = {name: others - leaves for name, others in needs.items() if name not in leaves}
    while roots := set(needs) - set().union(*needs.values()):
        needs = {name: others for name, others in needs.items() if name not in roots}
    assert needs == {}


def needed(name: str, path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types:
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner_module = f"{module}.{alias.name}"
                if inner_module in MODULES or module in MODULES:
                    yield inner_module if inner_module in MODULES else module
