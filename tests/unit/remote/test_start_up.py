"""The start-up cost of every command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator

SOURCES = Path(orchestrator.__file__).parents[1]


def said(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("orchestrator.cli.main, orchestrator.gang.commands.status", "rich"),
        ("orchestrator.cli.main, orchestrator.gang.commands.status", "orchestrator.engines.engine"),
        ("orchestrator.cli.main, orchestrator.gang.commands.status", "orchestrator.model.plan"),
    ],
)
def test_what_is_not_needed_is_not_imported(code: str, absent: str) -> None:
    assert said(f"import sys, {code}; print({absent!r} in sys.modules)") == ["False"]


def on_a_node(code: str) -> str:
    """What the code prints in a process that starts as the processes on a node do."""
    code = f"import sys; sys.path.insert(0, {str(SOURCES)!r}); {code}"
    done = subprocess.run([sys.executable, "-EsS", "-c", code], check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.strip()


def test_the_verbs_that_are_asked_most_do_not_bring_pathlib_to_a_node() -> None:
    code = "from orchestrator.node import dispatch; from orchestrator.node.verbs import lock, report"
    assert on_a_node(f"{code}; print('pathlib' in sys.modules)") == "False"


def test_the_library_is_as_python_has_it() -> None:
    code = "import orchestrator.cli.main, inspect; print(type(inspect).__name__, inspect.__spec__.origin)"
    kind, origin = said(code)
    assert kind == "module" and origin.endswith("inspect.py")
