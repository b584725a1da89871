"""Imports point downwards only, and each outside library has one home. docs/architecture.md has the picture."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.support.sources import LAB, PRODUCT, source_files

FILES = source_files()
STAND_IN = LAB / "standin"

ROOMS = {"bench", "checkpoint", "golden", "hosts", "monitoring", "nettest", "support", "sweep", "tuning"}
"""Capabilities that can be taken out."""
OF_EACH_OTHER = {
    "golden": {"bench", "tuning"}, "monitoring": {"bench", "nettest"}, "bench": {"nettest", "tuning"},
    "hosts": {"checkpoint", "tuning"}, "support": {"bench", "nettest", "tuning"},
    "sweep": {"bench", "golden", "nettest"},
}  # fmt: skip
SHARED = {"model", "protocol"}
PURE = {"topology", "engines", "planning", "doctor", "gang", "rendering"}
"""Of the core, but for their steps/ and commands/."""
OUTSIDE = {"remote", "node", "records", "loading", "jobs"}
CORE = {"cli", "rooms", *SHARED, *PURE, *OUTSIDE}
LADDER = (
    {"protocol"},
    {"model"},
    {"loading", "node", "records", "remote", "rendering", "rooms"},
    {"topology", "cli"},
    {"engines"},
    {"planning"},
    {"doctor"},
    {"gang"},
    {"jobs"},
    ROOMS,
)
"""Floors from below; `rooms` is rooms.py, where the core meets the rooms, and cli/main.py alone stands on top."""
FLOOR = {room: floor for floor, rooms in enumerate(LADDER) for room in rooms}
WORLD = {"steps", "commands", "hooks", "store", "on_node", "messages"}
"""Names of folders and files that may touch the outside world."""
ON_NODE = {"node", "protocol", "on_node", "messages"}
MAY_IMPORT: dict[str, set[str]] = {
    "commands": CORE - {"remote", "node", "records"},
    "hooks": CORE - {"remote", "node", "records"},
    "steps": CORE - {"cli", "rooms"},
    "store": {"records", "node", "model", "protocol"},
    "on_node": {"node", "protocol", "jobs"},
    "messages": {"protocol", "jobs"},
    "pure": {*SHARED, *PURE},
    "cli": {"cli", "loading", "records", "remote", *SHARED},
    "main": {"cli", "loading", "remote", "model", "protocol"},
    "lab": {*CORE, *ROOMS},
    "remote": {"remote", "loading", *SHARED},
    "jobs": CORE - {"cli", "rooms"},
    "node": {"node", "protocol"},
    "records": {"records", "node", "model", "protocol"},
    "loading": {"loading", "model", "protocol"},
    "model": {"model", "protocol"},
    "protocol": {"protocol"},
}
HOME = {
    "paramiko": {"remote"},
    "ansible_runner": {"hosts"},
    "pynvml": {"node", "on_node"},
    "jinja2": {"rendering"},
    "prometheus_client": {"monitoring"},
    "rich": {"cli", "commands", "lab"},
    "tornado": {"monitoring"},
    "yaml": {"loading", "lab"},
}
NODE_PURE = {
    "agent/causes", "agent/lifecycle", "agent/membership", "agent/sides", "engine/kernel_words", "engine/ras_words",
    "engine/watch",
}  # fmt: skip
"""What an agent decides with: values in, values out, though it stands among code that is all sockets and files."""
IMPURE = {"os", "socket", "subprocess", "time", "pathlib", "shutil", "tempfile", "threading", "logging"}


def layer(name: str) -> str:
    return name.partition("/")[0].removesuffix(".py")


def kind(name: str) -> str:
    """What a file is allowed by: its layer, or its place within a package that has steps and commands."""
    first, *inside = name.removesuffix(".py").split("/")
    if name == "cli/main.py":
        return "main"
    if first in ROOMS | PURE | {"jobs"}:
        return next((part for part in inside if part in WORLD), "jobs" if first == "jobs" else "pure")
    return first


def for_types(tree: ast.Module) -> set[int]:
    """Nodes below `if TYPE_CHECKING`."""
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    return {id(inner) for test in tests for inner in ast.walk(test)}


@cache
def imported(path: Path, *, types_too: bool = True) -> tuple[tuple[int, str], ...]:
    """(line, module) of each import; a package's modules by their names too. types_too: and what is for types alone"""
    return tuple(_imported(path, types_too))


