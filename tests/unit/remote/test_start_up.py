"""The start-up cost of every command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orchestrator

SOURCES = Path(orchestrator.__file__).parents[1]


def said(code: str, *options: str) -> list[str]:
    words = [sys.executable, *options, "-c", code]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.split()


def test_what_is_not_needed_is_not_imported() -> None:
    loaded = said("import sys, orchestrator.cli.main, orchestrator.gang.commands.status; print(*sys.modules)")
    assert not {"rich", "orchestrator.engines.engine", "orchestrator.model.plan"} & set(loaded)


def test_the_verbs_that_are_asked_most_do_not_bring_pathlib_to_a_node() -> None:
    """In a process that starts as those on a node do."""
    code = f"import sys; sys.path.insert(0, {str(SOURCES)!r}); from orchestrator.node import dispatch"
    code += "; from orchestrator.node.verbs import lock, report; print('pathlib' in sys.modules)"
    assert said(code, "-EsS") == ["False"]


def test_the_library_is_as_python_has_it() -> None:
    code = "import orchestrator.cli.main, inspect; print(type(inspect).__name__, inspect.__spec__.origin)"
    kind, origin = said(code)
    assert kind == "module" and origin.endswith("inspect.py")
