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
        ("orchestrator.remote.ssh_session", "invoke"),
        ("orchestrator.remote.ssh_session", "email"),  # importlib.metadata's
        ("orchestrator.cli.main, orchestrator.cli.status", "rich"),
        ("orchestrator.cli.main, orchestrator.cli.status", "orchestrator.engines.engine"),
        ("orchestrator.cli.main, orchestrator.cli.status", "orchestrator.model.plan"),
    ],
)
def test_what_is_not_needed_is_not_imported(code: str, absent: str) -> None:
    assert said(f"import sys, {code}; print({absent!r} in sys.modules)") == ["False"]


def test_package_metadata_is_as_it_always_is_afterwards() -> None:
    code = "import orchestrator.remote, paramiko; from importlib import metadata; "
    assert said(f"{code} print(metadata.version('paramiko') == paramiko.__version__)") == ["True"]


def test_the_verbs_that_are_asked_most_do_not_bring_pathlib_to_a_node() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SOURCES)!r}); "
        "from orchestrator.node.verbs import lock, report, stay; print('pathlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-EsS", "-c", code], check=True, capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["False"]