def _imported(path: Path, types_too: bool) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text())
    skipped = set() if types_too else for_types(tree)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if STAND_IN in path.parents and node.level == 1:
                continue  # runs under its own name on emulated nodes, so it imports its own relatively
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            yield node.lineno, node.module or ""
            if (PRODUCT.parent / (node.module or "").replace(".", "/")).is_dir():  # its modules, by their names
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_imports_point_downwards() -> None:
    for file in FILES:
        if layer(file) not in ("__init__", "rooms"):
            imports_what_it_may(file)


def imports_what_it_may(file: str) -> None:
    path, here, of = FILES[file], layer(file), kind(file)
    allowed = MAY_IMPORT[of] | ({here, *OF_EACH_OTHER.get(here, ())} if here in ROOMS else set())
    for line, name in imported(path):
        parts = name.split(".")
        if parts[0] == "orchestrator" and len(parts) > 1 and parts[1] != "__version__":
            assert parts[1] in allowed, f"{path}:{line}: {file} must not import {name}"
            above = {"commands", "hooks"} if of in ("steps", "jobs", "cli") else set()
            above = WORLD - {"messages"} if of == "pure" else above
            assert here == "lab" or not above.intersection(parts[2:]), f"{path}:{line}: {file} must not import {name}"
        assert parts[0] != "l40s_lab" or here == "lab", f"{path}:{line}: the product does not know its lab"
        if parts[0] in HOME:
            assert {here, of} & HOME[parts[0]], f"{path}:{line}: {parts[0]} lives in {HOME[parts[0]]} only"
        if of == "pure" or here in SHARED:
            assert parts[0] not in IMPURE, f"{path}:{line}: the core takes values and gives values, no {name}"


def test_no_import_climbs_the_ladder() -> None:
    assert [words for file in FILES if layer(file) in FLOOR and file != "cli/main.py" for words in climbing(file)] == []


def climbing(file: str) -> Iterator[str]:
    """Imports of a file from a floor above its own."""
    for line, name in imported(FILES[file]):
        parts = name.split(".")
        if parts[0] == "orchestrator" and len(parts) > 1 and FLOOR.get(parts[1], 0) > FLOOR[layer(file)]:
            yield f"{FILES[file]}:{line}: {layer(file)}/ stands below {name}"


def test_every_package_has_a_floor() -> None:
    there = {path.stem for path in PRODUCT.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert there - {"__init__", "__pycache__"} <= set(FLOOR)


@pytest.mark.parametrize("name", sorted(NODE_PURE))
def test_what_an_agent_decides_with_is_pure(name: str) -> None:
    path = PRODUCT / "node" / f"{name}.py"
    for line, imports in imported(path, types_too=False):
        assert imports.split(".")[0] not in IMPURE, f"{path}:{line}: {name} takes values and gives values, no {imports}"
        if imports.startswith("orchestrator.node"):
            within = imports.removeprefix("orchestrator.node.").replace(".", "/")
            assert within in NODE_PURE or (PRODUCT / "node" / within).is_dir(), f"{path}:{line}: {imports} is not pure"


def test_the_node_needs_the_standard_library_only() -> None:
    there = {*sys.stdlib_module_names, "orchestrator", "pynvml"}
    on_nodes = [path for file, path in FILES.items() if ON_NODE & {layer(file), kind(file)}]
    assert len(on_nodes) > 50
    for path in on_nodes:
        for line, name in imported(path):
            assert name.split(".")[0] in there, f"{path}:{line}: {name}"


IN_A_CHILD = {
    "node/agent/preflight.py", "node/dispatch.py", "node/engine/guardian.py",
    "node/look/reading.py", "node/verbs/arm.py",
}  # fmt: skip
"""They fork: the child must end without running its parent's code (os._exit's own documentation)."""


CLEVER = {"sys.modules", "sys.meta_path", "gc.freeze", "gc.disable", "os._exit"}


def test_nothing_is_clever_with_the_interpreter() -> None:
    """Modules and the garbage collector stay as Python has them; only a forked child leaves at once."""
    clever = {file: names for file, path in FILES.items() if layer(file) != "lab" and (names := _clever(path))}
    assert clever == {file: {"os._exit"} for file in IN_A_CHILD}


def _clever(path: Path) -> set[str]:
    attributes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
    names = {f"{node.value.id}.{node.attr}" for node in attributes if isinstance(node.value, ast.Name)}
    return names & CLEVER
