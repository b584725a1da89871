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


def on_a_node(code: str) -> str:
    """What the code prints in a process that starts as the processes on a node do."""
    code = f"import sys; sys.path.insert(0, {str(SOURCES)!r}); {code}"
    done = subprocess.run([sys.executable, "-EsS", "-c", code], check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.strip()


def test_the_verbs_that_are_asked_most_do_not_bring_pathlib_to_a_node() -> None:
    code = "from orchestrator.node.verbs import lock, report, stay; print('pathlib' in sys.modules)"
    assert on_a_node(code) == "False"


@pytest.mark.parametrize(
    "module", ["agent.agent", "cache.ahead", "engine.gpus", "look.probe", "verbs.stage", "verbs.stay"]
)
def test_inspect_is_not_loaded_on_a_node(module: str) -> None:
    assert on_a_node(f"import orchestrator.node.{module}; print('dis' in sys.modules)") == "False"


def test_inspect_is_complete_once_it_is_used() -> None:
    code = (
        "import orchestrator, inspect; print(inspect.signature(lambda a, *, b=1: a), inspect is sys.modules['inspect'])"
    )
    assert on_a_node(code) == "(a, *, b=1) True"


def test_annotations_are_the_librarys() -> None:
    """Of classes before it is loaded, as `dataclasses` asks; of anything else by the library itself."""
    code = """
import orchestrator, inspect
class Bare: pass
class Full(Bare): a: int = 1
print([inspect.get_annotations(one) for one in (Bare, Full)])
print(inspect.get_annotations(lambda: 0), inspect.get_annotations(Full, eval_str=True), 'dis' in sys.modules)"""
    assert on_a_node(code).splitlines() == ["[{}, {'a': <class 'int'>}]", "{} {'a': <class 'int'>} True"]


def test_a_name_that_inspect_lacks_is_missing() -> None:
    """Before it is loaded, and afterwards."""
    code = "import orchestrator, inspect; print([hasattr(inspect, name) for name in ('a', 'a', 'signature', 'a')])"
    assert on_a_node(code) == "[False, False, True, False]"


def test_several_threads_load_inspect_once() -> None:
    code = (
        "import orchestrator, inspect; from concurrent.futures import ThreadPoolExecutor as Pool; "
        "pool = Pool(8); print(len(set(pool.map(lambda _: inspect.signature, range(64)))))"
    )
    assert on_a_node(code) == "1"


def test_a_module_that_was_loaded_before_stays() -> None:
    assert on_a_node("import inspect as before, orchestrator, inspect; print(inspect is before)") == "True"
